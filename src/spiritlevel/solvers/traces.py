"""The trace of a symmetric matrix known by its products, from random vectors, with an error that can be believed.

=============  =====================================================================  =========================
estimator      idea                                                                   products for m vectors
=============  =====================================================================  =========================
`hutchinson`   mean of ``v.Av`` over random signs; also sums over groups              m, stopped by its error
`hutch_pp`     the trace on the range of a sketch exactly, the rest by Hutchinson     m at most, two thirds sketch
`xtrace`       the same with every vector used for both, leaving one out              m at most, half of it sketch
=============  =====================================================================  =========================

The last two pay where few eigenvalues carry the trace (Meyer et al. 2021; Epperly, Tropp and Webber 2024).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.core.spread import dot, same
from spiritlevel.solvers.lanczos import Step

__all__ = ["ApplyMany", "Estimate", "hutch_pp", "hutchinson", "xtrace"]

ApplyMany = Callable[[Tensor], Tensor]
"""Products with each row of ``(count, size)``."""
Reduce = Callable[[Tensor, Tensor], Sequence[float]]
Array = np.ndarray[Any, np.dtype[np.float64]]

_FIRST = 8  # ours: vectors of the first sketch; it doubles from there, so that its algebra stays small beside products


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
            if seconds is not None and same(time.monotonic() - began > seconds):
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
    apply: ApplyMany,
    probes: Iterator[Tensor],
    *,
    samples: int,
    dimension: int,
    tolerance: float = 0.0,
    block: int = 8,
    seconds: float | None = None,
    step: Step = lambda note: None,
) -> Estimate:
    """The trace on the range of ``A S`` for a sketch S, exactly, and Hutchinson on what is orthogonal to it.

    Stopped before the range is known, it falls back on the mean of ``v.Av`` over the vectors of the sketch.

    Args:
        apply: products with the matrix.
        probes: random vectors of the space, of identity covariance there.
        samples: most products, a third each for sketch, range and remainder.
        dimension: of the space.
        tolerance: wanted standard error relative to the value: the remainder ends there.
        block: vectors multiplied in one call.
        seconds: stop after this time with what there is.
        step: called after each block.
    """
    third, limit = min(max(samples // 3, 2), dimension), _Limit(seconds)
    sketch = _Sketch(apply, probes, block, limit, step)
    if not sketch.grow(third):
        return sketch.plain()
    if third == dimension:
        return Estimate(sketch.range_trace, 0.0, *_exactly(sketch.range_trace), sketch.products, Status.EXACT)
    q = sketch.q

    def remainder() -> Iterator[Tensor]:
        while True:
            v = next(probes)
            yield v - (q @ v) @ q

    rest = hutchinson(
        apply,
        remainder(),
        tolerance=tolerance,
        samples=max(samples - sketch.products, 2),
        block=block,
        reduce=lambda v, av: (sketch.range_trace + dot(v, av),),
        seconds=limit.left,
        step=step,
    )
    return replace(rest, products=rest.products + sketch.products)


def xtrace(
    apply: ApplyMany,
    probes: Iterator[Tensor],
    *,
    samples: int,
    dimension: int,
    tolerance: float = 0.0,
    block: int = 8,
    seconds: float | None = None,
    step: Step = lambda note: None,
) -> Estimate:
    """XTrace with normalised remainders: each vector in turn is left out of the sketch and tests what is left.

    The sketch grows until the standard error is small enough; no product is lost by that. Stopped early, it falls back
    on the last sketch that was complete, and before that on the mean of ``v.Av``.

    Args:
        apply: products with the matrix.
        probes: Gaussian vectors of the space.
        samples: most products, half of them for the sketch.
        dimension: of the space.
        tolerance: wanted standard error relative to the value.
        block: vectors multiplied in one call.
        seconds: stop after this time with what there is.
        step: called after each block.
    """
    best, limit = None, _Limit(seconds)
    sketch = _Sketch(apply, probes, block, limit, step)
    most = min(max(samples // 2, 2), dimension)
    while sketch.size < most:
        if not sketch.grow(min(max(sketch.size, _FIRST), most - sketch.size)):
            return sketch.plain() if best is None else replace(best, products=sketch.products, status=limit.status)
        if sketch.size == dimension:
            return Estimate(sketch.range_trace, 0.0, *_exactly(sketch.range_trace), sketch.products, Status.EXACT)
        if sketch.deficient:
            nothing = _exactly(sketch.range_trace)
            return Estimate(sketch.range_trace, 0.0, *nothing, sketch.products, Status.CONVERGED)
        mean, error = _mean(_left_out_estimates(sketch, dimension)[:, None])
        reached = error[0] <= tolerance * abs(mean[0])
        status = Status.CONVERGED if reached else Status.ESTIMATE
        best = Estimate(float(mean[0]), float(error[0]), mean, error, sketch.products, status)
        limit.note = f"{best.value:.4g} ± {best.error:.2g}"
        if reached:
            break
    assert best is not None
    return best


class _Limit:
    """Time that is left, and why there is none."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.status = Status.BUDGET
        self.note = "sketch"

    @property
    def left(self) -> float | None:
        """Seconds."""
        return None if self._end is None else self._end - time.monotonic()


