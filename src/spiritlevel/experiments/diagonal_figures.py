"""The figures of the diagonal networks: Figure 3, and what became of its correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from spiritlevel.core.drawing import BLUE, COLOURS, GREY, ORANGE, panel, panels
from spiritlevel.experiments.diagonal_zoo import Zoo
from spiritlevel.experiments.intervals import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["scatter_figure", "taus_figure", "variants_figure"]

Taus = Sequence[Mapping[str, float]]
_SHOWN = ("average", "adaptive", "geodesic", "cross, |B|", "cross")
_PAPER = {"adaptive": (-0.52, -0.68), "geodesic": (-0.57, -0.83), "cross": (-0.86,), "cross, |B|": (-0.86,)}


def scatter_figure(zoo: Zoo, values: Mapping[str, Tensor], taus: Mapping[str, float]) -> Figure:
    """Test loss against five measures, on the first draw."""
    figure, axes = panels(1, len(_SHOWN), 14, 3.2)
    for axis, name in zip(axes[0], _SHOWN, strict=True):
        dots = axis.scatter(
            values[name].numpy(), zoo.test_loss.numpy(), c=zoo.init.log10().numpy(), cmap="viridis", s=14
        )
        axis.set(yscale="log", xlabel=name, title=f"tau {taus[name]:.2f}")
    axes[0, 0].set_ylabel("test loss")
    bar = figure.colorbar(dots, ax=axes[0, -1], label="init scale")
    ticks = [x for x in (-1.0, -0.5, 0.0) if dots.get_clim()[0] <= x <= dots.get_clim()[1]]
    bar.set_ticks(ticks, labels=[f"{10**x:.2g}" for x in ticks])
    return figure


def taus_figure(taus: Taus, words: Mapping[str, str]) -> Figure:
    """Every draw, the mean with its interval, and the paper's numbers."""
    figure, axis = panel(8, 4)
    for k, name in enumerate(words):
        single = [row[name] for row in taus]
        mean, (low, high) = mean_interval(single)
        axis.plot(single, [k] * len(single), "o", color=GREY, ms=3, alpha=0.6, label="one draw" if k == 0 else None)
        errors = [[mean - max(low, -1.0)], [min(high, 1.0) - mean]]
        axis.errorbar(mean, k, xerr=errors, fmt="o", color=BLUE, capsize=3, label="mean, 95 %" if k == 0 else None)
        for i, number in enumerate(_PAPER.get(name, ())):
            first = name == "adaptive" and i == 0
            axis.plot(number, k, "|", color=ORANGE, ms=14, mew=2, label="paper, both versions" if first else None)
    axis.axvline(0, color=GREY, lw=0.8)
    axis.set(yticks=range(len(words)), yticklabels=list(words), xlabel="Kendall's tau with the test loss", xlim=(-1, 1))
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def variants_figure(found: Mapping[str, Taus]) -> Figure:
    """The mean taus in every setting."""
    figure, axis = panel(9, 0.42 * len(found) + 1.4)
    for k, (name, colour) in enumerate(zip(("adaptive", "geodesic", "cross, |B|", "cross"), COLOURS, strict=False)):
        ends = [mean_interval([row[name] for row in rows]) for rows in found.values()]
        means = [m for m, _ in ends]
        errors = [[m - max(low, -1.0) for m, (low, _) in ends], [min(high, 1.0) - m for m, (_, high) in ends]]
        places = [i + 0.16 * (k - 1.5) for i in range(len(found))]
        axis.errorbar(means, places, xerr=errors, fmt="o", color=colour, ms=4, lw=1, capsize=2, label=name)
    axis.axvline(0, color=GREY, lw=0.8)
    axis.set(yticks=range(len(found)), yticklabels=list(found), xlabel="Kendall's tau, 95 % over draws", xlim=(-1, 1))
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
