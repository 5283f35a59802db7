"""Bootstrap over checkpoints: the same resamples for all columns, so that differences are paired.

A resample draws n of n checkpoints with replacement; with ``c_i`` copies of checkpoint i,

    tau* = c'(A o B)c / sqrt(c'(A o A)c  c'(B o B)c),

where A and B are the signs of all pairs of the two columns. Copies of one checkpoint tie in both and so drop out of
tau-b. All resamples of a pair of columns are one product of matrices; its entries are whole numbers, so the result is
the same bit for bit on every machine and with any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.errors import ArgumentError
from spiritlevel.study.statistics.kendall import pair_signs

__all__ = ["Interval", "Resamples", "percentiles", "two_sided"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Interval:
    """A number and where it lies with the stated confidence; NaN where the data do not say.

    Attributes:
        value: on the checkpoints as they are.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether chance alone is an unlikely explanation."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """A short form for tables."""
        if math.isnan(self.value):
            return "unknown"
        return f"{self.value:.2f}" + ("" if math.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]")


class Resamples:
    """Tau-b of pairs of columns on the checkpoints as they are and on each bootstrap resample.

    Args:
        columns: by name, one value for each checkpoint; NaN where there is none.
        resamples: how many.
        seed: fixes which.
    """

    def __init__(self, columns: Mapping[str, Array], resamples: int = 2000, seed: int = 0) -> None:
        if resamples < 1:
            raise ArgumentError(f"expected at least one resample, got {resamples}")
        n = len(next(iter(columns.values()), ()))
        if any(len(v) != n for v in columns.values()) or not n:
            raise ArgumentError("expected columns of one length, at least 1, to resample")
        drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
        # The checkpoints as they are come first. float32 is exact: no sum of a row exceeds n.
        self._counts = np.vstack([np.ones((1, n)), drawn]).astype(np.float32)
        self._columns = {name: np.asarray(v, dtype=np.float64) for name, v in columns.items()}
        self._signs = {name: pair_signs(v) for name, v in self._columns.items()}
        self._known: dict[tuple[str, str], Array] = {}
        self._pairs: dict[tuple[str, bytes], Array] = {}

    def taus(self, a: str, b: str) -> Array:
        """Tau-b of two columns: the first entry as they are, the others on each resample; NaN where undefined."""
        key = (min(a, b), max(a, b))
        if key not in self._known:
            there = np.isfinite(self._columns[a]) & np.isfinite(self._columns[b])
            common = self._quadratic(self._signs[a] * self._signs[b])
            with np.errstate(invalid="ignore", divide="ignore"):
                self._known[key] = common / np.sqrt(self._untied(a, there) * self._untied(b, there))
        return self._known[key]

    def interval(self, values: Array, confidence: float = 0.95) -> Interval:
        """The first entry, between percentiles of the others."""
        return Interval(float(values[0]), *percentiles(values[1:], confidence))

    def _untied(self, name: str, there: Array) -> Array:
        key = (name, there.tobytes())
        if key not in self._pairs:
            signs = np.abs(self._signs[name])
            self._pairs[key] = self._quadratic(signs * there * there[:, None] if not there.all() else signs)
        return self._pairs[key]

    def _quadratic(self, matrix: Array) -> Array:
        """``c' M c`` for each resample."""
        out: Array = np.einsum("bi,bi->b", self._counts @ matrix, self._counts, dtype=np.float64)
        return out


def percentiles(values: Array, confidence: float) -> tuple[float, float]:
    """The two ends that leave half of the doubt outside on each side; NaN for fewer than two values."""
    if not 0 < confidence < 1:
        raise ArgumentError(f"expected a confidence between 0 and 1, got {confidence}")
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return math.nan, math.nan
    low, high = np.quantile(finite, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def two_sided(values: Array) -> float:
    """How often resamples of a difference lie on the other side of 0, doubled: a two-sided bootstrap p-value.

    >>> two_sided(np.array([0.1, 0.2, 0.3]))
    0.5
    """
    finite = values[np.isfinite(values)]
    tail = min((finite <= 0).sum(), (finite >= 0).sum()) + 1  # the sample itself counts: never 0
    return float(min(1.0, 2 * tail / (len(finite) + 1)))
