"""Functions of the whole spectrum by stochastic Lanczos quadrature: density, log-determinant, effective dimension."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from spiritlevel.errors import ArgumentError, DerivativeError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator, PerLayer
from spiritlevel.measures.hessian.run import Found, How, LayeredMeasurement, Run, check_counts, directions, settled
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine
from spiritlevel.solvers import Quadrature, quadrature

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Density", "effective_dimension", "hessian_density", "hessian_logdet", "spectrum_of"]

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Density(LayeredMeasurement):
    """The spectral density; ``value`` is the mean eigenvalue, trace over dimension.

    Attributes:
        quadratures: nodes and weights, one for each operator.
        grid: eigenvalues at which the smoothed density is given.
        density: there; it integrates to 1.
        density_error: its standard error over probes.
        width: of the Gaussian each node is smoothed with.
    """

    quadratures: tuple[Quadrature, ...] = ()
    grid: tuple[float, ...] = ()
    density: tuple[float, ...] = ()
    density_error: tuple[float, ...] = ()
    width: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON, with nodes and weights of each probe."""
        probes = [p for q in self.quadratures for p in _plain(q)]
        own = {k: list(getattr(self, k)) for k in ("grid", "density", "density_error")}
        return {**super().to_dict(), **own, "width": self.width, "probes": probes}

    @property
    def drawable(self) -> bool:
        """Whether there is a figure of it."""
        return True

    def figure(self) -> Figure:
        """The density on a logarithmic scale, with its error."""
        from spiritlevel.measures.hessian.figures import density_figure

        return density_figure(self)


def spectrum_of(
    run: Run, steps: int, probes: int, f: Callable[[Array], Array]
) -> Callable[[HessianOperator, int], Found]:
    """What finds the quadrature of one matrix, with ``tr f`` of it as value."""

    def found(operator: HessianOperator, seed: int) -> Found:
        q = quadrature(
            lambda v: operator.project(operator.apply(v)),
            itertools.islice(directions(operator, seed), probes),
            steps,
            operator.dimension,
            seconds=run.left,
            step=run.step(),
        )
        return Found(*q.trace(f), q.status, q.products, q)

    return found


