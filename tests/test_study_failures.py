"""What goes wrong in a study: one clear error, or a row with it, and nothing lost."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from killing import ended, exported, forked, rows
from spiritlevel.errors import ArgumentError, ConfigError, DataError, LossError, StoreError
from spiritlevel.measures import MEASURES
from spiritlevel.study import Store, run_study
from spiritlevel.study.lock import only_writer
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.session import Session
from spiritlevel.study.units import Column, Done, Outcome
from zoos import network, other_network, settings, weights, write_zoo

UNITS = 13  # columns of numbers in `settings`


def spoil(folder: Path, how: str) -> None:
    path = folder / "runs" / "run-1.safetensors"
    if how == "corrupted":
        path.write_bytes(path.read_bytes()[:100])
    elif how == "missing":
        path.unlink()
    elif how == "other architecture":
        save_file(weights(1, other_network()), path)
    else:
        save_file({n: t * float("nan") for n, t in weights(1).items()}, path)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("corrupted", "cannot be read"),
        ("missing", "got nothing at"),
        ("other architecture", "expected the weights of Sequential"),
        ("not finite", "expected finite weights, got NaN or infinity in 0.weight"),
    ],
)
def test_a_bad_checkpoint_is_rows_with_its_error(tmp_path: Path, how: str, words: str) -> None:
    """Kills: a study that stops, neighbours that lose their numbers, an error without its checkpoint."""
    write_zoo(tmp_path)
    config = settings(tmp_path)
    config["zoo"]["checkpoints"] = [str(tmp_path / "runs" / f"run-{i}.safetensors") for i in range(4)]
    good = run_study(config, tmp_path / "good.db")
    spoil(tmp_path, how)
    table = run_study(config)
    assert {f[0] for f in table.failures} == {"run-1"}
    assert len(table.failures) == UNITS
    assert any(re.search(words, f[2]) for f in table.failures)
    for kind in ("complexity", "gen"):
        for name, values in getattr(table, kind).items():
            keep = [0, 2, 3]
            assert values[keep].tolist() == getattr(good, kind)[name][keep].tolist()
            assert np.isnan(values[1])
    save_file(weights(1), tmp_path / "runs" / "run-1.safetensors")
    assert run_study(config).columns() == good.columns()  # a mended file is measured by itself


def test_hugging_face_folders_of_another_architecture(tmp_path: Path) -> None:
    """They load by themselves, so only the zoo can tell. Kills: a comparison that is never made."""
    write_zoo(tmp_path, 2)
    config = settings(tmp_path)
    del config["zoo"]["hyperparameters"]
    config["zoo"]["checkpoints"] = {"a": network, "b": network, "c": other_network}
    table = run_study(config)
    assert {f[0] for f in table.failures} == {"c"}
    assert "expected the architecture of a, got other parameters" in table.failures[0][2]
    config["zoo"]["same_architecture"] = False
    assert run_study(config, retry_failed=True).failures == ()


def test_a_measure_that_fails_leaves_the_smaller_radii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one radius that takes the curve with it; failures measured again without being asked."""
    write_zoo(tmp_path, 2)
    good = run_study(settings(tmp_path), tmp_path / "good.db")
    run = MEASURES["adaptive"].run

    def fails(problem: Any, options: Any) -> Any:
        if options.rho[-1] > 0.6:
            raise RuntimeError("out of memory, say")
        return run(problem, options)

    with monkeypatch.context() as patch:
        patch.setattr(
            "spiritlevel.study.jobs.MEASURES", {**MEASURES, "adaptive": type(MEASURES["adaptive"])("", fails)}
        )
        table = run_study(settings(tmp_path))
    assert [f[:2] for f in table.failures] == [("run-0", "adaptive@1"), ("run-1", "adaptive@1")]
    assert table.failures[0][2] == "RuntimeError: out of memory, say"
    assert table.complexity["adaptive@0.5"].tolist() == good.complexity["adaptive@0.5"].tolist()
    assert len(run_study(settings(tmp_path)).failures) == 2
    assert run_study(settings(tmp_path), retry_failed=True).columns() == good.columns()


