"""torchrun: one answer, the number of one process, one writer; ranks killed at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from killing import children, exported, rows
from ranked import data, network
from spiritlevel.cli import main
from spiritlevel.study import run_study
from spiritlevel.study.exchange import read_table

TESTS = Path(__file__).parent


def write(folder: Path, count: int = 3) -> None:
    for i in range(count):
        save_file(network(i).state_dict(), folder / f"m{i}.safetensors")
    x, y = (torch.cat([b[i] for b in data()]).numpy() for i in (0, 1))
    np.savez(folder / "d.npz", x=x, y=y)


def line(folder: Path, *more: str) -> list[str]:
    return ["measure", str(folder / "m0.safetensors"), "--builder", "ranked:network", "--data", str(folder / "d.npz"),
            "--measure", "geodesic", "--rho", "0.1", "--batch-size", "5", "--json", *more]  # fmt: skip


def torchrun(arguments: list[str], **more: Any) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "spiritlevel",
    ]
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.Popen([*command, *arguments], text=True, env=environment, **more)


def test_sharding_needs_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 1)
    assert main(line(tmp_path, "--sharded")) == 2
    assert "expected torchrun with two or more processes to shard over, got a single process" in capsys.readouterr().err


def test_the_engine_for_ranks_needs_torchrun(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(ValueError, match="expected engine 'ranks' under torchrun, got a single process"):
        run_study(study(tmp_path, tmp_path / "x.db"), engine="ranks")


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--sharded"]])
def test_torchrun_prints_once_and_the_same_number(
    tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: every rank prints; a number of half the data."""
    write(tmp_path, 1)
    assert main(line(tmp_path)) == 0
    one = json.loads(capsys.readouterr().out)["measurements"][0]["value"]
    process = torchrun(line(tmp_path, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out)["measurements"][0]["value"] == pytest.approx(one, rel=1e-6)


def study(folder: Path, store: Path) -> dict[str, Any]:
    return {
        "zoo": {"checkpoints": str(folder / "m*.safetensors"), "builder": "ranked:network"},
        "data": {"train": str(folder / "d.npz")},
        "measures": [{"measure": "adaptive", "rho": [0.2, 0.5]}, {"measure": "gradient-norm", "geometry": "euclidean"}],
        "batches": {"size": 5},
        "store": str(store),
    }


def killed(config: Path, store: Path, seconds: float, which: int) -> bool:
    """Run the study under torchrun and kill one rank after a while; whether it was killed before the end."""
    before = len(rows(store)) if store.exists() else 0
    process = torchrun(["study", "run", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    while (
        process.poll() is None and (not store.exists() or len(rows(store)) <= before) and time.monotonic() - began < 400
    ):
        time.sleep(0.05)  # the imports take most of the time
    time.sleep(seconds)
    ranks = sorted(children(process.pid))
    if process.poll() is None and len(ranks) > which:
        os.kill(ranks[which], signal.SIGKILL)
    return process.wait(400) != 0


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_killed_rank_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: two writers, failures stored for units whose partner died, a store that cannot be read afterwards."""
    write(tmp_path, 6)
    run_study(study(tmp_path, tmp_path / "one.db"))
    one = rows(tmp_path / "one.db")
    config, store = tmp_path / "study.yaml", tmp_path / "study.db"
    config.write_text(json.dumps(study(tmp_path, store)))
    dice, kills, seen = random.Random(0), 0, {}
    for attempt in range(8):
        died = killed(config, store, dice.uniform(0, 0.5), attempt % 2)
        now = rows(store)
        assert seen.items() <= now.items()
        assert now.keys() <= one.keys()
        kills, seen = kills + died, now
        if not died:
            break
    else:
        assert torchrun(["study", "run", str(config)], stdout=subprocess.DEVNULL).wait(600) == 0
    assert kills >= 2
    assert rows(store).keys() == one.keys()
    for name in ("study", "one"):
        (tmp_path / f"{name}.csv").write_bytes(exported(tmp_path / f"{name}.db"))
    found, wanted = (read_table(tmp_path / f"{name}.csv").columns() for name in ("study", "one"))
    for name, values in wanted.items():
        if name.startswith(("complexity.", "gen.")):
            np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)
    assert not read_table(tmp_path / "study.csv").failures
    with capsys.disabled():
        print(f" [{kills} kills]", end="")
