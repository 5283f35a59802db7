"""Studies on real Ray clusters, with workers, nodes, heads and drivers killed: nothing lost, nothing twice."""

import collections
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from killing import exported, rows
from ray_tools import cluster, workers
from spiritlevel.study import Store, StudyTable, run_study
from spiritlevel.study.pace import Pace
from spiritlevel.study.ray_cluster import _imported
from zoos import write_zoo

_imported()  # as the engine does it: what Ray prints is fixed when it is imported

_BUILDER = (
    "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))\n"
)
_STUDY = """
name: cluster
zoo: {checkpoints: "runs/*", builder: "models_of_this_study:build", hyperparameters: runs.csv}
data: {train: train.npz, tests: {iid: iid.npz, shifted: shifted.npz}}
measures: [{measure: adaptive, rho: [0.5, 1.0]}, {measure: worst-case, geometry: euclidean, rho: 0.1}, gradient-norm]
loss: {function: "ray_tools:slow_loss"}
batches: {size: 6}
threads: 1
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four checkpoints whose builder lies beside the configuration, measured serially; workers take their time."""
    write_zoo(tmp_path)
    (tmp_path / "models_of_this_study.py").write_text(_BUILDER)
    path = tmp_path / "study.yaml"
    path.write_text(_STUDY)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run_study(path, tmp_path / "whole.db")
    monkeypatch.setenv("SPIRITLEVEL_TEST_SLEEP", "0.02")  # on workers, and where a process is started from here
    return path


def with_ray(path: Path, **settings: Any) -> Path:
    """The same study on Ray."""
    changes = "".join(f"{k}: {v}\n" for k, v in {"engine": "ray", **settings}.items())
    path.write_text(_STUDY + changes)
    return path


class Counted:
    """How often each unit was written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: collections.Counter[tuple[str, str]] = collections.Counter()
        write = Store.write

        def counting(store: Store, done: Any, stamp: str = "") -> None:
            self.units.update((done.checkpoint, key) for key in done.outcomes)
            write(store, done, stamp)

        monkeypatch.setattr(Store, "write", counting)


def same(path: Path, table: StudyTable, counted: Counted) -> None:
    """Nothing lost, nothing twice, the same table byte for byte as in one process."""
    whole, store = path.parent / "whole.db", path.parent / "study.db"
    assert not table.failures
    assert exported(store) == exported(whole)
    assert rows(store) == rows(whole)
    assert set(counted.units.values()) == {1}
    assert set(counted.units) == set(rows(whole))


class Once:
    """Do something when so many units are done, once."""

    def __init__(self, units: int, what: Callable[[], None]) -> None:
        self.units, self.what, self.happened = units, what, False

    def __call__(self, pace: Pace) -> None:
        if pace.done >= self.units and not self.happened:
            self.happened = True
            self.what()


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def test_on_this_machine_with_a_worker_killed(
    study: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: a builder beside the configuration that workers do not find, a lost unit, Ray's words among our own."""
    counted = Counted(monkeypatch)
    murder = Once(4, lambda: kill(workers()[0]))
    table = run_study(with_ray(study, workers=2), on_done=murder)
    assert murder.happened
    same(study, table, counted)
    assert capfd.readouterr().out == ""
    assert not workers()


@pytest.mark.slow
def test_two_nodes_with_workers_killed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: more workers than GPUs, a worker on one node only, content sent twice to a node, nameless workers."""
    from ray.util import list_named_actors

    folder, counted, names, most = study.parent, Counted(monkeypatch), set[str](), 0

    def look() -> None:
        nonlocal most
        names.update(n["name"] for n in list_named_actors(all_namespaces=True))
        most = max(most, len(workers()))

    deaths = [Once(n, lambda: kill(workers()[-1])) for n in (4, 10)]  # at the second one there may be one alone
    with cluster(2, folder, num_gpus=1) as made:
        ray_settings = f"{{address: '{made.address}', gpus: 1, files: sent}}"

        def done(pace: Pace) -> None:
            look()
            for death in deaths:
                death(pace)

        table = run_study(with_ray(study, ray=ray_settings), on_done=done)
    assert all(d.happened for d in deaths)
    same(study, table, counted)
    assert most == 2
    assert len(names) >= 3  # two and who came after them
    assert all(n.startswith("spiritlevel cluster ") for n in names)
    for node in ("node-0", "node-1"):
        kept = [p.name for p in (folder / node).glob("spiritlevel-files-*/*/*")]
        assert sorted(kept) == sorted(
            [*(f"run-{i}.safetensors" for i in range(4)), "train.npz", "iid.npz", "shifted.npz"]
        )


@pytest.mark.slow
def test_a_node_that_is_lost_and_one_that_comes(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: units that were on the node lost with it; nodes that come later left idle."""
    counted, hosts = Counted(monkeypatch), set[int]()
    monkeypatch.setenv("SPIRITLEVEL_TEST_SLEEP", "0.1")
    with cluster(2, study.parent) as made:
        second = next(iter(made.worker_nodes))

        def change() -> None:
            made.remove_node(second, allow_graceful=False)
            made.add_node(num_cpus=1, include_dashboard=False)

        lost = Once(4, change)

        def done(pace: Pace) -> None:
            lost(pace)
            hosts.update(w.ppid() for w in workers())

        monkeypatch.setenv("RAY_ADDRESS", made.address)
        table = run_study(with_ray(study), on_done=done)
    assert lost.happened
    same(study, table, counted)
    assert len(hosts) >= 2


def started(path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spiritlevel", "study", "run", str(path)]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE)


def until(what: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_the_study_itself_is_killed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a Ray that outlives its study, and a store that cannot be read or gone on with."""
    monkeypatch.setenv("SPIRITLEVEL_TEST_SLEEP", "0.1")
    store, whole = study.parent / "study.db", rows(study.parent / "whole.db")
    child = started(with_ray(study, workers=2))
    until(lambda: len(rows(store)) > 3, 120)
    others = psutil.Process(child.pid).children(recursive=True)
    assert len(workers(child.pid)) == 2
    child.kill()
    child.communicate()
    psutil.wait_procs(others, timeout=60)
    left = [p for p in others if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in left if "Agent" not in p.name()]  # Ray's own agents of a dead node take their time
    there = rows(store)
    assert 3 < len(there) < len(whole)
    assert there.items() <= whole.items()
    monkeypatch.setenv("SPIRITLEVEL_TEST_SLEEP", "0")
    counted = Counted(monkeypatch)
    run_study(with_ray(study, workers=2))
    assert exported(store) == exported(study.parent / "whole.db")
    assert set(counted.units) == set(whole) - set(there)


@pytest.mark.slow
@pytest.mark.timeout(600)  # Ray looks for its head for two minutes
def test_the_head_of_the_cluster_is_killed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a store that needs the cluster. The study may end as it likes, and goes on anywhere."""
    monkeypatch.setenv("SPIRITLEVEL_TEST_SLEEP", "0.1")
    store, whole = study.parent / "study.db", rows(study.parent / "whole.db")
    with cluster(2, study.parent) as made:
        child = started(with_ray(study, ray=f"{{address: '{made.address}'}}"))
        until(lambda: len(rows(store)) > 3, 240)
        made.remove_node(made.head_node, allow_graceful=False)
        child.communicate(timeout=200)
    assert child.returncode != 0
    there = rows(store)
    assert 3 < len(there) < len(whole)
    assert there.items() <= whole.items()
    run_study(study, engine="serial")
    assert exported(store) == exported(study.parent / "whole.db")
