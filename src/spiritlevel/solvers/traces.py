"""The trace of a symmetric matrix known by its products, from random vectors, with an error that can be believed.

=============  =====================================================================  =========================
estimator      idea                                                                   products for m vectors
=============  =====================================================================  =========================
`hutchinson`   mean of ``v.Av`` over random signs; also sums over groups              m, stopped by its error
`hutch_pp`     the trace on the range of a sketch exactly, the rest by Hutchinson     m, a third for each
`xtrace`       the same with every vector used for both, leaving one out              m, half for each
=============  =====================================================================  =========================

The last two pay where few eigenvalues carry the trace (Meyer et al. 2021; Epperly, Tropp and Webber 2024).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.core.tensors import dot
from spiritlevel.solvers.lanczos import Step

__all__ = ["ApplyMany", "Estimate", "hutch_pp", "hutchinson", "xtrace"]

ApplyMany = Callable[[Tensor], Tensor]
"""Products with each row of ``(count, size)``."""
Reduce = Callable[[Tensor, Tensor], Sequence[float]]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Estimate:
    """A mean over random vectors.

    Attributes:
        value: of the first quantity.
        error: its standard error.
        values: of all quantities.
        errors: their standard errors.
        products: how many were needed.
        status: converged where the wanted error was reached.
    """

    value: float
    error: float
    values: Array
    errors: Array
    products: int
    status: Status


def hutchinson(
    apply: ApplyMany,
    probes: Iterator[Tensor],
    *,
    tolerance: float,
    samples: int,
    least: int = 10,
    block: int = 1,
    reduce: Reduce = lambda v, av: (dot(v, av),),
    seconds: float | None = None,
    step: Step = lambda note: None,
) -> Estimate:
    """Mean of ``reduce(v, A v)`` over random sign vectors, until its standard error is small enough.

    Args:
        apply: products with the matrix.
        probes: random sign vectors.
        tolerance: wanted standard error of the first quantity relative to its value.
        samples: most vectors.
        least: fewest vectors before the error is believed.
        block: vectors multiplied in one call.
        reduce: quantities whose mean is wanted; by default the quadratic form, whose mean is the trace.
        seconds: stop after this time with what there is.
        step: called after each block.
    """
    rows: list[Sequence[float]] = []
    began = time.monotonic()
    status = Status.ESTIMATE
    try:
        while len(rows) < samples:
            vectors = torch.stack([next(probes) for _ in range(min(block, samples - len(rows)))])
            rows += [reduce(v, av) for v, av in zip(vectors, apply(vectors), strict=True)]
            mean, error = _mean(np.array(rows))
            step(f"{mean[0]:.4g} ± {error[0]:.2g}")
            if len(rows) >= least and error[0] <= tolerance * abs(mean[0]):
                status = Status.CONVERGED
                break
            if seconds is not None and time.monotonic() - began > seconds:
                status = Status.BUDGET
                break
    except KeyboardInterrupt:
        if len(rows) < 2:
            raise
        status = Status.STOPPED
    mean, error = _mean(np.array(rows))
    return Estimate(float(mean[0]), float(error[0]), mean, error, len(rows), status)


def _mean(rows: Array) -> tuple[Array, Array]:
    if len(rows) < 2:
        return rows.mean(0), np.full(rows.shape[1], math.inf)
    return rows.mean(0), rows.std(0, ddof=1) / math.sqrt(len(rows))


def hutch_pp(
    apply: ApplyMany, probes: Iterator[Tensor], *, samples: int, dimension: int, step: Step = lambda note: None
) -> Estimate:
    """The trace on the range of ``A S`` for a sketch S, exactly, and Hutchinson on what is orthogonal to it.

    Args:
        apply: products with the matrix.
        probes: random vectors of the space, of identity covariance there.
        samples: products in all, a third each for sketch, range and remainder.
        dimension: of the space.
        step: called after each third.
    """
    third = min(max(samples // 3, 2), dimension)
    sketch = apply(_stack(probes, third))
    q = torch.linalg.qr(sketch.mT)[0].mT
    step("sketch")
    on_range = sum(dot(a, b) for a, b in zip(q, apply(q), strict=True))
    step(f"{on_range:.4g} on the range")
    if third == dimension:
        return _estimate(np.array([on_range]), 2 * third, Status.EXACT)
    rest = _stack(probes, third)
    rest = rest - (rest @ q.mT) @ q
    pieces = np.array([dot(a, b) for a, b in zip(rest, apply(rest), strict=True)])
    return _estimate(on_range + pieces, 3 * third, Status.ESTIMATE)


def xtrace(
    apply: ApplyMany, probes: Iterator[Tensor], *, samples: int, dimension: int, step: Step = lambda note: None
) -> Estimate:
    """XTrace with normalised remainders: each vector in turn is left out of the sketch and tests what is left.

    Args:
        apply: products with the matrix.
        probes: Gaussian vectors of the space.
        samples: products in all, half of them for the sketch.
        dimension: of the space.
        step: called after each half.
    """
    m = min(max(samples // 2, 2), dimension)
    omega = _stack(probes, m)
    y = apply(omega)
    step("sketch")
    q, r = torch.linalg.qr(y.mT)  # (size, m), (m, m)
    z = apply(q.mT).mT
    wide = torch.float64
    h, w, t = (a.to(wide) for a in (q.mT @ z, q.mT @ omega.mT, z.mT @ omega.mT))
    forms = torch.tensor([dot(a, b) for a, b in zip(omega, y, strict=True)], dtype=wide, device=h.device)
    lengths = torch.tensor([dot(a, a) for a in omega], dtype=wide, device=h.device)
    trace, s = h.diagonal().sum(), _left_out(r.to(wide))
    x = w - s * (s * w).sum(0)
    remainder = forms - 2 * (x * t).sum(0) + (x * (h @ x)).sum(0)
    free = (lengths - (x * x).sum(0)).clamp_min(torch.finfo(wide).tiny)
    each = trace - (s * (h @ s)).sum(0) + (dimension - m + 1) / free * remainder
    return _estimate(each.cpu().numpy(), 2 * m, Status.ESTIMATE)


def _left_out(r: Tensor) -> Tensor:
    """Column i: the unit vector orthogonal to all columns of R but the i-th."""
    s: Tensor = torch.linalg.pinv(r).mT
    unit: Tensor = s / torch.linalg.vector_norm(s, dim=0).clamp_min(torch.finfo(s.dtype).tiny)
    return unit


def _stack(probes: Iterator[Tensor], count: int) -> Tensor:
    return torch.stack([next(probes) for _ in range(count)])


def _estimate(each: Array, products: int, status: Status) -> Estimate:
    mean, error = _mean(each[:, None])
    error = np.zeros(1) if status is Status.EXACT else error
    return Estimate(float(mean[0]), float(error[0]), mean, error, products, status)
