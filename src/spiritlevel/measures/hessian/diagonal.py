"""The diagonal of the curvature, and the sum of its roots: what Adam is said to reduce."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Euclidean, Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator
from spiritlevel.measures.hessian.run import LayeredMeasurement, Run, check_counts, signs
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine

__all__ = ["DiagonalMethod", "HessianDiagonal", "hessian_diagonal", "root_diagonal_trace"]

DiagonalMethod = Literal["hutchinson", "exact"]
_ROWS = 16  # unit vectors multiplied at once in exact diagonals


@dataclass(frozen=True)
class HessianDiagonal(LayeredMeasurement):
    """The diagonal in coordinates; ``value`` is its sum, the trace.

    Attributes:
        diagonal: one entry for each coordinate (the mean over batches).
        errors: standard error of each entry; None where exact.
        tensors: the entries by parameter, for geometries in which each coordinate is one weight.
    """

    diagonal: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False, compare=False)
    errors: Tensor | None = field(default=None, repr=False, compare=False)
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)


def hessian_diagonal(
    problem: Problem,
    geometry: Geometry,
    *,
    method: DiagonalMethod = "hutchinson",
    samples: int = 100,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    show_progress: bool | None = None,
) -> HessianDiagonal:
    """The diagonal of the curvature in the geometry's coordinates: mean of ``v * Hv`` over signs, or exactly.

    The diagonal depends on the basis: with `Quotient` it is the one of the canonical gauge, the same on the whole orbit
    as long as no two singular values of a head are equal. Costs one gradient and about two for each sample, or for each
    coordinate (``exact``, for small networks).

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        method: ``hutchinson``, or ``exact`` by unit vectors.
        samples: random vectors.
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the random vectors.
        show_progress: force the progress bar on or off.
    """
    run = Run("Hessian diagonal", problem, geometry, over, matrix, engine, samples, show_progress)
    means, errors = _diagonals(run, method, samples, seed)
    for d in means:
        exact = method == "exact"
        run.add(float(d.double().sum()), None if exact else math.nan, Status.EXACT if exact else Status.ESTIMATE)
    if method != "exact":
        run.errors = [float(e.double().norm()) for e in errors]  # the entries' errors, as if independent
    base = run.result(run.facts(run.spent), run.settings(method=method, samples=samples, seed=seed))
    diagonal = torch.stack(means).mean(0)
    layers, shapes = run.chart.layers(), problem.weights
    whole = {
        n: s[0]
        for n, s in layers.items()
        if n in shapes and len(s) == 1 and s[0].stop - s[0].start == shapes[n].numel()
    }
    return HessianDiagonal(
        **base.__dict__,
        diagonal=diagonal,
        errors=None if method == "exact" else torch.stack(errors).pow(2).sum(0).sqrt() / len(errors),
        tensors={n: diagonal[s].view_as(shapes[n]) for n, s in whole.items()},
    )


def _diagonals(run: Run, method: str, samples: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Diagonals and standard errors, one for each operator."""
    check_counts(samples=samples)
    if method not in ("hutchinson", "exact"):
        raise ArgumentError(f"expected method 'hutchinson' or 'exact', got {method!r}")
    if method == "hutchinson" and samples < 2:
        raise ArgumentError(f"expected at least 2 samples, got {samples}")
    means, errors = [], []
    for i, operator in enumerate(run.operators()):
        mean, error = _exact(run, operator) if method == "exact" else _sampled(run, operator, samples, seed + i)
        means.append(mean)
        errors.append(error)
    return means, errors


def _exact(run: Run, operator: HessianOperator) -> tuple[Tensor, Tensor]:
    size = operator.chart.size
    diagonal = operator.chart.zeros()
    for start in range(0, size, _ROWS):
        rows = torch.arange(start, min(start + _ROWS, size), device=diagonal.device)
        unit = diagonal.new_zeros((len(rows), size))
        unit[torch.arange(len(rows)), rows] = 1.0
        diagonal[rows] = operator.apply(unit)[torch.arange(len(rows)), rows]
        run.step(len(rows))(f"{start + len(rows)} of {size} coordinates")
    return diagonal, torch.zeros_like(diagonal)


def _sampled(run: Run, operator: HessianOperator, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Running mean and standard error (Welford)."""
    vectors, block = signs(operator, seed), run.block
    mean, spread, count = operator.chart.zeros(), operator.chart.zeros(), 0
    while count < samples:
        v = torch.stack([next(vectors) for _ in range(min(block, samples - count))])
        for entry in v * operator.apply(v):
            count += 1
            change = entry - mean
            mean += change / count
            spread += change * (entry - mean)
        run.step(len(v))(f"{float(mean.double().sum()):.4g} in sum")
    return mean, (spread / (samples - 1) / samples).sqrt()


def root_diagonal_trace(
    problem: Problem,
    geometry: Geometry | None = None,
    *,
    power: float = 0.5,
    method: DiagonalMethod = "hutchinson",
    samples: int = 100,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """``sum_j H_jj^power``: with power 1/2 the sharpness that Adam reduces, where gradient descent reduces the trace.

    With ``geometry=Elementwise()`` it is ``sum |w_j| sqrt(H_jj)``, which does not change when single weights are
    rescaled; the plain one (`Euclidean`, the default) does. Power ``1 - lambda`` is the measure of AdamE-lambda.

    Entries below 0 count as 0, and their share is in the stats. From samples the roots are biased low (the root is
    concave); the stats give the bias to first order, ``power (1 - power) / 2 * sum H_jj^(power - 2) var_j`` over the
    entries that stand out of their error. ``matrix="gauss_newton"`` has no entries below 0, and equals the Hessian
    where the data are interpolated. Costs as `hessian_diagonal` does.

    Args:
        problem: model, loss and data.
        geometry: whose diagonal; `Euclidean` by default.
        power: of the entries, above 0 and up to 1.
        method: ``hutchinson``, or ``exact`` by unit vectors.
        samples: random vectors.
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the random vectors.
        show_progress: force the progress bar on or off.
    """
    if not 0 < power <= 1:
        raise ArgumentError(f"expected a power above 0 and up to 1, got {power!r}")
    run = Run("root-diagonal trace", problem, geometry or Euclidean(), over, matrix, engine, samples, show_progress)
    means, errors = _diagonals(run, method, samples, seed)
    biases, clamped = [], []
    for d, e in zip(means, errors, strict=True):
        d, variance = d.double(), e.double() ** 2
        run.add(float(d.clamp_min(0).pow(power).sum()), None, Status.EXACT if method == "exact" else Status.ESTIMATE)
        clear = d > 2 * variance.sqrt()
        terms = power * (1 - power) / 2 * d[clear].pow(power - 2) * variance[clear]
        biases.append(-float(terms.sum()))
        clamped.append(float((d < 0).double().mean()))
    stats: dict[str, Any] = {"share of entries below 0": sum(clamped) / len(clamped)}
    if method != "exact":
        stats["bias, to first order"] = sum(biases) / len(biases)
    return run.result(
        {**stats, **run.facts(run.spent)}, run.settings(power=power, method=method, samples=samples, seed=seed)
    )
