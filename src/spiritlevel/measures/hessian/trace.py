"""The trace of the curvature, and the norm that the same products give."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from torch import Tensor

from spiritlevel.core.tensors import dot
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator
from spiritlevel.measures.hessian.run import Layer, LayeredMeasurement, Run, check_counts, directions, signs
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
    per_layer: bool = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """The trace of the Riemannian Hessian on the horizontal space: average curvature times dimension.

    ``hutchinson`` means ``v.Hv`` over random signs and stops when the standard error is below ``tolerance`` times the
    value (never by a change of the running mean, which stops by chance); ``hutch++`` and ``xtrace`` take all
    ``samples`` products and have smaller errors where few eigenvalues carry the trace.

    Invariant under whatever the geometry is invariant under. Costs one gradient and about two for each product.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        samples: most products.
        tolerance: wanted standard error relative to the value (``hutchinson`` only); 0 for all samples.
        method: the estimator.
        per_layer: also the trace of each layer's diagonal block, from the same products (``hutchinson`` only).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the random vectors.
        seconds: stop after this time with what there is (``hutchinson`` only).
        show_progress: force the progress bar on or off.
    """
    check_counts(samples=samples)
    if not tolerance >= 0:
        raise ArgumentError(f"expected a tolerance from 0 on, got {tolerance!r}")
    if method not in ("hutchinson", "hutch++", "xtrace"):
        raise ArgumentError(f"expected method 'hutchinson', 'hutch++' or 'xtrace', got {method!r}")
    if per_layer and method != "hutchinson":
        raise ArgumentError(f"expected method='hutchinson' for per_layer=True, got {method!r}")
    run = Run("Hessian trace", problem, geometry, over, matrix, engine, samples, show_progress)
    found: list[Estimate] = []
    for i, operator in enumerate(run.operators()):
        if method == "hutchinson":
            estimate = _hutchinson(run, operator, samples, tolerance, seed + i, per_layer, seconds)
        else:
            third = {"hutch++": 3, "xtrace": 2}[method]
            estimate = {"hutch++": hutch_pp, "xtrace": xtrace}[method](
                operator.apply,
                directions(operator, seed + i),
                samples=samples,
                dimension=operator.dimension,
                step=run.step(samples // third),
            )
        found.append(estimate)
        run.add(estimate.value, estimate.error, estimate.status)
    return run.result(
        run.facts(sum(e.products for e in found)),
        run.settings(method=method, samples=samples, tolerance=tolerance, seed=seed),
        _layers(run, found) if per_layer else (),
    )


def _hutchinson(
    run: Run,
    operator: HessianOperator,
    samples: int,
    tolerance: float,
    seed: int,
    per_layer: bool,
    seconds: float | None,
) -> Estimate:
    layers = list(operator.chart.layers().values()) if per_layer else []

    def reduce(v: Tensor, hv: Tensor) -> list[float]:
        return [dot(v, hv), *(math.fsum(dot(v[s], hv[s]) for s in stretches) for stretches in layers)]

    block = run.block
    return hutchinson(
        operator.apply,
        signs(operator, seed),
        tolerance=tolerance,
        samples=samples,
        block=block,
        reduce=reduce,
        seconds=seconds,
        step=run.step(block),
    )


def _layers(run: Run, found: list[Estimate]) -> list[Layer]:
    values = np.mean([e.values[1:] for e in found], axis=0)
    errors = np.sqrt(np.sum([e.errors[1:] ** 2 for e in found], axis=0)) / len(found)
    sizes = {n: sum(s.stop - s.start for s in stretches) for n, stretches in run.chart.layers().items()}
    return [Layer(n, float(v), float(e), size) for (n, size), v, e in zip(sizes.items(), values, errors, strict=True)]


def hessian_norm(
    problem: Problem,
    geometry: Geometry,
    *,
    samples: int = 100,
    tolerance: float = 0.05,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """The Frobenius norm ``sqrt(tr H^2)`` of the Riemannian Hessian, from the mean of ``|Hv|^2`` over random signs.

    Invariant under whatever the geometry is invariant under. Costs one gradient and about two for each product. The
    arguments are those of `hessian_trace`.
    """
    check_counts(samples=samples)
    run = Run("Hessian Frobenius norm", problem, geometry, over, matrix, engine, samples, show_progress)
    products = 0
    for i, operator in enumerate(run.operators()):
        estimate = hutchinson(
            operator.apply,
            signs(operator, seed + i),
            tolerance=2 * tolerance,  # of the square
            samples=samples,
            block=run.block,
            reduce=lambda _, hv: (dot(hv, hv),),
            seconds=seconds,
            step=run.step(run.block),
        )
        products += estimate.products
        norm = math.sqrt(estimate.value)
        run.add(norm, estimate.error / (2 * norm) if norm else 0.0, estimate.status)
    return run.result(run.facts(products), run.settings(samples=samples, tolerance=tolerance, seed=seed))
