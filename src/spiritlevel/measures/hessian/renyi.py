"""Rényi sharpness: how unevenly is the curvature spread over directions?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from spiritlevel.core.results import worst
from spiritlevel.errors import ArgumentError, DerivativeError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.run import Layer, LayeredMeasurement, Run, check_counts
from spiritlevel.measures.hessian.spectrum import spectrum_of
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine
from spiritlevel.solvers import Quadrature

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RenyiSharpness", "renyi_of", "renyi_sharpness"]

Array = np.ndarray[Any, np.dtype[np.float64]]
_CURVE = (0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)  # ours: the authors scan 37 orders from 1e-4 to 3


@dataclass(frozen=True)
class RenyiSharpness(LayeredMeasurement):
    """Rényi sharpness at one order; ``value`` is the mean over layers, or that of the whole matrix.

    Attributes:
        curve: order to value, from the same products.
        curves: the same for each layer.
    """

    curve: dict[float, float] = field(default_factory=dict)
    curves: dict[str, dict[float, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**super().to_dict(), "curve": self.curve, "curves": self.curves}

    def figure(self) -> Figure:
        """Sharpness over the order, one line for each layer."""
        from spiritlevel.measures.hessian.figures import renyi_figure

        return renyi_figure(self)


def renyi_of(q: Quadrature, alpha: float, signed: bool, probes: slice = slice(None)) -> float:
    """``-H_alpha`` from nodes and weights: ``-log(tr |H|^alpha / (tr H)^alpha) / (1 - alpha)``."""
    power = float(q.traces(lambda x: np.abs(x) ** alpha)[probes].mean())
    trace = float(q.traces((lambda x: x) if signed else np.abs)[probes].mean())
    if power <= 0 or trace <= 0:
        what = "positive signed trace" if signed and power > 0 else "curvature other than 0"
        raise DerivativeError(
            f"expected a {what} for an entropy of the spectrum, got a trace of {trace:.4g}"
            + (": take signed_trace=False" if signed and power > 0 else ": the loss is flat in these directions")
        )
    return -(math.log(power) - alpha * math.log(trace)) / (1 - alpha)


def renyi_sharpness(
    problem: Problem,
    geometry: Geometry,
    alpha: float = 1.5,
    *,
    per_layer: bool = True,
    signed_trace: bool = False,
    layers: Sequence[str] | None = None,
    steps: int = 15,
    probes: int = 10,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> RenyiSharpness:
    """``-H_alpha`` of the normalised spectrum, ``H_alpha = log(sum p^alpha) / (1 - alpha)``, ``p = |lambda| / sum``.

    Zero would be all curvature in one direction, ``-log(dimension)`` the same in all. It is blind to the magnitude of
    the curvature. With `Euclidean` it is unchanged when whole layers are rescaled, each layer taken by itself (Zhang et
    al. 2025, Prop. 2.2); not when single neurons are, and not for the whole matrix. With `Quotient` it is the same on
    the whole orbit.

    Small orders live on the bulk near 0, which few Lanczos steps cannot resolve: the stats give the change from two
    thirds of the steps to all of them. Costs ``steps * probes`` products for each layer, about two gradients each.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        alpha: the order, above 0 and other than 1 (the authors: 0.5 for spectra of several clusters, 1.5 for a bulk
            with outliers).
        per_layer: each layer's diagonal block by itself, and their mean as value; otherwise the whole matrix.
        signed_trace: normalise by the trace itself, as the authors' code does, not by the sum of magnitudes.
        layers: names of the layers, out of those the chart has; by default all that move.
        steps: Lanczos steps (the authors take 15).
        probes: random directions for each (the authors take 100).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the probes.
        seconds: start no further probe of a layer after this time.
        show_progress: force the progress bar on or off.
    """
    check_counts(steps=steps, probes=probes)
    if isinstance(alpha, bool) or not (alpha > 0 and math.isfinite(alpha)) or abs(alpha - 1) < 1e-6:
        raise ArgumentError(f"expected an order alpha above 0 and other than 1, got {alpha!r}")
    if layers is not None and not per_layer:
        raise ArgumentError("expected per_layer=True where layers are named")
    run = Run("Rényi sharpness", problem, geometry, over, matrix, engine, steps * probes, show_progress)
    found: list[dict[str, Quadrature]] = []
    sizes: dict[str, int] = {}
    for i, operator in enumerate(run.operators()):
        wanted = _chosen(run, layers) if per_layer else [None]
        spectra: dict[str, Quadrature] = {}
        for name in wanted:
            with operator.only(name):
                key = name or "all"
                spectra[key], sizes[key] = (
                    spectrum_of(run, operator, steps, probes, seed + i, seconds),
                    operator.dimension,
                )
        found.append(spectra)
        run.add(
            fmean(renyi_of(q, alpha, signed_trace) for q in spectra.values()),
            None,
            worst([q.status for q in spectra.values()]),
        )
    return _assembled(run, found, sizes, alpha, signed_trace, steps, probes, seed, per_layer)


def _chosen(run: Run, layers: Sequence[str] | None) -> list[str | None]:
    """The layers that move, or those that were named."""
    moving = run.chart.project(run.chart.zeros() + 1)
    everything = run.chart.layers()
    if layers is not None:
        unknown = [n for n in layers if n not in everything]
        if unknown:
            raise ArgumentError(f"expected layers out of {', '.join(list(everything)[:6])} ...; got {unknown[:3]}")
        return list(layers)
    return [n for n, stretches in everything.items() if any(bool(moving[s].any()) for s in stretches)]


def _assembled(
    run: Run,
    found: list[dict[str, Quadrature]],
    sizes: dict[str, int],
    alpha: float,
    signed: bool,
    steps: int,
    probes: int,
    seed: int,
    per_layer: bool,
) -> RenyiSharpness:
    names = list(found[0])
    orders = sorted({*_CURVE, alpha})
    curves = {n: {a: fmean(renyi_of(s[n], a, signed) for s in found) for a in orders} for n in names}
    errors = {n: math.sqrt(sum(_jackknife(s[n], alpha, signed) ** 2 for s in found)) / len(found) for n in names}
    whole = {a: fmean(curves[n][a] for n in names) for a in orders}
    shorter = fmean(renyi_of(q.shortened(), alpha, signed) for s in found for q in s.values())
    products = sum(q.products for s in found for q in s.values())
    stats = {
        "change in the last third of the steps": abs(whole[alpha] - shorter),
        "smallest possible": -math.log(max(sizes.values())) if not per_layer else None,
        **run.facts(products),
    }
    settings = run.settings(
        alpha=alpha, per_layer=per_layer, signed_trace=signed, steps=steps, probes=probes, seed=seed
    )
    layers = [Layer(n, curves[n][alpha], errors[n], sizes[n]) for n in names] if per_layer else []
    base = run.result({k: v for k, v in stats.items() if v is not None}, settings, layers)
    error = math.sqrt(sum(e * e for e in errors.values())) / len(errors)
    return RenyiSharpness(
        **replace(base, standard_error=error).__dict__, curve=whole, curves=curves if per_layer else {}
    )


def _jackknife(q: Quadrature, alpha: float, signed: bool) -> float:
    """Standard error of the logarithm of a ratio of means over probes, leaving out one at a time."""
    n = len(q.nodes)
    if n < 2:
        return math.inf
    powers, traces = q.traces(lambda x: np.abs(x) ** alpha), q.traces((lambda x: x) if signed else np.abs)
    logs = np.log((powers.sum() - powers) / (n - 1)) - alpha * np.log(np.abs(traces.sum() - traces) / (n - 1))
    return float(np.sqrt((n - 1) / n * np.sum((logs - logs.mean()) ** 2)) / abs(1 - alpha))
