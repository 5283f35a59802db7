"""Studies of small networks: numbers found together are those found one by one, whatever happens in between."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spiritlevel.study import Store, run_study
from spiritlevel.study import ahead as ahead_module
from spiritlevel.study.ahead import Ahead
from spiritlevel.study.config import config_of
from spiritlevel.study.members import find_checkpoints
from spiritlevel.study.session import Session
from zoos import settings, write_zoo

COUNT = 11  # more than `FEWEST`
MEASURES = [
    {"measure": "adaptive", "rho": [1.0, 0.5], "solver": "autopgd", "steps": 6},
    {"measure": "adaptive-linf", "rho": [0.01]},
    {"measure": "worst-case", "geometry": "euclidean", "rho": 0.1},  # by the default solver: one by one
    {"measure": "average-case", "geometry": "elementwise", "rho": [0.1, 0.2], "samples": 4},
    {"measure": "gradient-norm", "geometry": "euclidean"},
]


def study(folder: Path, **changes: Any) -> dict[str, Any]:
    write_zoo(folder, COUNT)
    return settings(folder, **{"measures": MEASURES, **changes})


def one_by_one(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], store: Path) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(ahead_module, "FEWEST", COUNT + 1)
        return run_study(config, store)


def agree(a: Any, b: Any) -> None:
    assert list(a.columns()) == list(b.columns())
    assert a.failures == b.failures == ()
    assert a.sizes == b.sizes
    for kind in ("complexity", "gen"):
        for name, values in getattr(a, kind).items():
            np.testing.assert_allclose(getattr(b, kind)[name], values, rtol=2e-5, atol=1e-6, err_msg=name)
    for name, rows in a.per_batch.items():
        np.testing.assert_allclose(b.per_batch[name], rows, rtol=2e-5, atol=1e-6, err_msg=name)


def test_small_checkpoints_are_measured_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same table, without a single network scored by itself. Kills: rows of two networks exchanged."""
    config = study(tmp_path)
    alone = one_by_one(monkeypatch, config, tmp_path / "alone.db")
    monkeypatch.setattr("spiritlevel.study.session._scores", lambda *_: pytest.fail("scored one by one"))
    agree(run_study(config, tmp_path / "together.db"), alone)


def test_a_stopped_study_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Kills: a group of only those that are left, whose sums round otherwise."""
    config = study(tmp_path)
    whole = run_study(config, tmp_path / "whole.db")

    class Stopped(Exception):
        pass

    for after in (3, 40, 100):
        part = tmp_path / f"part-{after}.db"

        def stop(pace: Any, after: int = after) -> None:
            if pace.done >= after:
                raise Stopped

        with pytest.raises(Stopped):
            run_study(config, part, on_done=stop)
        with Store(part) as store:
            assert any(c.pending for c in store.progress())
        resumed = run_study(config, part)
        assert resumed.columns() == whole.columns()
        assert resumed.per_batch == whole.per_batch


def test_processes_find_the_same_together(tmp_path: Path) -> None:
    config = study(tmp_path, workers=2)
    one = run_study(config, tmp_path / "one.db")
    two = run_study(config, tmp_path / "two.db", engine="processes")
    assert two.columns() == one.columns()


def test_one_bad_checkpoint_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file damaged, one network diverged: their rows say so, and all others have their numbers."""
    from safetensors.torch import load_file, save_file

    config = study(tmp_path)
    alone = one_by_one(monkeypatch, config, tmp_path / "alone.db")
    (tmp_path / "runs" / "run-3.safetensors").write_bytes(b"damaged")
    state = load_file(tmp_path / "runs" / "run-5.safetensors")
    save_file({n: torch.full_like(t, torch.nan) for n, t in state.items()}, tmp_path / "runs" / "run-5.safetensors")
    table = run_study(config, tmp_path / "together.db")
    assert {name for name, _, _ in table.failures} == {"run-3", "run-5"}
    rest = [i for i, n in enumerate(table.names) if n not in ("run-3", "run-5")]
    for name, values in alone.complexity.items():
        np.testing.assert_allclose(table.complexity[name][rest], values[rest], rtol=2e-5, atol=1e-6, err_msg=name)


