"""The report of a study: files, figures, markup and the command line. For browsers see test_report_page.py."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.study.exchange import write_table
from spiritlevel.study.report import report, write_figures
from spiritlevel.study.report.figures import draw
from spiritlevel.study.statistics import Settings
from spiritlevel.study.table import StudyTable
from studies import HOSTILE, made_up

QUICK = Settings(resamples=200, permutations=200)


class Markup(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_hostile_names_stay_text() -> None:
    """Names, hyperparameters, measures, targets, failures and facts. Kills: any of them unescaped."""
    page = report(made_up(hostile=True), QUICK, HOSTILE[1]).page()
    markup = Markup(page)
    tags = [tag for tag, _ in markup.elements]
    assert tags.count("script") == 2
    assert not {"img", "svg", "iframe", "link", "object"} & set(tags)
    assert not any(a.startswith("on") or a in ("src", "srcdoc") for _, attrs in markup.elements for a in attrs)
    assert all(attrs["href"].startswith("#") for _, attrs in markup.elements if "href" in attrs)
    for word in HOSTILE:
        assert word in markup.words


def test_the_page_needs_nothing_and_allows_nothing() -> None:
    """Kills: a policy with unsafe-inline scripts, a hash of another script, an address to load from."""
    page = report(made_up(), QUICK).page()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert re.search(r"script-src 'sha256-[\w+/=]{44}';", policy[1])
    assert "//" not in re.sub(r"http://www\.w3\.org/2000/svg|// .*", "", page)
    assert page == report(made_up(), QUICK).page()


def test_everything_is_in_the_markup_without_scripts() -> None:
    """A reader without scripts sees words and numbers."""
    result = report(made_up(), QUICK)
    words = Markup(result.page()).words
    for finding in result.findings:
        assert finding.text in words
    for row in result.analysis.relations:
        assert row.measure in words
        assert f"{row.tau.value:.2f}".replace("-", "−") in words
    for heading in ("What the study says", "All taus", "Along each hyperparameter", "Sign error", "Invariance check",
                    "What could not be measured", "expected a finite loss, got nan", "Facts of the study"):  # fmt: skip
        assert heading in words


def test_a_bare_table_makes_a_report_too() -> None:
    """Another study's: no batches, no sizes, no radii, no hyperparameters, no training loss."""
    rng = np.random.default_rng(0)
    bare = StudyTable(tuple(map(str, range(9))), {}, {"m": rng.normal(size=9)}, {"gap": rng.normal(size=9)})
    result = report(bare, QUICK)
    assert "<h2" in result.page()
    assert set(draw(bare, result.analysis)) == {"taus", "scatter-gap"}
    constant = replace(bare, complexity={"m": np.ones(9), "n@1": np.full(9, np.nan), "n@2": np.ones(9)})
    assert "no measure has a tau" in report(constant, QUICK).page()
    assert set(draw(constant, report(constant, QUICK).analysis)) == {"taus", "scatter-gap", "radii"}


def test_every_figure_is_drawn_and_written_alike_each_time(tmp_path: Path) -> None:
    """Kills: dates or random ids in files; a figure without its data."""
    table = made_up(16)
    analysis = report(table, QUICK).analysis
    names = {"taus", "scatter-test_gap", "scatter-rotated_gap", "radii", "batches", "invariance"}
    figures = draw(table, analysis)
    assert set(figures) == names
    taus = {"taus": figures["taus"]}
    axis = taus["taus"].axes[0]
    assert [t.get_text() for t in axis.get_yticklabels()][-1] == analysis.of("test_gap", baselines=False)[0].measure
    drawn = {round(float(line.get_xdata()[0]), 9) for line in axis.lines if len(line.get_xdata()) == 1}
    assert {round(r.tau.value, 9) for r in analysis.of("test_gap")} <= drawn
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        again = {"taus": draw(table, analysis)["taus"]}
        written = write_figures(again, tmp_path / folder)
        assert [p.suffix for p in written] == [".png", ".svg", ".pdf"]
    for ending in ("png", "svg", "pdf"):
        assert (tmp_path / "a" / f"taus.{ending}").read_bytes() == (tmp_path / "b" / f"taus.{ending}").read_bytes()
    with pytest.raises(ArgumentError, match="expected formats out of png, svg, pdf; got gif"):
        write_figures(taus, tmp_path, ["gif"])


