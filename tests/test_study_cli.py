"""``spiritlevel study``: what a user types, what comes out, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spiritlevel.cli import main
from spiritlevel.core import progress as bars
from spiritlevel.study import commands, read_table
from spiritlevel.study.pace import Pace
from zoos import write_zoo

CONFIG = """\
name: tiny
zoo: {checkpoints: "runs/*", builder: "zoos:network", hyperparameters: runs.csv}
data: {train: train.npz, tests: {iid: iid.npz, shifted: shifted.npz}}
measures:
  - measure: adaptive
    rho: {rise: 0.2, checkpoints: 2}
  - measure: gradient-norm
batches: {size: 6}
threads: 1
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    write_zoo(tmp_path, 3)
    path = tmp_path / "study.yaml"
    path.write_text(CONFIG)
    return path


def test_from_the_configuration_to_a_table_and_back(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: an export that loses digits, words, failures or single batches; an import that is not the same table."""
    folder = study.parent
    (folder / "runs" / "run-1.safetensors").write_bytes(b"damaged")
    assert main(["study", "run", str(study)]) == 0
    text = capsys.readouterr().out
    assert "All units are done." in text
    assert "a mean rise of 0.2 is at rho" in text
    assert "run-1, train_loss: CheckpointError: expected a safetensors file" in text.replace("\n", " ")
    assert main(["study", "export", str(study), str(folder / "table.csv")]) == 0
    assert main(["study", "export", str(folder / "study.db"), str(folder / "table.parquet")]) == 0
    table = read_table(folder / "table.csv")
    assert table.columns() == read_table(folder / "table.parquet").columns()
    assert table.hp["optimiser"] == ("adam", "sgd", "adam")
    assert len(table.failures) == 11
    for kind in ("csv", "parquet"):
        assert main(["study", "import", str(folder / f"table.{kind}"), str(folder / f"{kind}.db")]) == 0
        assert main(["study", "export", str(folder / f"{kind}.db"), str(folder / f"again.{kind}")]) == 0
        assert (folder / f"again.{kind}").read_bytes() == (folder / f"table.{kind}").read_bytes()
    assert main(["study", "import", str(folder / "table.csv"), str(folder / "csv.db")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert sorted(p.name for p in folder.glob("*.db*")) == ["csv.db", "parquet.db", "study.db"]


def test_tables_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The public layout: experiment_id, hp.*, complexity.*, gen.*, and columns that are nobody's."""
    (tmp_path / "theirs.csv").write_text(
        "experiment_id,hp.lr,hp.dataset,complexity.norm,gen.gap,is.converged\n7,0.1,cifar10,3.5,0.02,True\n"
        "8,0.01,svhn,,0.03,True\n"
    )
    assert main(["study", "import", str(tmp_path / "theirs.csv"), str(tmp_path / "theirs.db")]) == 0
    capsys.readouterr()
    assert main(["study", "status", str(tmp_path / "theirs.db"), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert [(c["name"], c["done"], c["pending"]) for c in out["columns"]] == [
        ("complexity.norm", 1, 1),
        ("gen.gap", 2, 0),
    ]
    (tmp_path / "wrong.csv").write_text("model,sharpness,gap\na,1,2\n")
    assert main(["study", "import", str(tmp_path / "wrong.csv"), str(tmp_path / "wrong.db")]) == 1
    assert "expected columns named complexity.* (measures) and gen.*" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "wrong.db").exists()


def test_status_before_and_after_as_json(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "status", str(study)]) == 1
    assert "`spiritlevel study run` makes one" in capsys.readouterr().err
    assert main(["study", "run", str(study), "--json", "--store", str(study.parent / "other.db")]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert main(["study", "status", str(study.parent / "other.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ran
    assert ran["pending"] == 0
    assert ran["checkpoints"] == 3
    assert ran["radii"][0]["rise"] == 0.2
    assert {c["done"] for c in ran["columns"]} == {3}


def test_nothing_that_can_be_measured_is_a_failure(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (study.parent / "runs").iterdir():
        path.write_bytes(b"damaged")
    study.write_text(CONFIG.replace("rho: {rise: 0.2, checkpoints: 2}", "rho: 1"))
    assert main(["study", "run", str(study)]) == 1
    assert "and 23 more failed units" in capsys.readouterr().out


def test_lines_where_there_is_no_terminal(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of a cluster shows how far it is. Kills: hours of silence."""
    monkeypatch.setattr(commands, "_EVERY", 0.0)
    assert main(["study", "run", str(study)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "33 of 33 units"
    assert "left" in lines[0]


def test_one_bar_for_the_study(study: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the bars of the measures inside the study's own."""
    from spiritlevel.study import run_study

    monkeypatch.setattr(bars, "_DELAY", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    run_study(study, show_progress=True)
    err = capfd.readouterr().err
    assert "tiny" in err
    assert "adaptive sharpness" not in err


def test_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace = Pace(10)
    pace._began = 0.0
    assert pace.seconds_left is None
    pace.done, pace.failed = 4, 1
    assert pace.seconds_left == pytest.approx(150.0)
    assert str(pace) == "4 of 10 units, 1 failed, about 2 min left"
