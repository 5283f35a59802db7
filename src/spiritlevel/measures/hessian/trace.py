"""The trace of the curvature, and the norm that the same products give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from torch import Tensor

from spiritlevel.core import tensors
from spiritlevel.core.spread import dot, total
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator, PerLayer
from spiritlevel.measures.hessian.run import Found, How, LayeredMeasurement, Run, check_counts, directions, signs
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine
from spiritlevel.solvers import Estimate, hutch_pp, hutchinson, xtrace

__all__ = ["Method", "hessian_norm", "hessian_trace"]

Method = Literal["hutchinson", "hutch++", "xtrace"]


def hessian_trace(
    problem: Problem,
    geometry: Geometry,
    *,
    samples: int = 100,
    tolerance: float = 0.02,
    method: Method = "hutchinson",
    per_layer: PerLayer = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """The trace of the Riemannian Hessian on the horizontal space: average curvature times dimension.

    Each estimator stops when its standard error is below ``tolerance`` times the value (never by a change of the
    running mean, which stops by chance), or after ``samples`` products. ``hutchinson`` is the mean of ``v.Hv`` over
    random signs; ``hutch++`` and ``xtrace`` have smaller errors where few eigenvalues carry the trace, and keep as many
    vectors of the size of the weights as they make products.

    Invariant under whatever the geometry is invariant under. Costs one gradient and about two for each product.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        samples: most products.
        tolerance: wanted standard error relative to the value; 0 for all samples.
        method: the estimator.
        per_layer: also the trace of each layer's diagonal block: with ``hutchinson`` from the same products, otherwise
            by a run for each. A function of the layer's name joins layers to groups (`by_block`).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the random vectors.
        seconds: stop after this time with what there is.
        show_progress: force the progress bar on or off.
    """
    check_counts(samples=samples)
    if not tolerance >= 0:
        raise ArgumentError(f"expected a tolerance from 0 on, got {tolerance!r}")
    if method not in _ESTIMATORS:
        raise ArgumentError(f"expected method 'hutchinson', 'hutch++' or 'xtrace', got {method!r}")
    if method != "hutchinson":
        problem.need_whole(f"method={method!r}")
    how = How(matrix, engine, over, seed, seconds, show_progress)
    run = Run("Hessian trace", problem, geometry, how, samples, per_layer)
    estimator = _ESTIMATORS[method]
    run.measure(lambda o, s: estimator(run, o, s, samples, float(tolerance)), split=method != "hutchinson")
    return run.result({}, {"method": method, "samples": samples, "tolerance": tolerance})


def _hutchinson(run: Run, operator: HessianOperator, seed: int, samples: int, tolerance: float) -> Found:
    """The trace, and that of each layer from the same products."""
    groups = run.groups

    def reduce(v: Tensor, hv: Tensor) -> list[float]:
        inside = (math.fsum(tensors.dot(v[s], hv[s]) for s in g.stretches) for g in groups.values())
        found: list[float] = total(np.array([tensors.dot(v, hv), *inside])).tolist()
        return found

    block = run.block
    e = hutchinson(
        operator.apply,
        signs(operator, seed),
        tolerance=tolerance,
        samples=samples,
        block=block,
        reduce=reduce,
        seconds=run.left,
        step=run.step(block),
    )
    parts = zip(groups, e.values[1:], e.errors[1:], strict=True)
    layers = {n: Found(float(v), float(x), e.status, 0) for n, v, x in parts}
    return Found(e.value, e.error, e.status, e.products, layers=layers)


def _sketched(
    estimate: Callable[..., Estimate],
) -> Callable[[Run, HessianOperator, int, int, float], Found]:
    def found(run: Run, operator: HessianOperator, seed: int, samples: int, tolerance: float) -> Found:
        e = estimate(
            operator.apply,
            directions(operator, seed),
            tolerance=tolerance,
            samples=samples,
            dimension=operator.dimension,
            block=run.block,
            seconds=run.left,
            step=run.step(run.block),
        )
        return Found(e.value, e.error, e.status, e.products)

    return found


_ESTIMATORS: Mapping[str, Callable[[Run, HessianOperator, int, int, float], Found]] = {
    "hutchinson": _hutchinson,
    "hutch++": _sketched(hutch_pp),
    "xtrace": _sketched(xtrace),
}


def hessian_norm(
    problem: Problem,
    geometry: Geometry,
    *,
    samples: int = 100,
    tolerance: float = 0.05,
    per_layer: PerLayer = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """The Frobenius norm ``sqrt(tr H^2)`` of the Riemannian Hessian, from the mean of ``|Hv|^2`` over random signs.

    Invariant under whatever the geometry is invariant under. Costs one gradient and about two for each product. The
    arguments are those of `hessian_trace`; the norm of each layer's diagonal block takes a run of its own.
    """
    check_counts(samples=samples)
    if not tolerance >= 0:
        raise ArgumentError(f"expected a tolerance from 0 on, got {tolerance!r}")
    how = How(matrix, engine, over, seed, seconds, show_progress)
    run = Run("Hessian Frobenius norm", problem, geometry, how, samples, per_layer)

    def norm(operator: HessianOperator, seed: int) -> Found:
        e = hutchinson(
            operator.apply,
            signs(operator, seed),
            tolerance=2.0 * tolerance,  # of the square
            samples=samples,
            block=run.block,
            reduce=lambda _, hv: (dot(hv, hv),),
            seconds=run.left,
            step=run.step(run.block),
        )
        root = math.sqrt(e.value)
        return Found(root, e.error / (2 * root) if root else 0.0, e.status, e.products)

    run.measure(norm)
    return run.result({}, {"samples": samples, "tolerance": tolerance})
