"""The figures of a study for papers and slides, by matplotlib: the same numbers as on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spiritlevel.core.drawing import COLOURS, GREY, panel, panels
from spiritlevel.errors import ArgumentError
from spiritlevel.study.report.orbit import OrbitCheck, orbit_checks
from spiritlevel.study.report.payload import forest_order
from spiritlevel.study.statistics.analysis import NORM, Analysis, Relation
from spiritlevel.study.statistics.radii import families
from spiritlevel.study.table import StudyTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "draw", "write_figures"]

FORMATS = ("png", "svg", "pdf")
_MOST = 12  # panels in one figure: more cannot be read, and the page shows them all


def draw(table: StudyTable, analysis: Analysis) -> dict[str, Figure]:
    """All figures for which there is data, by file name without ending."""
    out = {"taus": forest(analysis)}
    for target in analysis.targets:
        out[f"scatter-{_file(target)}"] = scatter(table, analysis, target)
    if any(len(rows) > 1 for rows in families(dict.fromkeys(analysis.measures)).values()):
        out["radii"] = radius_curves(table, analysis)
    if any(m in table.per_batch for m in analysis.measures):
        out["batches"] = batches(table, analysis)
    if checks := orbit_checks(table):
        out["invariance"] = orbit(checks)
    return out


def write_figures(figures: dict[str, Figure], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write each figure in each format; equal figures give equal bytes."""
    import matplotlib as mpl

    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        raise ArgumentError(f"expected formats out of {', '.join(FORMATS)}; got {', '.join(unknown)}")
    written = []
    with mpl.rc_context({"svg.hashsalt": "spiritlevel", "pdf.fonttype": 42, "svg.fonttype": "path"}):
        for name, figure in figures.items():
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # laid out once, not again for each format
            for ending in formats:
                path = folder / f"{name}.{ending}"
                undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
                figure.savefig(path, dpi=160, metadata=undated[ending])
                written.append(path)
    return written


def forest(analysis: Analysis) -> Figure:
    """Every tau with its interval; below it, hollow, what is left given training loss and norm."""
    names = forest_order(analysis)[::-1]
    figure, axes = panels(1, len(analysis.targets), 2.2 + 3.2 * len(analysis.targets), 1.2 + 0.36 * len(names))
    colours = _colours(analysis)
    for axis, target in zip(axes[0], analysis.targets, strict=True):
        axis.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
        for place, name in enumerate(names):
            for r in (r for r in analysis.relations if (r.measure, r.target) == (name, target)):
                _forest_row(axis, r, place, GREY if r.baseline else colours[_family(name)])
        axis.set(xlim=(-1.03, 1.03), ylim=(-0.7, len(names) - 0.3), xlabel="Kendall's tau-b", title=_text(target))
        axis.set_yticks(range(len(names)), [_text(n) for n in names] if axis is axes[0, 0] else [])
        axis.grid(axis="x", alpha=0.25)
    level = f"{analysis.settings.confidence:.0%}"
    figure.supxlabel(f"filled: tau, {level} interval; hollow: given training loss and norm; tick: with training loss",
                     fontsize=8, color=GREY)  # fmt: skip
    return figure


def _forest_row(axis: Axes, r: Relation, place: int, colour: str) -> None:
    if math.isfinite(r.tau.value):
        axis.plot([r.tau.low, r.tau.high], [place + 0.14] * 2, color=colour, linewidth=2.2)
        axis.plot(r.tau.value, place + 0.14, "o", color=colour, markersize=6)
    if math.isfinite(r.partial.value):
        axis.plot([r.partial.low, r.partial.high], [place - 0.18] * 2, color=colour, linewidth=0.9, alpha=0.7)
        axis.plot(r.partial.value, place - 0.18, "o", color=colour, markerfacecolor="white", markersize=4)
    if math.isfinite(r.training):
        axis.plot(r.training, place + 0.14, "|", color="#333333", markersize=9, markeredgewidth=1.6)


