"""The report of a study: statistics, words, figures and the page, made once and written together."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from spiritlevel.core.display import Displayed
from spiritlevel.errors import ArgumentError
from spiritlevel.study.report.figures import FORMATS, draw, write_figures
from spiritlevel.study.report.page import study_page
from spiritlevel.study.statistics.analysis import Analysis, Settings, analyse
from spiritlevel.study.statistics.findings import Finding, findings
from spiritlevel.study.table import StudyTable

__all__ = ["StudyReport", "report"]

_INK = {"result": "green", "warning": "yellow", "note": "dim"}
_SHOWN = 20  # rows of a target in a terminal; the page and the files have all


@dataclass(frozen=True)
class StudyReport(Displayed):
    """What a study says.

    Attributes:
        table: the numbers it started from.
        analysis: all statistics.
        findings: the same in words: results, warnings, notes.
        title: of the page.
    """

    table: StudyTable
    analysis: Analysis
    findings: tuple[Finding, ...]
    title: str = "Flatness study"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        words = [{"kind": str(f.kind), "target": f.target, "text": f.text} for f in self.findings]
        return {"title": self.title, "findings": words, **self.analysis.to_dict()}

    def page(self) -> str:
        """One self-contained HTML page."""
        return study_page(self.table, self.analysis, self.findings, self.title)

    def write_page(self, path: str | Path) -> Path:
        """Write the page to a file."""
        path = Path(path)
        try:
            path.write_text(self.page(), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ArgumentError(f"expected a place to write to, but {path} cannot be written: {error}") from error
        return path

    def write(self, folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write the page, the taus (CSV), all statistics (JSON) and the figures; returns what was written."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written = [self.write_page(folder / "report.html"), self._write_taus(folder), self._write_json(folder)]
            return [*written, *(write_figures(draw(self.table, self.analysis), folder, formats) if formats else [])]
        except OSError as error:
            raise ArgumentError(f"expected a folder to write to, but {folder} cannot be written: {error}") from error

    def _write_taus(self, folder: Path) -> Path:
        path = folder / "taus.csv"
        rows = [
            {"measure": r.measure, "target": r.target, "checkpoints": r.count, "tau_b": r.tau.value, "low": r.tau.low,
             "high": r.tau.high, "tau_a": r.tau_a, "p": r.p, "p_corrected": r.p_family, "tau_with_training": r.training,
             "partial": r.partial.value, "partial_low": r.partial.low, "partial_high": r.partial.high,
             "given": " ".join(r.given), "first": r.first}
            for t in self.analysis.targets for r in self.analysis.of(t)
        ]  # fmt: skip
        with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return path

    def _write_json(self, folder: Path) -> Path:
        path = folder / "report.json"
        path.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return path

    def __rich__(self) -> Group:
        head = Text(f"{self.title}: {len(self.table)} checkpoints", style="bold")
        words = [Text(f"{f.kind}: {f.text}", style=_INK[f.kind]) for f in self.findings]
        return Group(head, *(self._taus(target) for target in self.analysis.targets), *words)

    def _taus(self, target: str) -> Table:
        rows = self.analysis.of(target)
        table = Table(title=Text(target), title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.add_column("measure", overflow="ellipsis", no_wrap=True)
        for column in ("tau-b", "tau-a", "p", "loss", "partial tau"):
            table.add_column(column, justify="right", no_wrap=True)
        for r in rows[:_SHOWN]:
            cells = (
                _number(r.tau_a, ".2f"),
                ("<1e-4" if r.p_family < 1e-4 else _number(r.p_family, ".2g")),
                _number(r.training, ".2f"),
            )
            table.add_row(Text(r.measure), str(r.tau), *cells, str(r.partial), style="dim" if r.baseline else None)
        table.caption_justify = "left"
        table.caption = "p corrected; loss: tau with training loss; partial: given loss and parameter norm"
        if len(rows) > _SHOWN:
            table.caption += f"; {len(rows) - _SHOWN} weaker ones are in the page"
        return table


def report(table: StudyTable, settings: Settings | None = None, title: str = "Flatness study") -> StudyReport:
    """Analyse a table and put the result into words.

    >>> import numpy as np
    >>> x = np.arange(40.0)
    >>> table = StudyTable(tuple(map(str, range(40))), {}, {"m@0.1": x}, {"test_gap": x**2})
    >>> report(table).findings[0].text[:47]
    'test_gap: m@0.1 orders the checkpoints best, ta'
    """
    analysis = analyse(table, settings)
    return StudyReport(table, analysis, tuple(findings(table, analysis)), title)


def _number(value: float, form: str) -> str:
    return "" if value != value else format(value, form)