def regression(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return (output[:, 0] - batch[1]).square().mean()


def test_errors_that_cannot_be_counted(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    targets = {"x": torch.randn(4, 3), "y": torch.randn(4)}
    config = settings(tmp_path, loss={"function": regression}, measures=["gradient-norm"])
    config["data"] = {"train": targets}
    table = run_study(config)
    assert table.failures[0][1] == "train_error"
    assert "set data.errors to false" in table.failures[0][2]
    config["data"]["errors"] = False
    assert run_study(config).failures == ()


def test_a_set_without_targets(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    config = settings(tmp_path, measures=["gradient-norm"])
    config["data"]["tests"] = {"none": {"x": torch.zeros(2, 3), "y": torch.tensor([-100, -100])}}
    failures = run_study(config).failures
    assert [f[1] for f in failures] == ["none_loss", "none_error", "none_gap"]
    assert "expected at least one target that is not ignored, got none" in failures[0][2]


def diverging(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return output.sum() * torch.inf


def test_numbers_that_are_not_finite_are_failures(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    table = run_study(settings(tmp_path, loss={"function": diverging}))
    assert ("run-0", "train_loss") in [f[:2] for f in table.failures]
    assert "expected a finite" in " ".join(f[2] for f in table.failures)


def test_changed_weights_are_measured_anew_and_touched_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: numbers of weights that are not there any more; a copy of the zoo that costs a study."""
    write_zoo(tmp_path)
    before = run_study(settings(tmp_path))
    os.utime(tmp_path / "runs" / "run-1.safetensors", (1, 1))
    save_file(weights(99), tmp_path / "runs" / "run-2.safetensors")
    loaded, load = [], Session.load
    monkeypatch.setattr(Session, "load", lambda self, c: (loaded.append(c.name), load(self, c))[1])
    after = run_study(settings(tmp_path))
    assert loaded == ["run-2"]
    changed = before.gen["train_loss"] != after.gen["train_loss"]
    assert changed.tolist() == [False, False, True, False]
    read, digest = [], Checkpoint.digest
    monkeypatch.setattr(Checkpoint, "digest", lambda self: (read.append(self.name), digest(self))[1])
    run_study(settings(tmp_path))
    assert read == ["run-0"]  # the one whose architecture counts; the others' files are as they were


def test_changed_settings_add_rows_and_lose_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A radius more measures that radius; the way back none. Kills: a hash that takes too much or little."""
    write_zoo(tmp_path, 2)
    three = settings(tmp_path, measures=[{"measure": "adaptive", "rho": [0.5, 1.0, 2.0]}], store=str(tmp_path / "3.db"))
    whole = run_study(three)
    two = settings(tmp_path, measures=[{"measure": "adaptive", "rho": [1.0, 0.5]}])
    run_study(two)
    first = rows(tmp_path / "study.db")
    more = run_study({**three, "store": two["store"]})
    assert more.columns() == whole.columns()
    assert first.items() <= rows(tmp_path / "study.db").items()
    assert len(rows(tmp_path / "study.db")) == len(first) + 2
    monkeypatch.setattr(Session, "load", lambda *_: pytest.fail("measured again"))
    assert list(run_study(two).complexity) == ["parameter-norm", "adaptive@0.5", "adaptive@1"]


def relu_network() -> nn.Module:
    return nn.Sequential(*[nn.ReLU() if isinstance(m, nn.Tanh) else m for m in network()])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"zoo": {"builder": relu_network}}),
        (
            {"loss": {"function": nn.CrossEntropyLoss()}},
            {"loss": {"function": nn.CrossEntropyLoss(label_smoothing=0.5)}},
        ),
        (
            {"loss": {"function": lambda out, batch: nn.functional.cross_entropy(out, batch[1])}},
            {"loss": {"function": lambda out, batch: 2 * nn.functional.cross_entropy(out, batch[1])}},
        ),
    ],
    ids=["builder", "torch loss", "function"],
)
def test_another_builder_or_loss_is_another_number(tmp_path: Path, first: Any, second: Any) -> None:
    """Kills: a hash that leaves out what makes the network of the file, or the settings of a loss."""
    write_zoo(tmp_path, 1)

    def with_(changes: Any, store: str) -> Any:
        plain = settings(tmp_path, measures=["gradient-norm"], store=str(tmp_path / store))
        return {**plain, **changes, "zoo": {**plain["zoo"], **changes.get("zoo", {})}}

    run_study(with_(first, "one.db"))
    again, anew = run_study(with_(second, "one.db")), run_study(with_(second, "two.db"))
    assert again.columns() == anew.columns()


def test_a_smaller_radius_starts_the_search_anew(tmp_path: Path) -> None:
    """A search starts from the radius below, so its number is another unit. Kills: a hash of the radius alone."""
    write_zoo(tmp_path, 1)
    for rho in ([1.0], [0.5, 1.0]):
        run_study(settings(tmp_path, measures=[{"measure": "adaptive", "rho": rho}]))
    whole = settings(tmp_path, measures=[{"measure": "adaptive", "rho": [0.5, 1.0]}], store=str(tmp_path / "whole.db"))
    run_study(whole)
    assert exported(tmp_path / "study.db") == exported(tmp_path / "whole.db")
    assert len(rows(tmp_path / "study.db")) == len(rows(tmp_path / "whole.db")) + 1


def only_at_home() -> Any:
    if multiprocessing.parent_process() is not None:
        raise DataError("expected to be at home")
    return {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.long)}