def scatter(table: StudyTable, analysis: Analysis, target: str) -> Figure:
    """Each measure against one target, with tau; the strongest measures if there are many."""
    rows = analysis.of(target)[:_MOST]
    wide = min(3, len(rows))
    deep = -(-len(rows) // wide)
    figure, axes = panels(deep, wide, 3.3 * wide, 2.7 * deep)
    colours = _colours(analysis)
    for axis, r in zip(axes.flat, rows, strict=False):
        x, y = {**table.complexity, **table.gen}[r.measure], table.gen[target]
        axis.scatter(x, y, s=14, alpha=0.7, color=GREY if r.baseline else colours[_family(r.measure)], linewidths=0)
        axis.set_title(f"{_text(r.measure)}\ntau {r.tau}", fontsize=9)
        _maybe_log(axis, x, "x")
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    figure.supylabel(_text(target), fontsize=10)
    return figure


def radius_curves(table: StudyTable, analysis: Analysis) -> Figure:
    """Left: tau against the radius for each target. Right of it: the values themselves, a line for each checkpoint."""
    found = {n: rows for n, rows in families(dict.fromkeys(analysis.measures)).items() if len(rows) > 1}
    shown = list(found.items())[: _MOST // 2]
    figure, axes = panels(2, max(len(analysis.targets), len(shown)), 3.4 * max(len(analysis.targets), len(shown)), 6)
    colours, taus = _colours(analysis), {(r.measure, r.target): r.tau for r in analysis.relations}
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, target in zip(axes[0], analysis.targets, strict=False):
        axis.set_axis_on()
        axis.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        for name, rows in found.items():
            at = [(r, taus[m, target]) for r, m in rows]
            radii = [r for r, _ in at]
            axis.fill_between(
                radii, [t.low for _, t in at], [t.high for _, t in at], alpha=0.15, color=colours[name], linewidth=0
            )
            axis.plot(radii, [t.value for _, t in at], "o-", color=colours[name], label=_text(name), markersize=4)
        axis.set(xscale="log", ylim=(-1, 1), xlabel="radius", ylabel=f"tau with {_text(target)}")
        _at_radii(axis, [r for rows in found.values() for r, _ in rows])
    axes[0, 0].legend(frameon=False, fontsize=8)
    for axis, (name, rows) in zip(axes[1], shown, strict=False):
        axis.set_axis_on()
        values = np.stack([table.complexity[m] for _, m in rows])
        axis.plot(
            [r for r, _ in rows], values, color=colours[name], alpha=max(0.05, min(0.5, 30 / len(table))), linewidth=0.8
        )
        axis.set(xscale="log", xlabel="radius", ylabel=_text(name))
        _at_radii(axis, [r for r, _ in rows])
        _maybe_log(axis, values, "y")
    return figure


def batches(table: StudyTable, analysis: Analysis) -> Figure:
    """Values on single batches, checkpoints in order of their mean: from smallest to largest, and the middle half."""
    rows = [r.measure for r in analysis.of(analysis.targets[0]) if r.measure in table.per_batch][: _MOST // 2]
    figure, axes = panels(len(rows), 1, 8, 1.8 * len(rows) + 0.4)
    colours = _colours(analysis)
    for axis, name in zip(axes[:, 0], rows, strict=True):
        kept = [i for i in np.argsort(table.complexity[name]) if np.isfinite(table.per_batch[name][i]).any()]
        ends = np.array([np.nanquantile(table.per_batch[name][i], [0, 0.25, 0.75, 1]) for i in kept]).reshape(-1, 4)
        axis.vlines(range(len(kept)), ends[:, 0], ends[:, 3], color=colours[_family(name)], linewidth=0.7, alpha=0.6)
        axis.vlines(range(len(kept)), ends[:, 1], ends[:, 2], color=colours[_family(name)], linewidth=2.5, alpha=0.6)
        axis.plot(range(len(kept)), table.complexity[name][kept], ".", color="#222222", markersize=3)
        axis.set_ylabel(_text(name), fontsize=8)
        _maybe_log(axis, ends, "y")
    axes[-1, 0].set_xlabel("checkpoints, from small to large")
    return figure


def orbit(checks: Sequence[OrbitCheck]) -> Figure:
    """Each measure after an orbit move over before: 1 is invariant."""
    names = list(dict.fromkeys(o.measure for o in checks))[::-1]
    figure, axis = panel(7, 1.2 + 0.45 * len(names))
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    for place, name in enumerate(names):
        ratios = [o.ratio for o in checks if o.measure == name and math.isfinite(o.ratio)]
        axis.plot(ratios, [place] * len(ratios), "o", alpha=0.7, color=COLOURS[(len(names) - 1 - place) % len(COLOURS)])
    axis.set(xscale="log", xlabel="after the orbit move / before (1 is invariant)", ylim=(-0.6, len(names) - 0.4))
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, 0.5), max(high, 2))
    axis.set_yticks(range(len(names)), [_text(n) for n in names])
    return figure


def _maybe_log(axis: Axes, values: Any, which: str) -> None:
    """A logarithmic axis where everything is positive and spread over more than a factor of 20."""
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() > 0 and finite.max() > 20 * finite.min():
        axis.set(**{f"{which}scale": "log"})
        getattr(axis, f"{which}axis").set_major_formatter(lambda v, _: f"{v:g}")
        getattr(axis, f"{which}axis").set_minor_formatter(lambda _v, _: "")


def _at_radii(axis: Axes, radii: Sequence[float]) -> None:
    """Ticks where something was measured, as far as they can be read."""
    every = sorted(set(radii))
    chosen = every[:: -(-len(every) // 7)]
    axis.set_xticks(chosen, [f"{r:g}" for r in chosen])
    axis.set_xticks([], minor=True)


def _colours(analysis: Analysis) -> dict[str, str]:
    """A colour for each measure, whatever its radius: in the order of the table, as on the page."""
    names = dict.fromkeys(_family(m) for m in analysis.measures if m != NORM)
    return {n: COLOURS[i % len(COLOURS)] for i, n in enumerate(names)} | {NORM: GREY}


def _family(measure: str) -> str:
    return measure.rpartition("@")[0] if "@" in measure else measure


def _text(name: str) -> str:
    """A user's name as it is: a dollar sign starts no formula."""
    return name.replace("$", r"\$")


def _file(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