def test_figures_of_hostile_names(tmp_path: Path) -> None:
    """A dollar sign starts no formula and a slash no folder."""
    table = made_up(12, hostile=True)
    bad = replace(table, names=table.names, gen={"a/../$x_{^_gap": table.gen["test_gap"]},
                  complexity={"$\\frac{@0.1": table.complexity["geodesic@0.05"]}, per_batch={}, facts={})  # fmt: skip
    written = report(bad, QUICK).write(tmp_path / "out", ["svg"])
    assert {p.parent for p in written} == {tmp_path / "out"}
    assert all(p.stat().st_size for p in written)


def test_scatter_shows_tau_and_interval() -> None:
    table = made_up(20)
    analysis = report(table, QUICK).analysis
    titles = [axis.get_title() for axis in draw(table, analysis)["scatter-test_gap"].axes]
    best = analysis.of("test_gap")[0]
    assert titles[0] == f"{best.measure}\ntau {best.tau}"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_command_writes_everything(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = made_up(24)
    path = write_table(table, tmp_path / f"zoo.{ending}")
    line = ["report", str(path), "--resamples", "200", "--target", "test_gap", "--figures", "png"]
    assert main([*line, "--out", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    assert "orders the checkpoints best" in out.replace("\n", " ")
    found = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert found == ["batches.png", "invariance.png", "radii.png", "report.html", "report.json", "scatter-test_gap.png",
                     "taus.csv", "taus.png"]  # fmt: skip
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "out" / "report.html").read_bytes()
    with (tmp_path / "out" / "taus.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {r["target"] for r in rows} == {"test_gap"}
    assert main([*line, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "out" / "report.json").read_text())
    best = max(content["relations"], key=lambda r: -1 if r["baseline"] else abs(r["tau"]["value"]))
    assert float(rows[0]["tau_b"]) == best["tau"]["value"]
    assert content["findings"][0]["kind"] == "result"


def test_the_command_takes_measures_and_refuses_unknown_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_table(made_up(12), tmp_path / "t.csv"))
    assert main(["report", path, "--measure", "geodesic@0.05", "adaptive@0.1", "--resamples", "100", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["measures"] == ["geodesic@0.05", "adaptive@0.1"]
    assert main(["report", path, "--measure", "none"]) == 2
    assert "expected columns complexity.* out of" in capsys.readouterr().err
    assert main(["report", path, "--figures", "gif", "--resamples", "100", "--out", str(tmp_path / "o")]) == 2
    assert main(["report", str(tmp_path / "no.csv")]) == 1
    assert "got nothing at" in capsys.readouterr().err.replace("\n", " ")


def test_an_orbit_check_that_cannot_be_read_says_so() -> None:
    table = made_up(12)
    for bad in ([{"measure": "m"}], 3, [{"measure": "m", "checkpoint": "c", "before": "x", "after": 1}]):
        with pytest.raises(
            DataError, match="expected the fact orbit_check to be a list of measure, checkpoint, before"
        ):
            report(replace(table, facts={"orbit_check": bad}), QUICK).page()


def test_places_that_cannot_be_written_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = report(made_up(12), QUICK)
    with pytest.raises(ArgumentError, match="expected a folder to write to"):
        result.write(tmp_path / "file" / "below")
    with pytest.raises(ArgumentError, match="expected a place to write to"):
        result.write_page(tmp_path / "file" / "page.html")


def test_a_terminal_gets_taus_and_words() -> None:
    """At 110 columns nothing is cut. Kills: markup read out of a user's names."""
    table = made_up(16)
    renamed = replace(table, complexity={"[red]m[/red]@1": table.complexity["geodesic@0.05"]}, per_batch={})
    text = str(report(renamed, QUICK, "[b]mine[/b]"))
    assert "[b]mine[/b]: 16 checkpoints" in text
    assert "[red]m[/red]@1" in text
    assert "warning: With 16 checkpoints" in text


TORCHLESS = """
import sys, types
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
for name in ("spiritlevel", "spiritlevel.study"):  # the packages themselves import torch; not what is tested here
    package = types.ModuleType(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = package
from spiritlevel.study.exchange import read_table, write_table
from spiritlevel.study.report import report
from spiritlevel.study.statistics import Settings
table = read_table(sys.argv[2])
result = report(table, Settings(resamples=100, permutations=100))
print(len(result.write(sys.argv[3], ["png"])))
"""


def test_from_the_table_on_neither_torch_nor_a_model_is_needed(tmp_path: Path) -> None:
    """Table to files in a process that cannot import torch. Kills: a convenience import in any of these modules."""
    path = write_table(made_up(12), tmp_path / "t.parquet")
    source = str(Path(__file__).parent.parent / "src")
    done = subprocess.run([sys.executable, "-c", TORCHLESS, source, str(path), str(tmp_path / "out")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "9"
