"""The unit of work: one checkpoint, one column of the table; what fixes its number, and what came out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spiritlevel.core.results import Measurement, plain

__all__ = ["Column", "Done", "Outcome", "Task"]


@dataclass(frozen=True)
class Column:
    """A column of the table with everything that fixes its numbers, apart from the checkpoint.

    Attributes:
        name: as in `StudyTable`, with its prefix.
        settings: plain data. The radii below a worst case's own are among them, because its search starts from theirs.

    >>> Column("gen.a_loss", {"what": "loss", "data": "abc"}).key == Column(
    ...     "gen.b_loss", {"data": "abc", "what": "loss"}
    ... ).key
    True
    """

    name: str
    settings: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """The settings hash: the same settings have the same one, today and tomorrow."""
        text = json.dumps(plain(self.settings), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Outcome:
    """What came out of one unit: a number, or the reason why there is none.

    Attributes:
        value: None where the unit failed.
        per_batch: the value on each batch.
        standard_error: of the value, where there is one.
        status: of the search or estimate (`spiritlevel.Status`); ``failed`` where the unit failed.
        residual: how far the search was from a maximiser, the worst over batches.
        evaluations: gradients or passes spent.
        seconds: by the clock; shared evenly where one pass gave several units.
        error: in words, None where there is none.
        stats: what else the measure reports.
    """

    value: float | None
    per_batch: tuple[float, ...] = ()
    standard_error: float | None = None
    status: str = "exact"
    residual: float | None = None
    evaluations: int | None = None
    seconds: float = 0.0
    error: str | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, m: Measurement) -> Outcome:
        """From a measurement; a value that is not finite is a failure."""
        if not math.isfinite(m.value):
            return cls.failed(f"expected a finite value, got {m.value} ({m.status})")
        stats = {k: v for k, v in m.stats.items() if k not in ("residual", "evaluations", "seconds")}
        return cls(
            value=float(m.value),
            per_batch=tuple(map(float, m.per_batch)),
            standard_error=m.standard_error,
            status=str(m.status),
            residual=m.stats.get("residual"),
            evaluations=m.stats.get("evaluations", m.stats.get("products")),
            seconds=float(m.stats.get("seconds", 0.0)),
            stats=plain(stats),
        )

    @classmethod
    def failed(cls, why: str | BaseException, seconds: float = 0.0) -> Outcome:
        """No number, and why."""
        if isinstance(why, BaseException):
            why = f"{type(why).__name__}: {why}".strip().rstrip(":") + _way_out(why)
        return cls(None, status="failed", error=why, seconds=seconds)


def _way_out(error: BaseException) -> str:
    """What to do where memory was short; every device says it in its own way."""
    said = str(error).lower()
    short = isinstance(error, MemoryError) or "out of memory" in said or "allocate memory" in said
    return "; set batches.micro to fewer examples in one pass, or take a device with more memory" if short else ""


@dataclass(frozen=True)
class Task:
    """What is still to do for one checkpoint.

    Attributes:
        checkpoint: its name.
        keys: settings hashes of the columns that are wanted.
    """

    checkpoint: str
    keys: frozenset[str]


@dataclass(frozen=True)
class Done:
    """Units of one checkpoint that ended together; the store takes all of them or none.

    Attributes:
        checkpoint: its name.
        digest: of its weights; empty where they could not be read.
        outcomes: by settings hash.
    """

    checkpoint: str
    digest: str
    outcomes: Mapping[str, Outcome]
