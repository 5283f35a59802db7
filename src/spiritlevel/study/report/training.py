"""The report of one training run from the log of its monitor: curves, words, readings, as page, figures and table."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from spiritlevel.core.display import Displayed
from spiritlevel.core.drawing import COLOURS, GREY, panels
from spiritlevel.core.results import plain
from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.monitor import LogView, RunLog
from spiritlevel.study.report.figures import FORMATS, write_figures
from spiritlevel.study.report.markup import cell, section, sortable, whole_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

__all__ = ["TrainingReport", "training_report"]

_SCRIPTS = ("tools.js", "tables.js", "theme.js", "training.js")
_SAY = {"result": "Result.", "warning": "Careful.", "note": "Note."}
_LOOSE = 0.05  # ours: a residual 1 - cos(z, gradient) above this leaves room for more than a tenth of the rise


@dataclass(frozen=True)
class TrainingReport(Displayed):
    """What a log says.

    Attributes:
        log: the readings it started from.
        findings: the same in words, each with its kind: result, warning, note.
        title: of the page.
    """

    log: RunLog
    findings: tuple[tuple[str, str], ...]
    title: str = "Flatness in training"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "title": self.title,
            "findings": [{"kind": kind, "text": text} for kind, text in self.findings],
            "starts": plain(list(self.log.starts)),
            "notes": plain(self.log.notes),
            "readings": [r.to_dict() for r in self.log.readings],
        }

    def __rich__(self) -> Group:
        return LogView.of(self.log).__rich__()

    def page(self) -> str:
        """One self-contained HTML page."""
        log = self.log
        said = f"{len(log.readings):,} readings up to step {log.readings[-1].step:,}: {', '.join(log.curves)}"
        top = (
            f'<header class="top"><div><h1>{escape(self.title)}</h1><p class="lead">{escape(said)}</p></div>'
            '<button id="theme" class="plain" type="button">Dark</button></header>'
        )
        found = "".join(f'<li class="{k}"><b>{_SAY[k]}</b>{escape(t)}</li>' for k, t in self.findings)
        sections = [
            section("said", "What the log says", f'<ul class="findings">{found}</ul>'),
            section("curves", "Over training", '<div id="curve-charts" class="pair"></div>'),
            section("readings", "Readings", _readings(log)),
            section("failed", "What failed", _failed(log)) if log.failures else "",
            section("how", "How it was measured", _how(log)),
        ]
        footer = "Written by spiritlevel report from a monitor's log. It loads nothing and sends nothing."
        return whole_page(self.title, top, sections, footer, _payload(log), _SCRIPTS)

    def write_page(self, path: str | Path) -> Path:
        """Write the page to a file."""
        path = Path(path)
        try:
            path.write_text(self.page(), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ArgumentError(f"expected a place to write to, but {path} cannot be written: {error}") from error
        return path

    def write(self, folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write the page, the curves (CSV), everything (JSON) and the figure; returns what was written."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written = [self.write_page(folder / "report.html"), self._write_curves(folder)]
            path = folder / "report.json"
            path.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
            return [*written, path, *(write_figures({"curves": draw_curves(self.log)}, folder, formats))]
        except OSError as error:
            raise ArgumentError(f"expected a folder to write to, but {folder} cannot be written: {error}") from error

    def _write_curves(self, folder: Path) -> Path:
        path, names = folder / "curves.csv", list(self.log.curves)
        with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "training_seconds", "share", *names])
            for r in self.log.readings:
                writer.writerow([r.step, r.training, r.share, *(r.values.get(n, "") for n in names)])
        return path


def training_report(log: RunLog, title: str = "Flatness in training") -> TrainingReport:
    """Put a log into words."""
    if not log.readings or not log.curves:
        raise DataError(
            f"expected readings in the log {log.path}, got none"
            + (f": {log.failures[-1][2]}" if log.failures else ": has training come to the first yet?")
        )
    return TrainingReport(log, tuple(_findings(log)), title)


def draw_curves(log: RunLog) -> Figure:
    """Every curve over the steps of training; crosses where a measure failed."""
    curves = log.curves
    wide = min(2, len(curves))
    deep = -(-len(curves) // wide)
    figure, axes = panels(deep, wide, 4.2 * wide, 2.6 * deep)
    failed = _failed_at(log)
    for k, (axis, (name, points)) in enumerate(zip(axes.flat, curves.items(), strict=False)):
        steps, values = zip(*points, strict=True)
        axis.plot(steps, values, "o-", color=COLOURS[k % len(COLOURS)], markersize=3, linewidth=1.3)
        if min(values) > 0 and max(values) > 100 * min(values):
            axis.set_yscale("log")
        bad = [log.readings[i].step for i in failed.get(name, ())]
        axis.plot(bad, [0.03] * len(bad), "x", color=GREY, transform=axis.get_xaxis_transform())
        axis.set_title(name.replace("$", r"\$"), fontsize=10)
        axis.grid(alpha=0.25)
    for axis in axes.flat[len(curves) :]:
        axis.set_axis_off()
    figure.supxlabel("training step", fontsize=9)
    return figure


def _findings(log: RunLog) -> list[tuple[str, str]]:
    found = [_course(name, points) for name, points in log.curves.items()]
    last = log.readings[-1]
    limit = log.starts[-1].get("budget") if log.starts else None
    asked = "" if limit is None else f" ({limit:.1%} were allowed)"
    found.append(("note", f"Readings took {last.share:.2%} of training time{asked}, the last {last.seconds:.2g} s."))
    loose = _residuals(log)
    for name, value in loose.items():
        if value > _LOOSE:
            found.append(("warning", f"{name} is a lower bound, and a loose one: the median residual of its maximisers "
                          f"is {value:.2g} (0 at a maximiser). More steps make it tighter."))  # fmt: skip
    for name, count in Counter(name for _, name, _ in log.failures).items():
        why = next(w for _, n, w in reversed(log.failures) if n == name)
        found.append(("warning", f"{name} failed in {count} of {len(log.readings)} readings, the last time with {why}"))
    if log.dropped:
        found.append(("note", f"{log.dropped} readings are left out: a checkpoint was resumed before them, and their "
                      "steps were trained anew."))  # fmt: skip
    if log.damaged:
        found.append(("warning", f"{log.damaged} lines of the log are not whole and are left out."))
    found += [("note", f"At step {step}: {text}") for step, text in log.notes if "failed at step" not in text]
    if not log.ended:
        found.append(("note", "Training has not come to its end, or broke off."))
    return found


def _course(name: str, points: Sequence[tuple[int, float]]) -> tuple[str, str]:
    steps, values = zip(*points, strict=True)
    if len(values) == 1:
        return "result", f"{name} is {values[0]:.4g} at step {steps[0]:,}."
    top = max(range(len(values)), key=values.__getitem__)
    low = min(range(len(values)), key=values.__getitem__)
    return "result", (
        f"{name} went from {values[0]:.4g} at step {steps[0]:,} to {values[-1]:.4g} at step {steps[-1]:,}; highest "
        f"{values[top]:.4g} at {steps[top]:,}, lowest {values[low]:.4g} at {steps[low]:,}."
    )


def _residuals(log: RunLog) -> dict[str, float]:
    """The median residual of each measure that has one and is a worst case."""
    found: dict[str, list[float]] = {}
    for r in log.readings:
        for name, detail in r.details.items():
            residual = detail.get("stats", {}).get("residual")
            if "@" in name and isinstance(residual, int | float) and math.isfinite(residual):
                found.setdefault(name, []).append(float(residual))
    return {name: median(values) for name, values in found.items()}


def _failed_at(log: RunLog) -> dict[str, list[int]]:
    """Indices of readings in which a measure failed; what failed before all measures counts for each."""
    names = list(log.curves)
    return {
        n: [i for i, r in enumerate(log.readings) if n not in r.values and (n in r.failures or "set-up" in r.failures)]
        for n in names
    }


def _payload(log: RunLog) -> dict[str, Any]:
    """What the page draws; the names are those the study's page has, so that they share their tools."""

    def row(name: str) -> list[float | None]:
        return [r.values.get(name) for r in log.readings]

    facts = dict.fromkeys(n for r in log.readings for n in r.facts)
    return {
        "steps": [r.step for r in log.readings],
        "names": [f"step {r.step:,}" for r in log.readings],
        "complexity": {n: row(n) for n in log.curves},
        "gen": {"share of training time": [float(f"{r.share:.4g}") for r in log.readings]},
        "hp": {n: [r.facts.get(n) for r in log.readings] for n in facts},
        "failed": _failed_at(log),
        "relations": [],
        "start": {"measure": next(iter(log.curves)), "target": "share of training time"},
    }