class _Sketch:
    """Random vectors, their products, an orthonormal basis of those, and the products of the basis.

    Attributes:
        q: the basis, one row for each vector.
        range_trace: the trace of the matrix on its span.
        products: how many were made.
    """

    def __init__(self, apply: ApplyMany, probes: Iterator[Tensor], block: int, limit: _Limit, step: Step) -> None:
        self._apply, self._probes, self._block, self._limit, self._step = apply, probes, block, limit, step
        self._rows: dict[str, list[Tensor]] = {"omega": [], "y": [], "q": [], "z": []}
        self.products = 0

    @property
    def size(self) -> int:
        """Vectors of the complete sketch."""
        return len(self._rows["z"])

    def __getitem__(self, name: str) -> Tensor:
        return torch.stack(self._rows[name][: self.size])

    @property
    def q(self) -> Tensor:
        return self["q"]

    @property
    def range_trace(self) -> float:
        return math.fsum(dot(q, z) for q, z in zip(self._rows["q"], self._rows["z"], strict=False))

    @property
    def deficient(self) -> bool:
        """Whether the products depend on each other: then they span the whole range of the matrix."""
        pivots = torch.tensor([abs(dot(q, y)) for q, y in zip(self["q"], self["y"], strict=True)])
        return bool(pivots.min() <= 64 * torch.finfo(self._rows["y"][0].dtype).eps * pivots.max())

    def grow(self, count: int) -> bool:
        """So many vectors more; False where time or patience ended before."""
        omega, y, q, z = (self._rows[n] for n in ("omega", "y", "q", "z"))
        try:
            while len(y) < self.size + count:
                fresh = _stack(self._probes, min(self._block, self.size + count - len(y)))
                products = self._multiplied(fresh)
                omega.extend(fresh)
                y.extend(products)
                if self._out_of_time():
                    return False
            q.extend(_orthonormal(torch.stack(y[len(q) :]), torch.stack(q) if q else None))
            new: list[Tensor] = []
            for rows in torch.stack(q[len(z) :]).split(self._block):
                new.extend(self._multiplied(rows))
                if self._out_of_time() and len(z) + len(new) < len(q):
                    return False
            z.extend(new)
        except KeyboardInterrupt:
            if len(y) < 2:
                raise
            self._limit.status = Status.STOPPED
            return False
        return True

    def _multiplied(self, rows: Tensor) -> Tensor:
        products = self._apply(rows)
        self.products += len(rows)
        self._step(self._limit.note)
        return products

    def _out_of_time(self) -> bool:
        return self._limit.left is not None and same(self._limit.left <= 0) and len(self._rows["y"]) >= 2

    def plain(self) -> Estimate:
        """The mean of ``v.Av`` over the vectors there are."""
        pairs = zip(self._rows["omega"], self._rows["y"], strict=False)
        mean, error = _mean(np.array([[dot(v, av)] for v, av in pairs]))
        return Estimate(float(mean[0]), float(error[0]), mean, error, self.products, self._limit.status)


def _orthonormal(y: Tensor, before: Tensor | None) -> Tensor:
    """Rows that extend an orthonormal basis to the span of ``y``."""
    if before is not None:
        for _ in range(2):
            y = y - (y @ before.mT) @ before
    q: Tensor = torch.linalg.qr(y.mT)[0].mT
    if before is not None:  # rows that were nothing but rounding come out along the old ones
        q = torch.linalg.qr((q - (q @ before.mT) @ before).mT)[0].mT
    return q


def _exactly(value: float) -> tuple[Array, Array]:
    return np.array([value]), np.zeros(1)


def _left_out_estimates(sketch: _Sketch, dimension: int) -> Array:
    """One estimate for each vector, from the sketch without it (Epperly et al. 2024, Alg. 2.1, in this basis)."""
    omega, y, q, z = (sketch[n] for n in ("omega", "y", "q", "z"))
    wide, m = torch.float64, sketch.size
    h, w, t, r = (a.to(wide) for a in (q @ z.mT, q @ omega.mT, z @ omega.mT, q @ y.mT))
    forms = torch.tensor([dot(a, b) for a, b in zip(omega, y, strict=True)], dtype=wide, device=h.device)
    lengths = torch.tensor([dot(a, a) for a in omega], dtype=wide, device=h.device)
    trace, s = h.diagonal().sum(), _left_out(r)
    x = w - s * (s * w).sum(0)
    remainder = forms - 2 * (x * t).sum(0) + (x * (h @ x)).sum(0)
    free = (lengths - (x * x).sum(0)).clamp_min(torch.finfo(wide).tiny)
    each: Array = (trace - (s * (h @ s)).sum(0) + (dimension - m + 1) / free * remainder).cpu().numpy()
    return each


def _left_out(r: Tensor) -> Tensor:
    """Column i: the unit vector orthogonal to all columns of R but the i-th."""
    s: Tensor = torch.linalg.pinv(r).mT
    unit: Tensor = s / torch.linalg.vector_norm(s, dim=0).clamp_min(torch.finfo(s.dtype).tiny)
    return unit


def _stack(probes: Iterator[Tensor], count: int) -> Tensor:
    return torch.stack([next(probes) for _ in range(count)])
