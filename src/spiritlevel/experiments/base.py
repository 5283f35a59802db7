"""What an experiment of a paper is here, and what it reports: data, figures, and paper | here | interval | holds?"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from spiritlevel.core.display import Displayed
from spiritlevel.core.registry import Registry
from spiritlevel.core.results import plain
from spiritlevel.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Report"]


@dataclass(frozen=True)
class Claim:
    """One thing a paper says, and what was found here.

    Attributes:
        what: the claim in a few words, with its place in the paper.
        paper: the paper's number or statement.
        here: ours.
        holds: whether it does; None where this run cannot tell.
        interval: where ours lies with 95 % confidence; None where nothing is random.
        note: what a reader should know about the comparison.
    """

    what: str
    paper: str
    here: float | str
    holds: bool | None
    interval: tuple[float, float] | None = None
    note: str = ""

    def row(self) -> dict[str, str]:
        """The claim as words, column by column."""
        low_high = "" if self.interval is None else f"{self.interval[0]:.4g} to {self.interval[1]:.4g}"
        here = f"{self.here:.6g}" if isinstance(self.here, float) else self.here
        holds = {True: "yes", False: "no", None: "cannot tell"}[self.holds]
        return {"claim": self.what, "paper": self.paper, "here": here, "interval": low_high, "holds": holds,
                "note": self.note}  # fmt: skip


@dataclass(frozen=True)
class Report(Displayed):
    """What an experiment found.

    Attributes:
        name: of the experiment.
        title: what it reproduces, in one line.
        claims: paper against here.
        settings: everything that fixes the numbers, the seed among them; unstated ones are marked as chosen.
        data: the numbers behind figures and claims, as plain data.
        figures: by file name without ending.
        reading: what it means, in a few honest sentences.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    reading: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        claims = [{**c.row(), "here": plain(c.here), "interval": plain(c.interval)} for c in self.claims]
        own = {"name": self.name, "title": self.title, "claims": claims, "reading": self.reading}
        return {**own, "settings": plain(self.settings), "data": plain(self.data)}

    def write(self, folder: str | Path) -> list[Path]:
        """Write data (JSON), claims (CSV and Markdown) and figures (PNG and SVG); returns what was written."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return [*self._write_tables(folder), *self._write_figures(folder)]
        except OSError as error:
            raise ArgumentError(f"expected a folder to write to, but {folder} cannot be written: {error}") from error

    def _write_tables(self, folder: Path) -> list[Path]:
        data, table, page = (folder / f"{self.name}.{ending}" for ending in ("json", "csv", "md"))
        data.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        rows = [c.row() for c in self.claims]
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(Claim("", "", "", None).row()))
            writer.writeheader()
            writer.writerows(rows)
        page.write_text(self._markdown(rows), encoding="utf-8")
        return [data, table, page]

    def _markdown(self, rows: list[dict[str, str]]) -> str:
        def cell(text: str) -> str:
            return text.replace("|", "\\|").replace("\n", " ")

        heads = list(Claim("", "", "", None).row())
        lines = [f"# {self.title}", "", "| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
        lines += ["| " + " | ".join(cell(v) for v in row.values()) + " |" for row in rows]
        lines += ["", self.reading, "", *(f"![{name}]({name}.png)" for name in self.figures), "", "Settings:", ""]
        lines += [f"- {key}: {value}" for key, value in self.settings.items()]
        return "\n".join(lines) + "\n"

    def _write_figures(self, folder: Path) -> list[Path]:
        written = []
        for name, figure in self.figures.items():
            for ending in ("png", "svg"):
                path = folder / f"{name}.{ending}"
                figure.savefig(path, dpi=160, metadata={"Date": None} if ending == "svg" else None)
                written.append(path)
        return written

    def __rich__(self) -> Group:
        table = Table(title=self.title, title_justify="left")
        for column in ("claim", "paper", "here", "interval", "holds?"):
            table.add_column(column)
        for claim in self.claims:
            row = claim.row()
            what = row["claim"] + (f"\n[dim]{row['note']}[/dim]" if claim.note else "")
            table.add_row(what, row["paper"], row["here"], row["interval"], row["holds"])
        settings = ", ".join(f"{k} {v}" for k, v in self.settings.items())
        return Group(table, Text(self.reading), Text(f"settings: {settings}", style="dim"))


@dataclass(frozen=True)
class Experiment:
    """An experiment by name.

    Attributes:
        summary: what it reproduces, for help texts.
        run: ``(quick, seed)`` to a report: quick is small enough for CI, otherwise the size stated in the docs.
    """

    summary: str
    run: Callable[[bool, int], Report]


EXPERIMENTS: Registry[Experiment] = Registry("experiment")