def hessian_density(
    problem: Problem,
    geometry: Geometry,
    *,
    steps: int = 40,
    probes: int = 1,
    points: int = 512,
    width: float | None = None,
    per_layer: PerLayer = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> Density:
    """The density of the eigenvalues of the Riemannian Hessian on the horizontal space.

    Lanczos quadrature from ``probes`` random directions, ``steps`` products each, fully reorthogonalised. The nodes and
    weights come with the result; the curve smooths each node with a Gaussian of the stated width.

    Invariant under whatever the geometry is invariant under. Costs one gradient and about two for each of
    ``steps * probes`` products.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        steps: Lanczos steps: details finer than about range / steps are not resolved.
        probes: random directions; two or more give errors.
        points: of the grid.
        width: standard deviation of the smoothing; by default 1 % of the range of the nodes.
        per_layer: also for each layer's diagonal block, by a run for each; a function of the layer's name joins layers
            to groups (`by_block`).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the probes.
        seconds: stop after this time with what there is.
        show_progress: force the progress bar on or off.
    """
    check_counts(steps=steps, probes=probes, points=points)
    if width is not None and not (width > 0 and math.isfinite(width)):
        raise ArgumentError(f"expected a width above 0, got {width!r}")
    how = How(matrix, engine, over, seed, seconds, show_progress)
    run = Run("Hessian spectral density", problem, geometry, how, steps * probes, per_layer)

    def mean(operator: HessianOperator, seed: int) -> Found:
        one = spectrum_of(run, steps, probes, lambda x: x)(operator, seed)
        n = operator.dimension
        return replace(one, value=one.value / n, error=None if one.error is None else one.error / n)

    found: list[Quadrature] = [x.detail for x in run.measure(mean)]
    low, high = min(q.extremes[0] for q in found), max(q.extremes[1] for q in found)
    spread = width or 0.01 * (high - low) or max(abs(high), 1.0) * 1e-3
    grid = np.linspace(low - 4 * spread, high + 4 * spread, points)
    curves = np.array([_smoothed(grid, x, w, spread) for q in found for x, w in zip(q.nodes, q.weights, strict=True)])
    error_curve = curves.std(0, ddof=1) / math.sqrt(len(curves)) if len(curves) > 1 else np.full(points, math.nan)
    base = run.result(
        {"smallest node": low, "largest node": high, "mass below 0": _mass_below(found)},
        {"steps": steps, "probes": probes, "width": spread},
        run.layers(lambda each: _spectrum_details([x.detail for x in each])),
    )
    return Density(
        **base.__dict__,
        quadratures=tuple(found),
        grid=tuple(grid.tolist()),
        density=tuple(curves.mean(0).tolist()),
        density_error=tuple(error_curve.tolist()) if len(curves) > 1 else (),
        width=spread,
    )


def _spectrum_details(each: list[Quadrature]) -> dict[str, Any]:
    """Where the eigenvalues of a layer lie."""
    return {
        "smallest node": min(q.extremes[0] for q in each),
        "largest node": max(q.extremes[1] for q in each),
        "mass below 0": _mass_below(each),
        "probes": [p for q in each for p in _plain(q)],
    }


def _plain(q: Quadrature) -> list[dict[str, list[float]]]:
    """Nodes and weights of each probe."""
    return [{"nodes": x.tolist(), "weights": w.tolist()} for x, w in zip(q.nodes, q.weights, strict=True)]


def _smoothed(grid: Array, nodes: Array, weights: Array, width: float) -> Array:
    bells: Array = np.exp(-0.5 * ((grid[:, None] - nodes) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    curve: Array = bells @ weights
    return curve


def _mass_below(found: list[Quadrature]) -> float:
    """Share of the eigenvalues below 0, as far as the nodes tell."""
    each = [float(w[x < 0].sum()) for q in found for x, w in zip(q.nodes, q.weights, strict=True)]
    return sum(each) / len(each)


def _functional(
    name: str,
    f: Callable[[Array], Array],
    problem: Problem,
    geometry: Geometry,
    steps: int,
    probes: int,
    per_layer: PerLayer,
    how: How,
    own: dict[str, Any],
) -> LayeredMeasurement:
    """``tr f(H)``, with the change that the last third of the Lanczos steps made."""
    check_counts(steps=steps, probes=probes)
    run = Run(name, problem, geometry, how, steps * probes, per_layer)
    found = run.measure(spectrum_of(run, steps, probes, f))
    shorter = [x.detail.shortened().trace(f)[0] for x in found]
    change = abs(fmean(x.value for x in found) - fmean(shorter))
    return settled(run.result({}, {**own, "steps": steps, "probes": probes}), change)


def hessian_logdet(
    problem: Problem,
    geometry: Geometry,
    *,
    damping: float = 1.0,
    absolute: bool = False,
    steps: int = 40,
    probes: int = 5,
    per_layer: PerLayer = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """``log det(H + damping)`` on the horizontal space, by stochastic Lanczos quadrature.

    Invariant under whatever the geometry is invariant under. Costs as `hessian_density` does. The logarithm bends most
    where many eigenvalues lie (at 0, with a small damping): where the last third of the steps still changes the value
    by more than its standard error, the status is ``budget``, and more ``steps`` help.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        damping: added to each eigenvalue, in the units of the curvature (a prior precision, for evidence).
        absolute: take ``|lambda| + damping``; otherwise an eigenvalue at or below ``-damping`` is an error.
        steps: Lanczos steps for each probe.
        probes: random directions; two or more give an error bar.
        per_layer: also for each layer's diagonal block, by a run for each; a function of the layer's name joins layers
            to groups (`by_block`).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the probes.
        seconds: stop after this time with what there is.
        show_progress: force the progress bar on or off.
    """
    if not (damping > 0 and math.isfinite(damping)):
        raise ArgumentError(f"expected a damping above 0, got {damping!r}: eigenvalues of 0 have no logarithm")

    def f(x: Array) -> Array:
        if not absolute and float(x.min()) <= -damping:
            raise DerivativeError(
                f"expected eigenvalues above {-damping:g} (minus the damping), got {x.min():.4g}: take a larger "
                "damping, absolute=True, or matrix='gauss_newton', which has none below 0"
            )
        logs: Array = np.log((np.abs(x) if absolute else x) + damping)
        return logs

    how = How(matrix, engine, over, seed, seconds, show_progress)
    own = {"damping": damping, "absolute": absolute}
    return _functional("Hessian log-determinant", f, problem, geometry, steps, probes, per_layer, how, own)


def effective_dimension(
    problem: Problem,
    geometry: Geometry,
    *,
    damping: float = 1.0,
    steps: int = 40,
    probes: int = 5,
    per_layer: PerLayer = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """``sum |lambda| / (|lambda| + damping)``: how many directions are curved by more than the damping.

    Negative eigenvalues count by their magnitude. Invariant under whatever the geometry is invariant under. Costs as
    `hessian_density` does. The arguments are those of `hessian_logdet`.
    """
    if not (damping > 0 and math.isfinite(damping)):
        raise ArgumentError(f"expected a damping above 0, got {damping!r}")
    how = How(matrix, engine, over, seed, seconds, show_progress)

    def f(x: Array) -> Array:
        shares: Array = np.abs(x) / (np.abs(x) + damping)
        return shares

    own = {"damping": damping}
    return _functional("effective dimension", f, problem, geometry, steps, probes, per_layer, how, own)
