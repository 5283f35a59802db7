"""Means over seeds, with the interval they have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

__all__ = ["mean_interval", "verdict"]


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, tuple[float, float]]:
    """The mean of independent values and Student's interval for it; without end for a single value.

    >>> mean, (low, high) = mean_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), mean, round(high, 3)
    (-0.484, 2.0, 4.484)
    """
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return mean, (-math.inf, math.inf)
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    width = float(stats.t.ppf((1 + level) / 2, n - 1)) * error
    return mean, (mean - width, mean + width)


def verdict(interval: tuple[float, float], positive: bool = True) -> bool | None:
    """Whether an interval lies on the claimed side of 0; None where it holds 0.

    >>> verdict((0.1, 0.2)), verdict((0.1, 0.2), positive=False), verdict((-0.1, 0.2))
    (True, False, None)
    """
    low, high = interval if positive else (-interval[1], -interval[0])
    return True if low > 0 else False if high < 0 else None
