"""The table of a study: one row for each checkpoint. All statistics, figures and reports start here.

Its columns, by prefix, are those of public studies of generalisation measures:

===================  ========================================================================================
column               meaning
===================  ========================================================================================
``hp.NAME``          a hyperparameter the checkpoint was trained with: a number or a word
``complexity.NAME``  a measure, as ``geodesic@0.1`` (the measure's name, ``@``, the radius) or plain where there
                     is no radius; the norm of all weights is ``parameter-norm``
``gen.NAME``         how well it generalises: ``train_loss``, ``train_error``, and for each test set
                     ``SET_loss``, ``SET_error`` and ``SET_gap`` (its error minus the training error)
===================  ========================================================================================

Errors are shares from 0 to 1. A number that could not be measured is NaN here and empty in files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spiritlevel.errors import DataError

__all__ = ["StudyTable"]

Array = np.ndarray[Any, np.dtype[np.float64]]
_NAMES = ("checkpoint", "experiment_id", "name")  # columns that hold the name of a row, the first of them wins
_PREFIXES = ("hp", "complexity", "gen")


@dataclass(frozen=True)
class StudyTable:
    """Checkpoints with their hyperparameters, measures and generalisation.

    Attributes:
        names: of the checkpoints, no two alike.
        hp: each hyperparameter's values, one for each checkpoint.
        complexity: each measure's values; NaN where there is none.
        gen: loss, error and gap on each set; NaN where there is none.
        sizes: how many examples each test set has, where known: for the noise of its error.
        per_batch: each measure's values on single batches, one tuple for each checkpoint, where known.
        failures: (checkpoint, measure, message) of what could not be measured.
        facts: about the study as a whole, for its report (radii and how they were chosen, versions, settings).
    """

    names: tuple[str, ...]
    hp: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    complexity: Mapping[str, Array] = field(default_factory=dict)
    gen: Mapping[str, Array] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    per_batch: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    failures: tuple[tuple[str, str, str], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that all columns are equally long and no name comes twice."""
        if len(set(self.names)) != len(self.names):
            twice = sorted({n for n in self.names if self.names.count(n) > 1})
            raise DataError(f"expected each checkpoint once, got {twice[:3]} more than once: give them other names")
        for kind in _PREFIXES:
            for name, values in getattr(self, kind).items():
                if len(values) != len(self.names):
                    raise DataError(
                        f"expected one value for each of {len(self.names)} checkpoints in {kind}.{name}, "
                        f"got {len(values)}"
                    )

    def __len__(self) -> int:
        return len(self.names)

    def columns(self) -> dict[str, list[Any]]:
        """Plain columns with prefixed names, None for what is missing."""
        out: dict[str, list[Any]] = {"checkpoint": list(self.names)}
        out |= {f"hp.{n}": list(v) for n, v in self.hp.items()}
        for kind in ("complexity", "gen"):
            for name, values in getattr(self, kind).items():
                out[f"{kind}.{name}"] = [float(v) if math.isfinite(v) else None for v in values]
        return out

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]]) -> StudyTable:
        """A table from prefixed columns, one's own or another study's; other columns are left out."""
        if not columns:
            raise DataError("expected a table with columns, got none")
        count = len(next(iter(columns.values())))
        name = next((n for n in _NAMES if n in columns), None)
        names = [str(v) for v in columns[name]] if name else [str(i) for i in range(count)]
        kinds: dict[str, dict[str, Any]] = {kind: {} for kind in _PREFIXES}
        for column, values in columns.items():
            prefix, dot, rest = column.partition(".")
            if dot and prefix == "hp":
                kinds[prefix][rest] = tuple(values)
            elif dot and prefix in kinds:
                kinds[prefix][rest] = np.array([_number(column, v) for v in values], dtype=np.float64)
        if not kinds["complexity"] or not kinds["gen"]:
            raise DataError(
                "expected columns named complexity.* (measures) and gen.* (generalisation), got "
                f"{', '.join(list(columns)[:8])}: rename them"
            )
        return cls(tuple(names), hp=kinds["hp"], complexity=kinds["complexity"], gen=kinds["gen"])


def _number(column: str, value: Any) -> float:
    if value is None or value == "":
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"expected numbers in the column {column!r}, got {value!r}") from error
