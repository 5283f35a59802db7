"""The report of a monitor's log: words, files, the page in a real browser, and the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.monitor import LogWriter, Reading, read_log
from spiritlevel.study.report.training import training_report
from test_report_page import browser, complaints, open_page  # noqa: F401  # fixtures

HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Twelve readings: one measure fails twice, one is loose, two were trained anew, one line is torn."""
    path = tmp_path / "flatness.jsonl"
    writer = LogWriter(path)
    writer.start(0, {"model": HOSTILE, "budget": 0.03})
    for k in range(14):
        if k == 12:
            with path.open("a") as file:
                file.write('{"kind": "reading", "st\n')
            writer.start(100, {"model": "again", "budget": 0.03})
        step = 10 * (k + 1) if k < 12 else 10 * (k - 1)
        values = {"loss": 2.0 / (k + 1), "geodesic@0.1": 0.1 + 0.01 * k}
        details = {"geodesic@0.1": {"status": "budget", "stats": {"residual": 0.2}}}
        failures = {}
        if k in (3, 4):
            values.pop("geodesic@0.1")
            failures = {"geodesic@0.1": f"ModelError: {HOSTILE}"}
        writer.reading(Reading(step, values, {}, failures, 0.5, 0.021, 100.0, {"learning rate": 0.1}, details))
    writer.note(120, "readings about every 400 steps instead of 100")
    return path


def test_words_say_what_happened(log: Path) -> None:
    report = training_report(read_log(log))
    said = "\n".join(f"{kind}: {text}" for kind, text in report.findings)
    assert "result: loss went from 2 at step 10 to 0.1429 at step 120; highest 2 at 10, lowest 0.1429 at 120." in said
    assert (
        "warning: geodesic@0.1 is a lower bound, and a loose one: the median residual of its maximisers is 0.2" in said
    )
    assert "warning: geodesic@0.1 failed in 2 of 12 readings" in said
    assert "2 readings are left out" in said
    assert "warning: 1 lines of the log are not whole" in said
    assert "Readings took 2.10% of training time (3.0% were allowed)" in said
    assert "At step 120: readings about every 400 steps" in said
    assert "has not come to its end" in said


def test_files(log: Path, tmp_path: Path) -> None:
    written = training_report(read_log(log)).write(tmp_path / "out", ("png", "svg"))
    assert [p.name for p in written] == ["report.html", "curves.csv", "report.json", "curves.png", "curves.svg"]
    rows = list(csv.DictReader((tmp_path / "out" / "curves.csv").read_text().splitlines()))
    assert [int(r["step"]) for r in rows] == list(range(10, 130, 10))
    assert rows[3]["geodesic@0.1"] == ""
    assert float(rows[0]["loss"]) == 2.0
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(content["readings"]) == 12
    assert (tmp_path / "out" / "curves.png").stat().st_size > 10_000
    with pytest.raises(ArgumentError, match="expected a place to write to"):
        training_report(read_log(log)).write_page(tmp_path / "none" / "x.html")
    with pytest.raises(ArgumentError, match="expected a folder to write to"):
        training_report(read_log(log)).write(log / "below")


def test_a_log_without_readings_says_why(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log.jsonl")
    writer.start(0, {})
    with pytest.raises(DataError, match="has training come to the first yet"):
        training_report(read_log(tmp_path / "log.jsonl"))
    writer.reading(Reading(10, {}, {}, {"set-up": "ModelError: no such thing"}))
    with pytest.raises(DataError, match="ModelError: no such thing"):
        training_report(read_log(tmp_path / "log.jsonl"))


def test_the_page_in_a_browser(open_page: Any, log: Path, tmp_path: Path) -> None:  # noqa: F811
    """Kills: an error before the last curve, a tip with another reading's numbers, markup out of a user's words."""
    page = open_page(training_report(read_log(log), "run").write_page(tmp_path / "report.html"))
    charts = page.locator("#curve-charts svg.chart")
    assert charts.count() == 2
    assert page.locator("#curve-charts circle:not(.ring)").count() == 12 + 10
    assert page.locator("#curve-charts path.failed").count() == 2
    assert page.locator("#readings tbody tr").count() == 12
    assert page.locator("#failed tbody tr").count() == 2
    dot = charts.nth(1).locator("circle:not(.ring)").nth(5)  # the eighth reading: two had failed before
    dot.scroll_into_view_if_needed()
    box = dot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    lines = page.locator("#tip").inner_text().splitlines()
    assert lines[0] == "step 80"
    assert lines[1] == "geodesic@0.1: 0.17"
    assert "learning rate: 0.1" in lines
    charts.nth(0).focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#say").inner_text().startswith("step 10, loss: 2")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_command_line(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(log), "--out", str(tmp_path / "out"), "--figures", "svg"]) == 0
    said = capsys.readouterr().out
    assert "step 120, 12 readings" in said
    assert (tmp_path / "out" / "curves.svg").exists()
    assert not (tmp_path / "out" / "curves.png").exists()
    assert main(["report", str(log), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["readings"]) == 12
    assert main(["watch", str(log), "--once"]) == 0
    assert "geodesic@0.1" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "none.jsonl")]) == 1
    assert "expected a monitor's log" in capsys.readouterr().err