def test_data_that_a_process_cannot_load(tmp_path: Path) -> None:
    """Kills: a study that waits for ever for workers that never began."""
    write_zoo(tmp_path, 2)
    config = settings(tmp_path, data={"train": only_at_home}, measures=["gradient-norm"], workers=1)
    with pytest.raises(DataError, match="expected to be at home"):
        run_study(config, engine="processes")
    assert run_study(config, engine="serial").failures == ()


def test_other_data_are_other_numbers(tmp_path: Path) -> None:
    """Kills: results kept by the name of a data file."""
    write_zoo(tmp_path, 2)
    before = run_study(settings(tmp_path))
    shutil.copy(tmp_path / "iid.npz", tmp_path / "shifted.npz")
    after = run_study(settings(tmp_path))
    assert after.gen["shifted_loss"].tolist() == after.gen["iid_loss"].tolist() == before.gen["iid_loss"].tolist()
    assert after.gen["train_loss"].tolist() == before.gen["train_loss"].tolist()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"checkpoints": "nowhere/*"}, ConfigError, "expected checkpoints, got none for 'nowhere"),
        ({"columns": ["momentum"]}, ConfigError, "expected hyperparameters out of lr, seed, optimiser; got 'momentum'"),
        ({"hyperparameters": "no.csv"}, ConfigError, "expected hyperparameters, but .*no.csv cannot be read"),
        ({"hyperparameters": "no.txt"}, ConfigError, "no.txt cannot be read"),
        ({"hyperparameters": "odd.txt"}, ConfigError, "expected a .csv or .json file"),
        ({"hyperparameters": "uneven.csv"}, ConfigError, "as many cells in each row"),
        ({"hyperparameters": "nameless.csv"}, ConfigError, "a column checkpoint or experiment_id or name"),
        ({"hyperparameters": "twice.csv"}, ConfigError, "two rows for 'run-0'"),
        ({"hyperparameters": "number.json"}, ConfigError, "expected rows, or an object for each checkpoint, got int"),
        ({"hyperparameters": "short.csv"}, ConfigError, "a row for each checkpoint, none for run-1"),
        ({"hyperparameters": "long.csv"}, ConfigError, "a checkpoint for each row, none for run-9"),
        ({"hyperparameters": "stranger.csv", "partial": True}, ConfigError, "expected rows named like 'run-0'"),
        ({"hyperparameters": "config.json"}, ConfigError, "expected config.json beside each checkpoint"),
        ({"checkpoints": ["runs/*", "again/*"]}, ConfigError, "of different names, got 'run-0' for"),
        ({"checkpoints": {"a": network}, "hyperparameters": "config.json"}, ConfigError, "checkpoints on disk beside"),
    ],
)
def test_a_zoo_that_cannot_be_found(tmp_path: Path, change: dict[str, Any], kind: type[Exception], words: str) -> None:
    write_zoo(tmp_path, 2)
    shutil.copytree(tmp_path / "runs", tmp_path / "again")
    files = {
        "odd.txt": "x", "uneven.csv": "checkpoint,lr\nrun-0\n", "nameless.csv": "lr\n1\n", "number.json": "3",
        "twice.csv": "name,lr\nrun-0,1\nrun-0,2\n", "short.csv": "name,lr\nrun-0.safetensors,1\n",
        "long.csv": "name,lr\nrun-0,1\nrun-1,1\nrun-9,1\n", "stranger.csv": "name,lr\nx,1\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    config = settings(tmp_path)
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        with pytest.raises(kind, match=words):
            run_study({**config, "zoo": {**config["zoo"], **change}})
    finally:
        os.chdir(here)


def test_a_partial_zoo(tmp_path: Path) -> None:
    write_zoo(tmp_path)
    (tmp_path / "runs.csv").write_text("name,lr,note\nrun-0,1,a\nrun-2,,b\nrun-7,3,c\n")
    config = settings(tmp_path, measures=["gradient-norm"])
    config["zoo"]["partial"] = True
    table = run_study(config)
    assert table.names == ("run-0", "run-2")
    assert table.hp == {"lr": (1, None), "note": ("a", "b")}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"data": {"train": "no.npz"}}, DataError, "data.train: expected a data file, got nothing"),
        ({"data": {"train": {"x": [[1.0]]}}}, DataError, "data.train: expected inputs and one array of targets"),
        ({"device": "toaster"}, ArgumentError, "device: expected a device that torch can use here, got 'toaster'"),
        ({"engine": "magic"}, ConfigError, "an engine out of serial, processes, ray, ranks; got 'magic'"),
        ({"measures": [{"measure": "adaptive", "name": "c"}] * 2}, ConfigError, "different names, got 'c' twice"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used(
    tmp_path: Path, change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    write_zoo(tmp_path, 1)
    with pytest.raises(kind, match=words):
        run_study(settings(tmp_path, **change))


def test_functions_that_no_other_process_can_import(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    config = settings(tmp_path)
    config["zoo"]["builder"] = lambda: network()
    with pytest.raises(ArgumentError, match="functions that a new process can import"):
        run_study(config, engine="processes")


def test_a_function_that_gives_no_model(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    config = settings(tmp_path)
    config["zoo"] = {"checkpoints": {"a": dict, "b": network}}
    assert "expected a torch.nn.Module from the function for 'a', got dict" in run_study(config).failures[0][2]


# ---------------------------------------------------------------------------------------------------------- the store


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own error, by a limit on its pages. Kills: half a transaction, and a store that stays broken."""
    write_zoo(tmp_path, 6)
    run_study(settings(tmp_path), tmp_path / "whole.db")
    write, calls = Store.write, 0

    def filling(self: Store, done: Done, stamp: str = "") -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
            self._db.execute(f"PRAGMA max_page_count = {pages}")
        write(self, done, stamp)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", filling)
        with pytest.raises(StoreError, match=r"disk is full: make room .* what was stored is safe"):
            run_study(settings(tmp_path))
    kept, numbers = rows(tmp_path / "study.db"), rows(tmp_path / "whole.db")
    assert 0 < len(kept) < len(numbers)
    assert kept.items() <= numbers.items()
    run_study(settings(tmp_path))
    assert exported(tmp_path / "study.db") == exported(tmp_path / "whole.db")


def as_nobody(work: Callable[[], None]) -> int:
    """Root may write anywhere, so the child gives that up first."""

    def first() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        work()

    return ended(forked(first))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Its store can be read and exported; a study says what is wrong. Kills: readers that need to write."""
    write_zoo(tmp_path, 2)
    run_study(settings(tmp_path))
    expected = exported(tmp_path / "study.db")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(tmp_path / "study.db", folder / "study.db")
        (folder / "study.db").chmod(0o444)
        folder.chmod(0o555)

        def read() -> None:
            with Store(folder / "study.db") as store:
                assert len(store.table()) == 2

        def write() -> None:
            with pytest.raises(StoreError, match=r"folder to write the store .* Permission denied: name another"):
                only_writer(folder / "study.db").__enter__()
            with pytest.raises(StoreError, match="cannot be written here; copy it, or name another"):
                Store(folder / "study.db", write=True).set_fact("a", 1)

        assert as_nobody(read) == 0
        assert as_nobody(write) == 0
        assert sorted(p.name for p in folder.iterdir()) == ["study.db"]
        folder.chmod(0o755)
    assert exported(tmp_path / "study.db") == expected


def test_files_that_are_no_stores(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected the store of a study, got nothing at"):
        Store(tmp_path / "no.db")
    (tmp_path / "text.db").write_text("checkpoint,gen.loss\n" * 100)
    (tmp_path / "empty.db").touch()
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (a)")
    with Store(tmp_path / "future.db", write=True) as store:
        store._db.execute("PRAGMA user_version = 99")
    other.close()
    for name, words in {
        "text": "file is not a database: this is no SQLite file",
        "empty": "is empty",
        "other": "is another SQLite file",
        "future": "has format 99",
    }.items():
        for write in (False, True):
            if (name, write) != ("empty", True):
                with pytest.raises(StoreError, match=words):
                    Store(tmp_path / f"{name}.db", write=write)
    with pytest.raises(StoreError, match="is its folder there, and may you write in it"):
        Store(tmp_path / "no folder" / "study.db", write=True)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Kills: a lock that stays when its owner is killed; two studies that measure everything twice."""
    write_zoo(tmp_path, 1)
    with only_writer(tmp_path / "study.db"), pytest.raises(StoreError, match="alone, but another run is at it"):
        run_study(settings(tmp_path))
    assert run_study(settings(tmp_path)).failures == ()
    assert not (tmp_path / "study.db.lock").exists()
    (tmp_path / "study.db.lock").touch()  # as a killed run leaves it
    run_study(settings(tmp_path))


def test_readers_while_a_study_writes(tmp_path: Path) -> None:
    """Every look sees whole transactions, and never less than the look before. Kills: readers that block or break."""
    write_zoo(tmp_path, 4)
    store = tmp_path / "study.db"
    child = forked(lambda: run_study(settings(tmp_path)))
    looks, seen, before = 0, set(), 0
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        try:
            with Store(store) as opened:
                table = opened.table()
        except StoreError as error:
            assert "is empty" in str(error) or "got nothing" in str(error)  # noqa: PT017
            continue
        filled = sum(v is not None for n, values in table.columns().items() if n[:2] in ("co", "ge") for v in values)
        for name in {n.rpartition("_")[0] for n in table.gen}:  # a set's numbers come together or not at all
            there = [np.isfinite(v) for n, v in table.gen.items() if n.startswith(f"{name}_")]
            assert all((t == there[0]).all() for t in there)
        assert filled >= before
        looks, before = looks + 1, filled
        seen.add(filled)
    assert looks > 10
    assert len(seen) > 3
    assert len(rows(store)) == 4 * UNITS


def test_a_store_without_a_study(tmp_path: Path) -> None:
    """The parts of the store by themselves, in memory."""
    column = Column("complexity.x@1", {"what": "x", "rho": [1.0]})
    store = Store(":memory:", write=True)
    store.plan([("b", {"lr": 1}), ("a", {})], [column])
    store.write(Done("a", "d", {column.key: Outcome(0.1 + 0.2, (0.1, 0.2), 0.05, "converged", 1e-3, 7, 0.5)}))
    store.write(Done("b", "d", {column.key: Outcome.failed(LossError("expected better"))}))
    assert store.outcomes("a")["complexity.x@1"].value == 0.1 + 0.2
    assert store.outcomes("a")["complexity.x@1"].evaluations == 7
    table = store.table()
    assert table.names == ("b", "a")
    assert table.per_batch["x@1"] == ((), (0.1, 0.2))
    assert table.failures == (("b", "x@1", "LossError: expected better"),)
    (state,) = store.progress()
    assert (state.done, state.failed, state.pending, state.seconds) == (1, 1, 0, 0.5)
    other = Column("complexity.y", {"what": "y"})
    store.plan([("a", {})], [column, other])
    assert store.table().names == ("a",)
    store.write(Done("a", "of other weights", {other.key: Outcome(1.0)}))  # and killed before the rest
    assert store.table().complexity["y"].tolist() == [1.0]
    assert np.isnan(store.table().complexity["x@1"][0])
    assert [(c.done, c.pending) for c in store.progress()] == [(0, 1), (1, 0)]
    store.plan([("b", {}), ("a", {})], [column])
    assert len(store.table().failures) == 1
    store.close()