def _readings(log: RunLog) -> str:
    names = list(log.curves)
    rows = []
    for r in log.readings:
        cells = "".join(cell(r.values.get(n, math.nan), ".4g") for n in names)
        rows.append(f'<tr><th scope="row" data-v="{r.step}">{r.step:,}</th>{cells}'
                    f'{cell(r.seconds, ".2g")}{cell(r.share, ".2%")}</tr>')  # fmt: skip
    return sortable(("step", *names, "seconds", "share of training"), rows, "All readings")


def _failed(log: RunLog) -> str:
    rows = [f'<tr><th scope="row" data-v="{step}">{step:,}</th><td class="words">{escape(name)}</td>'
            f'<td class="words">{escape(why)}</td></tr>' for step, name, why in log.failures]  # fmt: skip
    return sortable(("step", "measurement", "why"), rows, "Failures")


def _how(log: RunLog) -> str:
    words = (
        "<p>Every reading is taken on the same batch, in evaluation mode and float32. A rise is a lower bound on the "
        "maximum in its ball: a few gradients from the better of the gradient and the last maximiser, carried to the "
        "new weights. Radii of different geometries are not comparable.</p>"
    )
    shown = json.dumps(plain(list(log.starts)), indent=1, ensure_ascii=False)
    return words + f"<details><summary>Settings of each process</summary><pre>{escape(shown)}</pre></details>"
