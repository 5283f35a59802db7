"""Figures of a zoo: every network's gap against its sharpness, and all taus with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spiritlevel.core.drawing import BLUE, COLOURS, GREY, panels
from spiritlevel.experiments.zoo_judging import Judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["scatter", "taus"]


def scatter(found: Judged, measures: Mapping[str, str], targets: Mapping[str, str]) -> Figure:
    """Sharpness against gap, one row for each measure and one column for each test set, as Fig. 4 of the paper.

    Args:
        found: one design.
        measures: columns of the table, with their names in the figure.
        targets: the same of the gaps.
    """
    rows, columns = len(measures), len(targets)
    figure, axes = panels(rows, columns, 1.7 * columns + 0.4, 1.45 * rows + 0.3)
    for row, (measure, name) in zip(axes, measures.items(), strict=True):
        for axis, target in zip(row, targets, strict=True):
            _panel(axis, found, measure, target)
        row[columns // 2].set_xlabel(name, fontsize=8)
        row[0].set_ylabel("gap, %", fontsize=8)
    for axis, title in zip(axes[0], targets.values(), strict=True):
        axis.set_title(f"{title}\n{axis.get_title()}", fontsize=8)
    return figure


def _panel(axis: Any, found: Judged, measure: str, target: str) -> None:
    """The networks as points; sharpness on a logarithmic scale with its least and its largest value."""
    x, tau = found.table.complexity[measure], found.tau(measure, target)
    axis.plot(x, 100 * found.table.gen[target], "o", ms=2.2, mew=0, color=BLUE, rasterized=True)
    axis.locator_params(nbins=3)
    if np.nanmin(x) > 0:
        axis.set_xscale("log")
        ticks = [float(np.nanmin(x)), float(np.nanmax(x))]
        axis.set_xticks(ticks, [f"{t:.2g}" for t in ticks])
        axis.set_xticks([], minor=True)
    axis.tick_params(labelsize=7)
    axis.set_title(f"τ {tau.value:.2f} [{tau.low:.2f}, {tau.high:.2f}]", fontsize=8)


def taus(designs: Mapping[str, Judged], measures: Sequence[str], targets: Mapping[str, str]) -> Figure:
    """Every tau with its interval: a panel for each test set, a colour for each design."""
    figure, axes = panels(1, len(targets), 2.1 * len(targets) + 1.6, 0.24 * len(measures) + 1.3)
    places = np.arange(len(measures))
    for axis, (target, title) in zip(axes[0], targets.items(), strict=True):
        axis.axvline(0, color=GREY, lw=0.8)
        for (design, found), colour, shift in zip(designs.items(), COLOURS, (-0.15, 0.15), strict=False):
            all_taus = [found.tau(m, target) for m in measures]
            middle = np.array([t.value for t in all_taus])
            sides = np.array([[t.value - t.low for t in all_taus], [t.high - t.value for t in all_taus]])
            axis.errorbar(middle, places + shift, xerr=sides, fmt="o", ms=3, lw=1, color=colour, label=design)
        axis.set(yticks=places, yticklabels=[], title=title, xlabel="τ with the gap", xlim=(-1, 1))
        axis.invert_yaxis()
        axis.grid(axis="x", lw=0.4, alpha=0.6)
    axes[0, 0].set_yticklabels(list(measures), fontsize=8)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8
    )
    return figure
