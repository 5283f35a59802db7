"""Could chance alone give such a tau? Permutation p-values, and their correction for asking many questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from spiritlevel.study.statistics.kendall import pair_signs

__all__ = ["PERMUTED", "holm", "permutation_p"]

Array = np.ndarray[Any, np.dtype[Any]]

PERMUTED = 200
"""Up to so many checkpoints are permuted; beyond, the normal approximation with ties (scipy's) takes over: the two
agree to 0.01 from 50 on (tests/test_statistics.py), and the cost of permuting grows with the square."""


def permutation_p(x: Array, y: Array, permutations: int = 2000, seed: int = 0) -> float:
    """Two-sided p-value of tau: how often shuffled checkpoints reach ``|tau|``, counting the data themselves.

    The ties stay what they are under permutation, so tau-a and tau-b have the same p. NaN where tau is undefined.
    """
    both = np.isfinite(x) & np.isfinite(y)
    a, b = x[both], y[both]
    n = len(a)
    if n < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    if n > PERMUTED:
        return float(stats.kendalltau(a, b, method="asymptotic").pvalue)
    signs, other = pair_signs(a).ravel(), pair_signs(b)
    rng = np.random.default_rng(seed)
    found = abs(float(signs @ other.ravel()))
    reached = 1
    for chunk in range(0, permutations, 256):
        orders = np.argsort(rng.random((min(256, permutations - chunk), n)), axis=1)
        shuffled = other[orders[:, :, None], orders[:, None, :]].reshape(len(orders), -1)
        reached += int((np.abs(shuffled @ signs) >= found).sum())  # whole numbers: exact in float32
    return reached / (permutations + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: with it, one false alarm in all of the family is as rare as promised for one question.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    asked = sorted((p, i) for i, p in enumerate(p_values) if math.isfinite(p))
    out, running = [math.nan] * len(p_values), 0.0
    for rank, (p, i) in enumerate(asked):
        running = max(running, min(1.0, (len(asked) - rank) * p))
        out[i] = running
    return out
