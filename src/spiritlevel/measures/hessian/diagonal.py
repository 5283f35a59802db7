"""The diagonal of the curvature, and the sum of its roots: what Adam is said to reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Euclidean, Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator, PerLayer
from spiritlevel.measures.hessian.run import Found, How, LayeredMeasurement, Run, check_counts, signs
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
    per_layer: PerLayer = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
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
        per_layer: also for each layer, from the same products; a function of the layer's name joins layers to groups
            (`by_block`).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the random vectors.
        seconds: stop after this time with what there is (``hutchinson`` only).
        show_progress: force the progress bar on or off.
    """
    how = How(matrix, engine, over, seed, seconds, show_progress)
    problem.need_whole("the diagonal")
    run = Run("Hessian diagonal", problem, geometry, how, samples, per_layer)
    found = _diagonals(run, method, samples, lambda d, e: (_sum(d), float(e.double().norm())))
    base = run.result({}, {"method": method, "samples": samples})
    diagonal = torch.stack([f.detail[0] for f in found]).mean(0)
    errors = torch.stack([f.detail[1] for f in found]).pow(2).sum(0).sqrt() / len(found)
    layers, shapes = run.chart.layers(), problem.weights
    whole = {
        n: s[0]
        for n, s in layers.items()
        if n in shapes and len(s) == 1 and s[0].stop - s[0].start == shapes[n].numel()
    }
    return HessianDiagonal(
        **base.__dict__,
        diagonal=diagonal,
        errors=None if method == "exact" else errors,
        tensors={n: diagonal[s].view_as(shapes[n]) for n, s in whole.items()},
    )


def _sum(x: Tensor) -> float:
    return float(x.double().sum())


def _diagonals(
    run: Run, method: str, samples: int, measure: Callable[[Tensor, Tensor], tuple[float, float | None]]
) -> list[Found]:
    """Diagonals and their standard errors, with what is measured of them: of all coordinates, and of each layer's."""
    check_counts(samples=samples)
    if method not in ("hutchinson", "exact"):
        raise ArgumentError(f"expected method 'hutchinson' or 'exact', got {method!r}")
    if method == "hutchinson" and samples < 2:
        raise ArgumentError(f"expected at least 2 samples, got {samples}")

    def one(operator: HessianOperator, seed: int) -> Found:
        find = _exact if method == "exact" else _sampled
        mean, error, status, products = find(run, operator, samples, seed)

        def measured(stretches: tuple[slice, ...], products: int, detail: Any) -> Found:
            value, uncertain = measure(*(torch.cat([x[s] for s in stretches]) for x in (mean, error)))
            return Found(value, None if status is Status.EXACT else uncertain, status, products, detail)

        layers = {n: measured(g.stretches, 0, None) for n, g in run.groups.items()}
        return replace(measured((slice(None),), products, (mean, error)), layers=layers)

    return run.measure(one, split=False)


def _exact(run: Run, operator: HessianOperator, samples: int, seed: int) -> tuple[Tensor, Tensor, Status, int]:
    del samples, seed
    size = operator.chart.size
    diagonal = operator.chart.zeros()
    for start in range(0, size, _ROWS):
        rows = torch.arange(start, min(start + _ROWS, size), device=diagonal.device)
        unit = diagonal.new_zeros((len(rows), size))
        unit[torch.arange(len(rows)), rows] = 1.0
        diagonal[rows] = operator.apply(unit)[torch.arange(len(rows)), rows]
        run.step(len(rows))(f"{start + len(rows)} of {size} coordinates")
    return diagonal, torch.zeros_like(diagonal), Status.EXACT, size


def _sampled(run: Run, operator: HessianOperator, samples: int, seed: int) -> tuple[Tensor, Tensor, Status, int]:
    """Running mean and standard error (Welford)."""
    vectors, block = signs(operator, seed), run.block
    mean, spread, count, status = operator.chart.zeros(), operator.chart.zeros(), 0, Status.ESTIMATE
    try:
        while count < samples:
            v = torch.stack([next(vectors) for _ in range(min(block, samples - count))])
            for entry in v * operator.apply(v):
                count += 1
                change = entry - mean
                mean = mean + change / count  # new tensors: an interrupt in between leaves both as they were
                spread = spread + change * (entry - mean)
            run.step(len(v))(f"{_sum(mean):.4g} in sum")
            if run.left is not None and run.left <= 0 and 2 <= count < samples:
                status = Status.BUDGET
                break
    except KeyboardInterrupt:
        if count < 2:
            raise
        status = Status.STOPPED
    return mean, (spread / (count - 1) / count).sqrt(), status, count


def root_diagonal_trace(
    problem: Problem,
    geometry: Geometry | None = None,
    *,
    power: float = 0.5,
    method: DiagonalMethod = "hutchinson",
    samples: int = 100,
    per_layer: PerLayer = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
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
        per_layer: also for each layer, from the same products; a function of the layer's name joins layers to groups
            (`by_block`).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the random vectors.
        seconds: stop after this time with what there is (``hutchinson`` only).
        show_progress: force the progress bar on or off.
    """
    if not 0 < power <= 1:
        raise ArgumentError(f"expected a power above 0 and up to 1, got {power!r}")
    how = How(matrix, engine, over, seed, seconds, show_progress)
    problem.need_whole("the diagonal")
    run = Run("root-diagonal trace", problem, geometry or Euclidean(), how, samples, per_layer)

    def roots(d: Tensor, e: Tensor) -> tuple[float, float]:
        d, e = d.double(), e.double()
        clear = d > 2 * e  # the slope of the root explodes at 0
        return _sum(d.clamp_min(0).pow(power)), float((power * d[clear].pow(power - 1) * e[clear]).norm())

    found = _diagonals(run, method, samples, roots)
    stats: dict[str, Any] = {"share of entries below 0": fmean(_sum(f.detail[0] < 0) / run.chart.size for f in found)}
    if method != "exact":
        stats["bias, to first order"] = fmean(_bias(f.detail[0], f.detail[1], power) for f in found)
    return run.result(stats, {"power": power, "method": method, "samples": samples})


def _bias(diagonal: Tensor, error: Tensor, power: float) -> float:
    """Of the sum of powers, from the entries that stand out of their error."""
    d, e = diagonal.double(), error.double()
    clear = d > 2 * e
    return -power * (1 - power) / 2 * _sum(d[clear].pow(power - 2) * e[clear] ** 2)