def unmappable(output: Tensor, batch: Any) -> Tensor:
    return (output - output.mean().item()).square().mean()


def deceitful(output: Tensor, batch: Any) -> Tensor:
    """Another loss for networks together."""
    return output.square().mean() * (2.0 if torch._C._functorch.is_batchedtensor(output) else 1.0)


@pytest.mark.parametrize("loss", [unmappable, deceitful])
def test_what_does_not_map_is_measured_one_by_one(loss: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: nothing of what was tried together is used."""
    config = study(tmp_path, loss={"function": loss}, measures=[MEASURES[-1]])
    alone = one_by_one(monkeypatch, config, tmp_path / "alone.db")
    table = run_study(config, tmp_path / "together.db")
    assert table.failures == ()
    assert table.columns() == alone.columns()


def test_targets_that_are_no_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that cannot be counted fail as they do one by one; losses are there."""
    config = study(tmp_path, measures=[MEASURES[-1]])
    for name in ("train", "iid"):
        with np.load(tmp_path / f"{name}.npz") as data:
            x = data["x"]
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.eye(2, dtype=np.float32)[np.arange(12) % 2])
    alone = one_by_one(monkeypatch, config, tmp_path / "alone.db")
    table = run_study(config, tmp_path / "together.db")
    assert table.failures == alone.failures
    assert {column for _, column, _ in table.failures} >= {"iid_error", "iid_gap"}
    np.testing.assert_allclose(table.gen["iid_loss"], alone.gen["iid_loss"], rtol=1e-6)
    plain = {**config, "data": {**config["data"], "errors": False}}
    agree(run_study(plain, tmp_path / "plain.db"), one_by_one(monkeypatch, plain, tmp_path / "plain-alone.db"))


def test_groups_are_small_networks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a zoo of large checkpoints loaded all at once."""
    config = config_of(study(tmp_path))
    session, zoo = Session(config), {c.name: c for c in find_checkpoints(config)}
    loaded: list[str] = []
    real = Session.load

    def load(self: Session, checkpoint: Any) -> Any:
        loaded.append(checkpoint.name)
        return real(self, checkpoint)

    monkeypatch.setattr(Session, "load", load)
    first = zoo["run-0"]
    bench = session.load(first)
    measures = [(config.measures[-1], ())]
    ahead = Ahead(session, zoo, None, measures)
    monkeypatch.setattr(ahead_module, "SMALL", 25)
    assert ahead.of("run-0", first.digest(), bench) is None
    assert loaded == ["run-0"]
    monkeypatch.setattr(ahead_module, "SMALL", 26)
    known = ahead.of("run-0", first.digest(), bench)
    assert known is not None
    assert set(known.scores) == {"train", "iid", "shifted"}
    assert set(known.measured) == {"gradient-norm-euclidean"}
    assert sorted(loaded[1:]) == sorted(zoo)
    assert ahead.of("run-1", zoo["run-1"].digest(), bench) is not None
    assert len(loaded) == 1 + COUNT  # the group is computed once
    assert ahead.of("run-1", "other files by now", bench) is None


def test_groups_lie_at_fixed_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups, the second too small to be one."""
    monkeypatch.setattr(ahead_module, "GROUP", 8)
    config = study(tmp_path, measures=[MEASURES[-1]])
    seen: list[int] = []
    real = ahead_module.gradient_norms

    def noted(ensemble: Any, geometry: Any) -> Any:
        seen.append(len(ensemble))
        return real(ensemble, geometry)

    monkeypatch.setattr(ahead_module, "gradient_norms", noted)
    table = run_study(config, tmp_path / "together.db")
    assert seen == [8]
    assert table.failures == ()
    assert np.isfinite(table.complexity["gradient-norm-euclidean"]).all()
    with (tmp_path / "runs.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == COUNT
