"""Which checkpoint a measure would choose, and how good that choice is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.study.statistics.kendall import Array

__all__ = ["Choice", "choose"]


@dataclass(frozen=True)
class Choice:
    """The checkpoint a measure calls best.

    Attributes:
        checkpoint: its name.
        value: its gap or error.
        rank: its place among all that have both numbers, 1 the best; ties share the better place.
        count: among how many.
        best: the smallest gap or error there is.
        middle: the median: what a blind choice gets.
    """

    checkpoint: str
    value: float
    rank: int
    count: int
    best: float
    middle: float


def choose(names: tuple[str, ...], measure: Array, target: Array) -> Choice | None:
    """The checkpoint with the smallest measure, the first of equals; None where there is nothing to choose from."""
    both = np.flatnonzero(np.isfinite(measure) & np.isfinite(target))
    if not len(both):
        return None
    chosen: Any = both[np.argmin(measure[both])]
    values = target[both]
    rank = 1 + int((values < target[chosen]).sum())
    middle = float(np.median(values)) if len(values) else math.nan
    return Choice(names[chosen], float(target[chosen]), rank, len(both), float(values.min()), middle)
