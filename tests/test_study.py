"""Studies end to end, on networks of a few weights."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import spiritlevel as sl
from spiritlevel.study import Store, load_checkpoint, load_data, run_study
from zoos import network, settings, write_zoo

COLUMNS = [
    *("checkpoint", "hp.lr", "hp.seed", "hp.optimiser"),
    *("complexity.parameter-norm", "complexity.adaptive@0.5", "complexity.adaptive@1"),
    *("complexity.average-case-euclidean@0.1", "complexity.gradient-norm-euclidean"),
    *("gen.train_loss", "gen.train_error", "gen.iid_loss", "gen.iid_error", "gen.iid_gap"),
    *("gen.shifted_loss", "gen.shifted_error", "gen.shifted_gap"),
]


def test_a_study_has_the_numbers_of_the_library(tmp_path: Path) -> None:
    """Kills: a measure of the wrong checkpoint, set or radius; a gap of the wrong sign; words as numbers."""
    write_zoo(tmp_path)
    table = run_study(settings(tmp_path))
    assert list(table.columns()) == COLUMNS
    assert table.names == ("run-0", "run-1", "run-2", "run-3")
    assert table.hp["optimiser"] == ("adam", "sgd", "adam", "sgd")
    assert table.hp["seed"] == (0, 1, 2, 3)
    assert table.hp["lr"] == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert table.failures == ()
    assert table.sizes == {"train": 12, "iid": 12, "shifted": 12}
    model = load_checkpoint(tmp_path / "runs" / "run-2.safetensors", network)
    problem = sl.Problem(model, load_data(tmp_path / "train.npz", 6))
    curve = sl.adaptive_sharpness(problem, [0.5, 1.0])
    assert [table.complexity[f"adaptive@{r}"][2] for r in ("0.5", "1")] == list(curve.values)
    assert table.per_batch["adaptive@0.5"][2] == curve[0].per_batch
    assert table.complexity["gradient-norm-euclidean"][2] == sl.gradient_norm(problem, sl.Euclidean()).value
    assert table.complexity["average-case-euclidean@0.1"][2] == sl.average_case(problem, sl.Euclidean(), 0.1, 4).value
    assert table.complexity["parameter-norm"][2] == pytest.approx(
        math.sqrt(sum(float((p.detach().double() ** 2).sum()) for p in model.parameters()))
    )
    for name in ("train", "shifted"):
        with np.load(tmp_path / f"{name}.npz") as data:
            scores, y = model(torch.from_numpy(data["x"])).detach(), torch.from_numpy(data["y"])
        assert table.gen[f"{name}_loss"][2] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, y)))
        assert table.gen[f"{name}_error"][2] == pytest.approx(float((scores.argmax(-1) != y).double().mean()))
    gap = table.gen["shifted_error"] - table.gen["train_error"]
    assert table.gen["shifted_gap"] == pytest.approx(gap)
    assert Store(tmp_path / "study.db").table().columns() == table.columns()


def test_a_second_run_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zoo(tmp_path)
    first = run_study(settings(tmp_path))
    monkeypatch.setattr("spiritlevel.study.session.Session.load", lambda *_: pytest.fail("loaded again"))
    assert run_study(settings(tmp_path)).columns() == first.columns()


def test_processes_give_the_same_table(tmp_path: Path) -> None:
    write_zoo(tmp_path)
    one = run_study(settings(tmp_path), tmp_path / "one.db")
    two = run_study(settings(tmp_path, workers=2), tmp_path / "two.db", engine="processes")
    assert two.columns() == one.columns()
    assert two.per_batch == one.per_batch
