"""Pictures of curvature: spectral density, eigenvalues by layer, Rényi sharpness over its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spiritlevel.core.drawing import BLUE, GREY, ORANGE, panel
from spiritlevel.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from spiritlevel.measures.hessian.eigenvalues import Eigenvalues
    from spiritlevel.measures.hessian.renyi import RenyiSharpness
    from spiritlevel.measures.hessian.run import LayeredMeasurement
    from spiritlevel.measures.hessian.spectrum import Density

__all__ = ["density_figure", "eigenvalue_figure", "layer_figure", "renyi_figure"]

_FLOOR = 1e-5  # of the highest point: what the logarithmic axis still shows


def density_figure(result: Density) -> Figure:
    """The density on a logarithmic scale, its error, and the nodes below."""
    figure, axes = panel(7, 4)
    grid, density = np.array(result.grid), np.array(result.density)
    floor = _FLOOR * density.max()
    axes.semilogy(grid, density.clip(floor), color=BLUE, lw=1.5, label="density")
    if result.density_error:
        error = np.array(result.density_error)
        axes.fill_between(
            grid, (density - error).clip(floor), (density + error).clip(floor), color=BLUE, alpha=0.25, lw=0,
            label="± one standard error",
        )  # fmt: skip
    for q in result.quadratures:
        for nodes in q.nodes:
            axes.plot(nodes, np.full(len(nodes), floor), "|", color=ORANGE, ms=9, clip_on=False)
    axes.plot([], [], "|", color=ORANGE, ms=9, label="Lanczos nodes")
    axes.axvline(0, color=GREY, lw=0.8, ls=":")
    axes.set_ylim(bottom=floor)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    _entitle(figure, result)
    axes.legend(frameon=False, fontsize=8)
    return figure


def eigenvalue_figure(result: Eigenvalues) -> Figure:
    """One bar for each layer, further eigenvalues as marks; without layers one mark for each rank."""
    if not result.layers:
        figure, axes = panel(6, 3.5)
        ranks = np.arange(1, len(result.eigenvalues) + 1)
        axes.errorbar(ranks, result.eigenvalues, yerr=result.residuals, fmt="o", color=BLUE, capsize=3)
        axes.set_xlabel("rank")
        axes.set_ylabel("eigenvalue ± residual")
        axes.set_xticks(ranks)
        _entitle(figure, result)
        return figure
    figure = layer_figure(result)
    (axes,) = figure.axes
    for row, x in enumerate(result.layers):
        more = x.details.get("eigenvalues", [])[1:]
        axes.plot(more, np.full(len(more), row), "|", color=ORANGE, ms=8)
    further = " (marks: further ones)" if any(len(x.details.get("eigenvalues", [])) > 1 for x in result.layers) else ""
    axes.set_xlabel(f"eigenvalue of the layer's diagonal block{further}")
    return figure


def layer_figure(result: LayeredMeasurement) -> Figure:
    """One bar for each layer, with its standard error."""
    if not result.layers:
        raise ArgumentError("expected a measurement layer by layer, got one without layers: pass per_layer=True")
    figure, axes = panel(8, 1.2 + 0.22 * len(result.layers))
    rows, errors = np.arange(len(result.layers)), [x.standard_error or 0.0 for x in result.layers]
    axes.barh(rows, [x.value for x in result.layers], xerr=errors if any(errors) else None, color=BLUE, height=0.7)
    axes.axvline(0, color=GREY, lw=0.8)
    axes.set_yticks(rows, [_shortened(x.name) for x in result.layers], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"{result.name} of the layer's diagonal block")
    _entitle(figure, result)
    return figure


def _entitle(figure: Figure, result: LayeredMeasurement) -> None:
    """Name and geometry above everything, from the left edge: axes with long labels are narrow."""
    text = f"{result.name}\n{result.settings.get('geometry', '')}"
    figure.suptitle(text, x=0.01, ha="left", fontsize=8)


def renyi_figure(result: RenyiSharpness) -> Figure:
    """Sharpness over the order; one thin line for each layer, their mean thick."""
    figure, axes = panel(7, 4)
    for curve in result.curves.values():
        axes.plot(*_points(curve), color=GREY, lw=0.7, alpha=0.6)
    if result.curves:
        axes.plot([], [], color=GREY, lw=0.7, label=f"{len(result.curves)} layers")
    axes.plot(*_points(result.curve), color=BLUE, lw=2, label="mean over layers" if result.curves else "whole matrix")
    alpha = float(result.settings["alpha"])
    axes.plot([alpha], [result.value], "o", color=ORANGE, label=f"order {alpha:g}")
    axes.set_xlabel("order α")
    axes.set_ylabel("Rényi sharpness")
    _entitle(figure, result)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _points(curve: dict[float, float]) -> tuple[Any, Any]:
    orders = sorted(curve)
    return orders, [curve[a] for a in orders]


def _shortened(name: str, most: int = 48) -> str:
    """The end of a long name, where layers differ."""
    return name if len(name) <= most else "…" + name[-(most - 1) :]
