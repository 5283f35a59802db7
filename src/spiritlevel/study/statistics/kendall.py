"""Kendall's rank correlation: how often a measure and generalisation order two checkpoints alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spiritlevel.errors import ArgumentError

__all__ = ["chance_spread", "pair_signs", "tau_a", "tau_b"]

Array = np.ndarray[Any, np.dtype[Any]]


def pair_signs(values: Array) -> Array:
    """``sign(v_i - v_j)`` for all pairs, as float32; 0 for ties and where a value is missing.

    >>> pair_signs(np.array([1.0, 2.0])).tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    with np.errstate(invalid="ignore"):
        signs: Array = np.sign(values[:, None] - values[None, :]).astype(np.float32)
    if not np.isfinite(values).all():
        signs[np.isnan(signs)] = 0
    return signs


def tau_b(x: Array, y: Array) -> float:
    """``S / sqrt(P_x P_y)``: S is concordant minus discordant pairs, P_x the pairs that differ in x, P_y in y.

    Checkpoints that lack one of the two are left out. NaN where all of x or all of y is tied: there is no order then.

    >>> tau_b(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.333...
    """
    s, px, py, _ = _counts(x, y)
    return s / math.sqrt(px * py) if px and py else math.nan


def tau_a(x: Array, y: Array) -> float:
    """``S`` over the number of all pairs: the tau that papers print. Ties pull it towards 0.

    >>> tau_a(np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    0.666...
    """
    s, _, _, pairs = _counts(x, y)
    return s / pairs if pairs else math.nan


def _counts(x: Array, y: Array) -> tuple[float, float, float, float]:
    if len(x) != len(y):
        raise ArgumentError(f"expected as many values of one as of the other, got {len(x)} and {len(y)}")
    both = np.isfinite(x) & np.isfinite(y)
    a, b = pair_signs(x[both]), pair_signs(y[both])
    n = int(both.sum())
    s, px, py = (float(k.sum(dtype=np.float64)) / 2 for k in (a * b, a * a, b * b))
    return s, px, py, n * (n - 1) / 2


def chance_spread(count: int) -> float:
    """Standard deviation of tau among ``count`` checkpoints when measure and generalisation have nothing in common.

    ``sqrt(2 (2n + 5) / (9 n (n - 1)))`` without ties (Kendall 1938).

    >>> round(chance_spread(72), 3)
    0.08
    """
    return math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1))) if count > 1 else math.inf
