"""What a measure returns: a number with everything needed to judge it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rich.table import Table

from spiritlevel.core.display import Displayed

__all__ = ["Curve", "Measurement", "Status", "plain", "standard_error"]


class Status(StrEnum):
    """How a measurement ended; the worst over its batches."""

    EXACT = "exact"
    """No search and no sample: the number itself, but for rounding."""
    CONVERGED = "converged"
    """Stopped by itself: the stated residual was reached."""
    ESTIMATE = "estimate"
    """A sample mean; its standard error says how good."""
    BUDGET = "budget"
    """All allowed evaluations were spent before the residual was reached: a lower bound, possibly a loose one."""
    STOPPED = "stopped"
    """Stopped by hand: what there was at that time."""
    EDGE = "edge"
    """The ball reaches past the smallest singular value: the metric's geodesics may end inside it."""
    NONFINITE = "non-finite"
    """Somewhere in the ball the loss was NaN or infinite; the value is the best finite one."""


_BADNESS = {s: i for i, s in enumerate(Status)}


def worst(states: Sequence[Status]) -> Status:
    """The state that should worry the reader most.

    >>> worst([Status.CONVERGED, Status.BUDGET])
    <Status.BUDGET: 'budget'>
    """
    return max(states, key=_BADNESS.__getitem__)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard deviation of the mean; None for fewer than two values.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)


@dataclass(frozen=True)
class Measurement(Displayed):
    """One measured number.

    Attributes:
        name: the measure.
        value: mean over batches.
        per_batch: the value on each batch.
        standard_error: of ``value``; None where there is only one batch or sample.
        status: how it ended, the worst over batches.
        stats: what the solver or estimator did, per batch (evaluations, residual, ...).
        settings: everything that fixes the number.
    """

    name: str
    value: float
    per_batch: tuple[float, ...]
    standard_error: float | None
    status: Status
    stats: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.value

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "name": self.name,
            "value": self.value,
            "per_batch": list(self.per_batch),
            "standard_error": self.standard_error,
            "status": str(self.status),
            "stats": plain(self.stats),
            "settings": plain(self.settings),
        }

    def __rich__(self) -> Table:
        table = Table(title=self.name, title_justify="left", show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        table.add_row("value", f"{self.value:.6g}{error}")
        table.add_row("per batch", _row(self.per_batch))
        table.add_row("status", str(self.status))
        for key, value in self.stats.items():
            table.add_row(key, _row(value))
        table.add_section()
        for key, value in self.settings.items():
            table.add_row(key, _row(value))
        return table


@dataclass(frozen=True)
class Curve(Sequence[Measurement], Displayed):
    """The same measure at several radii, in the order they were asked for."""

    measurements: tuple[Measurement, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.measurements[index]

    def __len__(self) -> int:
        return len(self.measurements)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.measurements)

    @property
    def values(self) -> tuple[float, ...]:
        """The value at each radius."""
        return tuple(m.value for m in self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"measurements": [m.to_dict() for m in self]}

    def __rich__(self) -> Table:
        table = Table(title=self.measurements[0].name, title_justify="left")
        for column in ("rho", "value", "standard error", "status", "residual", "evaluations"):
            table.add_column(column, justify="left" if column == "status" else "right")
        for m in self:
            table.add_row(
                _row(m.settings.get("rho", "")),
                f"{m.value:.6g}",
                "" if m.standard_error is None else f"{m.standard_error:.2g}",
                str(m.status),
                _row(m.stats.get("residual", "")),
                _row(m.stats.get("evaluations", "")),
            )
        geometry = self.measurements[0].settings.get("geometry")
        if geometry:
            table.caption, table.caption_justify = str(geometry), "left"
        return table


def _row(value: Any) -> str:
    """A value in one short cell."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_row(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        shown = " ".join(_row(v) for v in value[:8])
        return shown if len(value) <= 8 else f"{shown} ... ({len(value)} in all)"
    return str(value)


def plain(value: Any) -> Any:
    """Mappings, lists, numbers and strings only, ready for JSON; numbers that are not finite as words."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, bool | int | str | None) else str(value)
