"""A study that is killed, again and again: nothing lost, nothing twice, the same table byte for byte."""

import math
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from killing import alive, children, ended, exported, forked, killed_after, killed_in_transaction, rows
from spiritlevel.study import run_study
from zoos import network, settings, write_vits, write_zoo


def test_killed_around_a_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: half a checkpoint in the table, a row lost, a unit measured twice, radii that depend on the kill."""
    write_zoo(tmp_path)
    rule = [{"measure": "adaptive", "rho": {"rise": [0.1, 0.3], "checkpoints": 2}}, "gradient-norm"]
    run_study(settings(tmp_path, measures=rule, store=str(tmp_path / "whole.db")))
    expected, numbers = exported(tmp_path / "whole.db"), rows(tmp_path / "whole.db")
    config = settings(tmp_path, measures=rule)
    store, kills, at = tmp_path / "study.db", 0, 0
    while True:
        at += 1
        before = rows(store) if at > 1 else {}
        if not killed_in_transaction(config, 1 + at % 9, "before" if at % 2 else "after"):
            break
        kills += 1
        after = rows(store)
        assert before.items() <= after.items() <= numbers.items()
    assert kills > 5
    assert exported(store) == expected
    with capsys.disabled():
        print(f" [{kills} kills]", end="")


def random_kills(config: dict[str, Any], whole: Path, kills: int, seconds: float, seed: int) -> int:
    """Kill at random moments until the study is done, anew if need be; compare after every one of them."""
    expected, numbers = exported(whole), rows(whole)
    dice, store, done = random.Random(seed), Path(config["store"]), 0
    finished = 0
    while done < kills or not finished:
        before = rows(store)
        if done < kills and killed_after(config, dice.uniform(0, seconds)):
            done += 1
            assert before.items() <= rows(store).items() <= numbers.items()
            continue
        if done >= kills:
            run_study(config)
        assert exported(store) == expected
        finished += 1
        for path in store.parent.glob(store.name + "*"):
            path.unlink()
    return done


def timed(config: dict[str, Any]) -> float:
    began = time.monotonic()
    run_study(config)
    return time.monotonic() - began


def test_random_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_zoo(tmp_path, 3)
    whole = timed(settings(tmp_path, store=str(tmp_path / "whole.db")))
    config = settings(tmp_path)
    done = random_kills(config, tmp_path / "whole.db", 6, 0.7 * whole, seed=0)
    with capsys.disabled():
        print(f" [{done} kills]", end="")
    assert done == 6


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_thirty_random_kills_of_a_study_as_large_as_the_demonstration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """24 vision transformers, three sets, adaptive and geodesic sharpness at three radii each."""
    config = write_vits(tmp_path, 24)
    whole = timed({**config, "store": str(tmp_path / "whole.db")})
    done = random_kills(config, tmp_path / "whole.db", 30, whole / 12, seed=1)
    with capsys.disabled():
        print(f" [{done} random kills, each table byte-identical]", end="")
    assert done == 30


def sleeper() -> nn.Module:
    time.sleep(float(os.environ.get("SPIRITLEVEL_TEST_SLEEP", "0")))
    return network()


def test_killed_with_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: workers that outlive their study, in the middle of long work, and write or compute on."""
    write_zoo(tmp_path)
    config = settings(tmp_path, engine="processes", workers=2, measures=["gradient-norm"])
    first = {f"run-{i}": str(tmp_path / "runs" / f"run-{i}.safetensors") for i in range(3)}
    config["zoo"]["checkpoints"] = {**first, "run-3": sleeper}
    run_study({**config, "store": str(tmp_path / "whole.db")}, engine="serial")
    monkeypatch.setenv("SPIRITLEVEL_TEST_SLEEP", "100")
    store = tmp_path / "study.db"
    child = forked(lambda: run_study(config))
    while len({checkpoint for checkpoint, _ in rows(store)}) < 3:
        assert time.sleep(0.02) is None
    workers = children(child)
    os.kill(child, signal.SIGKILL)
    ended(child)
    assert len(workers) >= 2
    until = time.monotonic() + 30
    while any(alive(w) for w in workers):
        assert time.monotonic() < until
        time.sleep(0.02)
    monkeypatch.delenv("SPIRITLEVEL_TEST_SLEEP")
    run_study(config)
    assert exported(store) == exported(tmp_path / "whole.db")


def test_a_worker_that_dies_costs_its_checkpoint_only(tmp_path: Path) -> None:
    """Kills: a study that hangs or stops when the system takes a process away."""
    write_zoo(tmp_path)
    config = settings(tmp_path, engine="processes", workers=2)
    config["zoo"]["checkpoints"] = {
        **{f"run-{i}": str(tmp_path / "runs" / f"run-{i}.safetensors") for i in range(3)},
        "run-3": deadly,
    }
    table = run_study(config)
    assert {f[0] for f in table.failures} == {"run-3"}
    assert len(table.failures) == len([c for c in table.columns() if c[:2] in ("co", "ge")])
    assert "ended by signal 9 (out of memory?)" in table.failures[0][2]
    assert all(math.isfinite(v) for v in table.gen["train_loss"][:3])


def deadly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
