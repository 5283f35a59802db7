"""Functions of the whole spectrum by stochastic Lanczos quadrature: density, log-determinant, effective dimension."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spiritlevel.errors import ArgumentError, DerivativeError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator
from spiritlevel.measures.hessian.run import LayeredMeasurement, Run, check_counts, directions
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
        probes = [
            {"nodes": x.tolist(), "weights": w.tolist()}
            for q in self.quadratures
            for x, w in zip(q.nodes, q.weights, strict=True)
        ]
        own = {k: list(getattr(self, k)) for k in ("grid", "density", "density_error")}
        return {**super().to_dict(), **own, "width": self.width, "probes": probes}

    def figure(self) -> Figure:
        """The density on a logarithmic scale, with its error."""
        from spiritlevel.measures.hessian.figures import density_figure

        return density_figure(self)


def spectrum_of(
    run: Run, operator: HessianOperator, steps: int, probes: int, seed: int, seconds: float | None = None
) -> Quadrature:
    """Gauss quadrature of one operator's spectrum."""
    return quadrature(
        lambda v: operator.inside(operator.chart.project(operator.apply(v))),
        itertools.islice(directions(operator, seed), probes),
        steps,
        operator.dimension,
        seconds=seconds,
        step=run.step(),
    )


def hessian_density(
    problem: Problem,
    geometry: Geometry,
    *,
    steps: int = 40,
    probes: int = 1,
    points: int = 512,
    width: float | None = None,
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
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the probes.
        seconds: start no further probe after this time.
        show_progress: force the progress bar on or off.
    """
    check_counts(steps=steps, probes=probes, points=points)
    if width is not None and not (width > 0 and math.isfinite(width)):
        raise ArgumentError(f"expected a width above 0, got {width!r}")
    run = Run("Hessian spectral density", problem, geometry, over, matrix, engine, steps * probes, show_progress)
    found: list[Quadrature] = []
    for i, operator in enumerate(run.operators()):
        found.append(q := spectrum_of(run, operator, steps, probes, seed + i, seconds))
        value, error = q.trace(lambda x: x / q.dimension)
        run.add(value, error, q.status)
    low, high = min(q.extremes[0] for q in found), max(q.extremes[1] for q in found)
    spread = width or 0.01 * (high - low) or max(abs(high), 1.0) * 1e-3
    grid = np.linspace(low - 4 * spread, high + 4 * spread, points)
    curves = np.array([_smoothed(grid, x, w, spread) for q in found for x, w in zip(q.nodes, q.weights, strict=True)])
    error_curve = curves.std(0, ddof=1) / math.sqrt(len(curves)) if len(curves) > 1 else np.full(points, math.nan)
    base = run.result(
        {
            "smallest node": low,
            "largest node": high,
            "mass below 0": _mass_below(found),
            **run.facts(sum(q.products for q in found)),
        },
        run.settings(steps=steps, probes=probes, width=spread, seed=seed),
    )
    return Density(
        **base.__dict__,
        quadratures=tuple(found),
        grid=tuple(grid.tolist()),
        density=tuple(curves.mean(0).tolist()),
        density_error=tuple(error_curve.tolist()) if len(curves) > 1 else (),
        width=spread,
    )


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
    matrix: Matrix,
    engine: Engine,
    over: Over,
    seed: int,
    seconds: float | None,
    show_progress: bool | None,
    own: dict[str, Any],
) -> LayeredMeasurement:
    """``tr f(H)``, with the change that the last third of the Lanczos steps made."""
    check_counts(steps=steps, probes=probes)
    run = Run(name, problem, geometry, over, matrix, engine, steps * probes, show_progress)
    products = 0
    for i, operator in enumerate(run.operators()):
        q = spectrum_of(run, operator, steps, probes, seed + i, seconds)
        products += q.products
        value, error = q.trace(f)
        run.add(value, error, q.status)
    return run.result(run.facts(products), run.settings(**own, steps=steps, probes=probes, seed=seed))


def hessian_logdet(
    problem: Problem,
    geometry: Geometry,
    *,
    damping: float = 1.0,
    absolute: bool = False,
    steps: int = 40,
    probes: int = 5,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> LayeredMeasurement:
    """``log det(H + damping)`` on the horizontal space, by stochastic Lanczos quadrature.

    Invariant under whatever the geometry is invariant under. Costs as `hessian_density` does.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        damping: added to each eigenvalue, in the units of the curvature (a prior precision, for evidence).
        absolute: take ``|lambda| + damping``; otherwise an eigenvalue at or below ``-damping`` is an error.
        steps: Lanczos steps for each probe.
        probes: random directions; two or more give an error bar.
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the probes.
        seconds: start no further probe after this time.
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

    own = {"damping": damping, "absolute": absolute}
    return _functional(
        "Hessian log-determinant", f, problem, geometry, steps, probes, matrix, engine, over, seed, seconds,
        show_progress, own,
    )  # fmt: skip


def effective_dimension(
    problem: Problem,
    geometry: Geometry,
    *,
    damping: float = 1.0,
    steps: int = 40,
    probes: int = 5,
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
    return _functional(
        "effective dimension", lambda x: np.abs(x) / (np.abs(x) + damping), problem, geometry, steps, probes, matrix,
        engine, over, seed, seconds, show_progress, {"damping": damping},
    )  # fmt: skip
