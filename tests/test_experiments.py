"""The frame of the experiments: reports, files, command line."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import pytest

from spiritlevel.cli import main
from spiritlevel.core.drawing import panel
from spiritlevel.errors import MissingDependencyError
from spiritlevel.experiments import EXPERIMENTS, Claim, Report
from spiritlevel.experiments.reparam_common import digits, interval


def report() -> Report:
    figure, axes = panel(3, 2)
    axes.plot([0, 1], [0, 1])
    claims = (
        Claim("half | of it (Eq. 1)", "0.5", 0.25, False, (0.2, 0.3), "smaller here"),
        Claim("words", "yes", "yes", None),
    )
    return Report("toy", "A toy", claims, {"seed": 0}, {"x": [1.0, float("nan")]}, {"toy": figure}, "It does not hold.")


def test_a_report_shows_every_claim_and_its_verdict() -> None:
    text = str(report())
    for words in (
        "half | of it",
        "0.25",
        "0.2 to 0.3",
        "no",
        "cannot tell",
        "smaller here",
        "It does not hold.",
        "seed",
    ):
        assert words in text


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    written = report().write(tmp_path / "new" / "folder")
    assert sorted(p.name for p in written) == ["toy.csv", "toy.json", "toy.md", "toy.png", "toy.svg"]
    data = json.loads((tmp_path / "new/folder/toy.json").read_text())
    assert data["claims"][0]["here"] == 0.25
    assert data["data"] == {"x": [1.0, "nan"]}
    with (tmp_path / "new/folder/toy.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["holds"] for r in rows] == ["no", "cannot tell"]
    assert "half \\| of it" in (tmp_path / "new/folder/toy.md").read_text()
    assert (tmp_path / "new/folder/toy.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="expected a folder to write to"):
        report().write(tmp_path / "file" / "below")


def test_unknown_experiments_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "nothing-of-the-kind"]) == 2
    assert main(["reproduce"]) == 0


REPARAM = ("toy", "flow", "density", "spectrum", "laplace", "trace", "optimisers", "ntk")


def reparam(name: str, tmp_path: Path) -> Report:
    found = EXPERIMENTS[f"reparam-{name}"].run(True, 0)
    written = found.write(tmp_path)
    assert {p.suffix for p in written} == {".json", ".csv", ".md", ".png", ".svg"}
    assert found.figures
    assert "seed" in found.settings or "seeds" in found.settings or name == "toy"
    return found


@pytest.mark.parametrize("name", ["toy", "flow", "density", "spectrum", "ntk", "laplace"])
def test_the_exact_claims_of_the_reparametrisation_paper_hold(name: str, tmp_path: Path) -> None:
    found = reparam(name, tmp_path)
    unknown = 2 if name == "laplace" else 0  # numbers that need the paper's unstated width and prior
    assert sum(c.holds is None for c in found.claims) == unknown
    assert all(c.holds is not False for c in found.claims), str(found)


@pytest.mark.slow  # trains six networks
def test_the_optimisers_of_the_reparametrisation_paper(tmp_path: Path) -> None:
    found = {name: reparam(name, tmp_path) for name in ("trace", "optimisers")}
    law = [c for c in found["trace"].claims if "psi = c theta" in c.what or "2 theta" in c.what or "stays" in c.what]
    assert len(law) == 3
    assert all(c.holds for c in law)
    far, _, same = found["optimisers"].claims[:3]
    assert isinstance(far.here, float)
    assert far.interval is not None
    assert far.interval[0] < far.here < far.interval[1]
    assert far.holds
    assert same.holds


def test_all_experiments_of_the_reparametrisation_paper_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    text = capsys.readouterr().out
    assert all(f"reparam-{name}" in text for name in REPARAM)


def test_digits_need_scikit_learn_and_intervals_two_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match="expected the package 'scikit-learn'"):
        digits(10)
    assert interval([1.0]) == (-math.inf, math.inf)
