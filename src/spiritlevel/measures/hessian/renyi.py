"""Rényi sharpness: how unevenly is the curvature spread over directions?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spiritlevel.errors import ArgumentError, DerivativeError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import PerLayer
from spiritlevel.measures.hessian.run import How, Layer, LayeredMeasurement, Run, check_counts, settled
from spiritlevel.measures.hessian.spectrum import spectrum_of
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine
from spiritlevel.solvers import Quadrature

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RenyiSharpness", "renyi_of", "renyi_sharpness"]

Array = np.ndarray[Any, np.dtype[np.float64]]
_ROUNDING = 16.0  # ours: multiples of eps times the steepest curvature below which a layer's is rounding
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

    @property
    def drawable(self) -> bool:
        """Whether there is a figure of it."""
        return True

    def figure(self) -> Figure:
        """Sharpness over the order, one line for each layer."""
        from spiritlevel.measures.hessian.figures import renyi_figure

        return renyi_figure(self)


def renyi_of(q: Quadrature, alpha: float, signed: bool) -> float:
    """``-H_alpha`` from nodes and weights: ``-log(tr |H|^alpha / (tr H)^alpha) / (1 - alpha)``."""
    power = float(q.traces(lambda x: np.abs(x) ** alpha).mean())
    trace = float(q.traces((lambda x: x) if signed else np.abs).mean())
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
    per_layer: PerLayer = True,
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
    thirds of the steps to all of them, and where it is above the standard error the status is ``budget``. Costs
    ``steps * probes`` products for each layer, about two gradients each.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        alpha: the order, above 0 and other than 1 (the authors: 0.5 for spectra of several clusters, 1.5 for a bulk
            with outliers).
        per_layer: each layer's diagonal block by itself, and their mean as value; otherwise the whole matrix. A
            function of the layer's name joins layers to groups (`by_block`). Layers without curvature have no entropy:
            they are left out and named in the stats.
        signed_trace: normalise by the trace itself, as the authors' code does, not by the sum of magnitudes.
        layers: names of the layers, out of those the chart has; by default all that move.
        steps: Lanczos steps (the authors take 15).
        probes: random directions for each (the authors take 100).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes the probes.
        seconds: stop after this time with what there is.
        show_progress: force the progress bar on or off.
    """
    check_counts(steps=steps, probes=probes)
    if isinstance(alpha, bool) or not (alpha > 0 and math.isfinite(alpha)) or abs(alpha - 1) < 1e-6:
        raise ArgumentError(f"expected an order alpha above 0 and other than 1, got {alpha!r}")
    if layers is not None and not per_layer:
        raise ArgumentError("expected per_layer=True where layers are named")
    how = How(matrix, engine, over, seed, seconds, show_progress)
    run = Run("Rényi sharpness", problem, geometry, how, steps * probes, per_layer, layers)
    run.measure(spectrum_of(run, steps, probes, lambda x: x), whole=not per_layer)
    flat = _take_out_flat_layers(run) if per_layer else []
    own = {
        "alpha": alpha,
        "per_layer": bool(per_layer),
        "signed_trace": signed_trace,
        "steps": steps,
        "probes": probes,
    }
    return _assembled(run, alpha, signed_trace, flat, own)


def _take_out_flat_layers(run: Run) -> list[str]:
    """Names of the layers without curvature beyond rounding, which have no entropy; they are taken out."""
    spectra = [x.detail for f in run.found for x in f.layers.values()]
    steepest = max(max(abs(e) for e in q.extremes) for q in spectra)
    floor = _ROUNDING * torch.finfo(run.chart.dtype).eps * steepest
    names = [n for n in run.groups if any(n in f.layers for f in run.found)]
    flat = [
        n for n in names if all(max(map(abs, f.layers[n].detail.extremes)) <= floor for f in run.found if n in f.layers)
    ]
    if len(flat) == len(names):
        raise DerivativeError(
            "expected curvature other than 0 for an entropy of the spectrum, got none in any layer: the loss is flat"
        )
    run.found = [replace(f, layers={n: x for n, x in f.layers.items() if n not in flat}) for f in run.found]
    return flat


def _assembled(run: Run, alpha: float, signed: bool, flat: list[str], own: dict[str, Any]) -> RenyiSharpness:
    """Values, curves and errors from the quadratures, for each layer or for the whole matrix."""
    eps = _ROUNDING * torch.finfo(run.chart.dtype).eps
    details = [{n: x.detail for n, x in f.layers.items()} or {"all": f.detail} for f in run.found]
    spectra = [{n: _cleaned(q, eps) for n, q in each.items()} for each in details]
    names = [n for n in spectra[0] if all(n in s for s in spectra)]
    orders = sorted({*_CURVE, alpha})
    curves = {n: {a: fmean(renyi_of(s[n], a, signed) for s in spectra) for a in orders} for n in names}
    errors = {n: _root_of_squares([_jackknife(s[n], alpha, signed) for s in spectra]) for n in names}
    whole = {a: fmean(curves[n][a] for n in names) for a in orders}
    shorter = fmean(renyi_of(s[n].shortened(), alpha, signed) for s in spectra for n in names)
    stats: dict[str, Any] = {}
    if flat:
        stats["layers without curvature"] = flat
    if names == ["all"]:
        stats["smallest possible"] = -math.log(run.chart.dimension)
    run.found = [
        replace(f, value=fmean(renyi_of(s[n], alpha, signed) for n in names), error=None)
        for f, s in zip(run.found, spectra, strict=True)
    ]
    layers = [Layer(n, curves[n][alpha], errors[n], g.dimension) for n, g in run.groups.items() if n in names]
    each = [e for e in errors.values() if e is not None]
    error = _root_of_squares(each) if len(each) == len(errors) else None
    base = settled(run.result(stats, own, layers, error), abs(whole[alpha] - shorter))
    return RenyiSharpness(**base.__dict__, curve=whole, curves=curves if layers else {})


def _root_of_squares(errors: Sequence[float | None]) -> float | None:
    """Standard error of a mean of independent estimates; None where one has none."""
    known = [e for e in errors if e is not None]
    return math.sqrt(sum(e * e for e in known)) / len(errors) if len(known) == len(errors) else None


def _cleaned(q: Quadrature, eps: float) -> Quadrature:
    """Nodes that are nothing but rounding put to 0: a small order would make much of them."""
    floor = eps * max(map(abs, q.extremes))
    return replace(q, nodes=tuple(np.where(np.abs(x) > floor, x, 0.0) for x in q.nodes))


def _jackknife(q: Quadrature, alpha: float, signed: bool) -> float | None:
    """Standard error of the logarithm of a ratio of means, leaving out one probe at a time; None for a single one."""
    n = len(q.nodes)
    if n < 2:
        return None
    powers, traces = q.traces(lambda x: np.abs(x) ** alpha), q.traces((lambda x: x) if signed else np.abs)
    logs = np.log((powers.sum() - powers) / (n - 1)) - alpha * np.log(np.abs(traces.sum() - traces) / (n - 1))
    return float(np.sqrt((n - 1) / n * np.sum((logs - logs.mean()) ** 2)) / abs(1 - alpha))
