"""What a measure tells beyond what training loss and the norm of the weights tell already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spiritlevel.study.statistics.resamples import Resamples

__all__ = ["partial_taus"]

Array = np.ndarray[Any, np.dtype[Any]]


def partial_taus(resamples: Resamples, measure: str, target: str, given: Sequence[str]) -> Array:
    """Kendall's partial tau of a measure and a target given other columns, on the data and on each resample.

    With T the taus of all pairs of (measure, target, given...) and ``R = T^-1``, it is
    ``-R_01 / sqrt(R_00 R_11)``; for one given column z that is Kendall's

        (t_xy - t_xz t_yz) / sqrt((1 - t_xz^2)(1 - t_yz^2)).

    It breaks where the given columns determine measure or target (NaN then), and need not vanish exactly where the two
    are independent given the rest (Korn 1984): read it as "how much is left", not as a test.

    Reference: Kendall (1942), Partial rank correlation.
    """
    names = (measure, target, *given)
    taus = np.stack([np.stack([_ones(resamples, a, b) for b in names], -1) for a in names], -2)
    good = np.isfinite(taus).all((-1, -2))
    good[good] = np.linalg.cond(taus[good]) < 1e6  # two columns in the same order: nothing is left to correlate
    out = np.full(len(taus), np.nan)
    inverse = np.linalg.inv(taus[good])
    with np.errstate(invalid="ignore"):
        out[good] = -inverse[:, 0, 1] / np.sqrt(inverse[:, 0, 0] * inverse[:, 1, 1])
    clipped: Array = np.clip(out, -1, 1)
    return clipped


def _ones(resamples: Resamples, a: str, b: str) -> Array:
    taus = resamples.taus(a, b)
    return np.where(np.isfinite(taus), 1.0, np.nan) if a == b else taus
