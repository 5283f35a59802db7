"""Engine ``ray`` without a cluster: who gets what, files on nodes, workers, and everything that can be refused."""

import os
import re
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from killing import exported, rows
from ray_tools import FakeRay
from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, ConfigError, EngineError, MissingDependencyError
from spiritlevel.study import StudyConfig, run_study
from spiritlevel.study import ray_cluster as rc
from spiritlevel.study.ahead import GROUP
from spiritlevel.study.deal import Deal, given_up
from spiritlevel.study.in_ray import in_ray
from spiritlevel.study.jobs import Job
from spiritlevel.study.node_files import NodeFiles, Wanted, packed, stamp_of
from spiritlevel.study.order import Order
from spiritlevel.study.plan import Plan
from spiritlevel.study.ray_cluster import Share
from spiritlevel.study.remote import Ready, RemoteWorker
from spiritlevel.study.session import Session
from spiritlevel.study.units import Column, Outcome, Task
from zoos import network, settings, write_zoo


class Single(Job):
    """A job of one column."""

    def __init__(self, name: str) -> None:
        self._columns = (Column(f"gen.{name}", {"what": name}),)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._columns

    def outcomes(self, bench: Any, wanted: Any) -> Any:
        raise NotImplementedError


JOBS = [Single("a"), Single("b"), Single("c"), Single("d")]
KEYS = frozenset(c.key for job in JOBS for c in job.columns)


def dealt(count: int, retries: int = 1, total: int | None = None) -> Deal:
    tasks = [Task(f"run-{i}", KEYS) for i in range(count)]
    return Deal(tasks, JOBS, {f"run-{i}": i for i in range(total or count)}, retries)


def test_a_worker_keeps_its_checkpoint_and_the_last_ones_are_shared() -> None:
    """Kills: units dealt in any order, so that each loads its checkpoint anew; idle workers while one has all that is
    left; a unit dealt twice or never."""
    deal, at, seen = dealt(2), {1: None, 2: None}, []
    order = [1, 2, 1, 1, 1, 1, 2, 2]  # the first worker is done with its checkpoint and helps the second
    for worker in order:
        unit = deal.next(at[worker])
        assert unit is not None
        at[worker] = unit.task.checkpoint
        seen.append((worker, str(unit)))
    assert [s for w, s in seen if w == 1] == ["run-0: a", "run-0: b", "run-0: c", "run-0: d", "run-1: d"]
    assert [s for w, s in seen if w == 2] == ["run-1: a", "run-1: b", "run-1: c"]
    assert len(deal) == 0
    assert deal.next("run-1") is None


def test_workers_begin_in_groups_of_their_own() -> None:
    """Kills: all workers in one group of small networks, which each then measures whole."""
    deal = dealt(3 * GROUP)
    first, second = (deal.next(None) for _ in range(2))
    assert [u.task.checkpoint for u in (first, second) if u] == ["run-0", f"run-{GROUP}"]
    third = deal.next(None)
    assert third is not None
    assert third.task.checkpoint == f"run-{2 * GROUP}"
    deal = dealt(3 * GROUP)
    for _ in range(len(JOBS)):
        deal.next(f"run-{GROUP}")
    after = deal.next(f"run-{GROUP}")
    assert after is not None
    assert after.task.checkpoint == f"run-{GROUP + 1}"  # and not the first group, which nobody is at


def test_only_what_is_left_is_dealt() -> None:
    key = JOBS[1].columns[0].key
    deal = Deal([Task("run-0", frozenset({key}))], JOBS, {"run-0": 0}, 1)
    unit = deal.next(None)
    assert unit is not None
    assert unit.task.keys == {key}
    assert len(deal) == 0


def test_a_lost_unit_is_dealt_again_and_then_given_up() -> None:
    """Kills: a study that ends at the first loss, one that tries for ever, and other units lost with it."""
    deal = dealt(1, retries=2)
    first = deal.next(None)
    assert first is not None
    deal.done(first)
    for _ in range(2):
        unit = deal.next("run-0")
        assert unit is not None
        assert str(unit) == "run-0: b"
        assert deal.lost(unit) is None
    assert deal.next("run-0") == unit
    given = deal.lost(unit)
    assert given == unit.task
    assert str(deal.next("run-0")) == "run-0: c"
    done = given_up(given, "abc", 3, "it ended")
    assert "3 workers were lost at it, the last one because it ended" in str(
        done.outcomes[JOBS[1].columns[0].key].error
    )


def test_a_checkpoint_that_kills_whoever_loads_it_is_given_up_whole() -> None:
    deal = dealt(2, retries=1)
    unit = deal.next(None)
    assert unit is not None
    assert deal.lost(unit) is None
    assert deal.next(None) == unit  # its successor begins with what was lost, and not with other units to lose
    given = deal.lost(unit)
    assert given is not None
    assert given.keys == KEYS
    assert len(deal) == len(JOBS)
    assert str(deal.next("run-0")) == "run-1: a"


# ---------------------------------------------------------------------------------------------------- files on nodes


def test_files_are_read_where_they_are_or_kept_once(tmp_path: Path) -> None:
    """Kills: content sent where the same file is, another file of that path read, a second copy, half a file."""
    path, cache = tmp_path / "a.npz", tmp_path / "cache"
    path.write_bytes(b"here")
    stamps = {str(path): stamp_of(path)}
    near, far = NodeFiles(stamps, False, str(cache)), NodeFiles(stamps, True, str(cache))
    assert near.here(str(path)) == path
    assert far.missing([str(path)]) == Wanted((str(path),))
    parcel = packed(path)
    path.write_bytes(b"else")  # as many bytes
    os.utime(path, ns=(0, 0))
    assert near.missing([str(path)]) == Wanted((str(path),))
    far.keep(str(path), parcel)
    far.keep(str(path), {"a.npz": b"not written again"})
    for files in (near, far):
        kept = files.here(str(path))
        assert kept is not None
        assert kept.name == "a.npz"
        assert kept.read_bytes() == b"here"
    assert len(list(cache.iterdir())) == 1
    assert near.here("nowhere") == Path("nowhere")  # not there at the start either: whoever opens it says so


def test_folders_are_sent_with_what_models_are_loaded_from(tmp_path: Path) -> None:
    folder = tmp_path / "vit"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "optimizer.log"):
        (folder / name).write_text(name)
    files = NodeFiles({str(folder): stamp_of(folder)}, True, str(tmp_path / "cache"))
    files.keep(str(folder), packed(folder))
    kept = files.here(str(folder))
    assert kept is not None
    assert kept.name == "vit"
    assert sorted(p.name for p in kept.iterdir()) == ["config.json", "model.safetensors"]


def test_files_that_cannot_be_sent_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"x")
    stamps = {str(path): stamp_of(path)}
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(EngineError, match=r"file cannot be written: .*set ray.cache to another"):
        NodeFiles(stamps, True, str(tmp_path / "file")).keep(str(path), packed(path))
    monkeypatch.setattr(Path, "read_bytes", _refused)
    with pytest.raises(EngineError, match=r"expected to send .*a.npz to a node that does not have it, but .*refused"):
        packed(path)


def _refused(self: Path) -> bytes:
    raise OSError("refused")


# ------------------------------------------------------------------------------------------------------------ workers


@pytest.fixture
def plan(tmp_path: Path) -> tuple[Plan, Session]:
    write_zoo(tmp_path, 2)
    return planned(tmp_path)


def planned(folder: Path, **changes: Any) -> tuple[Plan, Session]:
    from spiritlevel.study.members import find_checkpoints

    config = StudyConfig.model_validate(settings(folder, measures=["gradient-norm"], **changes))
    session = Session(config)
    zoo = {c.name: c for c in find_checkpoints(config)}
    return Plan(config, zoo, {"gradient-norm": ()}), session


def tasks_of(plan: Plan, session: Session) -> list[Task]:
    keys = frozenset(c.key for job in plan.jobs(session) for c in job.columns)
    return [Task(name, keys) for name in plan.zoo]


def worker_of(plan: Plan, stamps: dict[str, str]) -> RemoteWorker:
    return RemoteWorker(Order.of(plan, 1, "ray"), stamps, 1)


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in this process change where modules are found."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_worker_asks_for_files_and_loads_a_checkpoint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a checkpoint loaded for every unit, files read past the node's own, and the number of another file."""
    write_zoo(tmp_path, 2)
    plan, session = planned(tmp_path, ray={"files": "sent", "cache": str(tmp_path / "cache")})
    from spiritlevel.study.in_ray import _stamps

    worker, loads = worker_of(plan, _stamps(plan)), []
    monkeypatch.setattr(Session, "load", _counted(loads, Session.load))
    wanted = worker.prepare({})
    assert isinstance(wanted, Wanted)
    assert {Path(p).name for p in wanted.paths} == {"train.npz", "iid.npz", "shifted.npz"}
    ready = worker.prepare({p: packed(Path(p)) for p in wanted.paths})
    assert isinstance(ready, Ready)
    assert ready.columns == {c.name: c.key for job in plan.jobs(session) for c in job.columns}
    units = [Deal(tasks_of(plan, session), plan.jobs(session), {"run-0": 0, "run-1": 1}, 0)]
    unit = units[0].next(None)
    assert unit is not None
    wanted = worker.perform(unit.task, {})
    assert isinstance(wanted, Wanted)
    sent = {p: packed(Path(p)) for p in wanted.paths}
    (tmp_path / "runs" / "run-0.safetensors").write_bytes(b"damaged since")
    found = worker.perform(unit.task, sent)
    assert not isinstance(found, Wanted | EngineError)
    assert all(o.error is None for o in found[0].outcomes.values())
    second = units[0].next("run-0")
    assert second is not None
    assert not isinstance(worker.perform(second.task, {}), Wanted)
    assert [Path(str(p)).parent.parent for p in loads] == [tmp_path / "cache"]


def _counted(loads: list[Any], load: Any) -> Any:
    def counting(self: Session, checkpoint: Any) -> Any:
        loads.append(checkpoint.source)
        return load(self, checkpoint)

    return counting


def test_what_a_worker_cannot_do_is_an_answer(tmp_path: Path, plan: tuple[Plan, Session]) -> None:
    """Kills: an exception on another machine, which comes back as somebody else's."""
    given, session = plan
    (tmp_path / "train.npz").unlink()
    said = worker_of(given, {}).prepare({})
    assert "expected a data file, got nothing at" in str(said)
    worker = worker_of(
        replace(given, config=given.config.model_copy(update={"ray": _cached(tmp_path / "runs.csv")})), {}
    )
    worker._work = object()  # type: ignore[assignment]
    path = str(tmp_path / "iid.npz")
    worker._files._stamps = {path: "x"}  # type: ignore[assignment]
    assert "set ray.cache to another" in str(worker.perform(tasks_of(given, session)[0], {path: {"iid.npz": b""}}))


def _cached(path: Path) -> Any:
    from spiritlevel.study.cluster_settings import RaySettings

    return RaySettings(cache=path / "below a file")


def test_only_plain_plans_travel(plan: tuple[Plan, Session]) -> None:
    given = replace(plan[0], config=plan[0].config.model_copy(update={"name": (lambda: 0)}))
    with pytest.raises(ArgumentError, match="expected functions that a new process can import, for engine 'ray'"):
        Order.of(given, 1, "ray")


# ------------------------------------------------------------------------------------------- the engine on a fake Ray


def fake(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> FakeRay:
    monkeypatch.setattr(rc, "_imported", lambda: ray)
    return ray


def test_the_same_table_through_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: units lost or computed twice between engine and workers; names that tell nobody what runs."""
    write_zoo(tmp_path, 3)
    run_study(settings(tmp_path, store=str(tmp_path / "whole.db"), name="my zoo"))
    ray = fake(monkeypatch, FakeRay(nodes=({"CPU": 4.0}, {"CPU": 1.0})))
    config = settings(tmp_path, engine="ray", workers=2, name="my zoo", ray={"files": "sent", "cache": tmp_path / "c"})
    run_study(config)
    assert exported(tmp_path / "study.db") == exported(tmp_path / "whole.db")
    assert rows(tmp_path / "study.db") == rows(tmp_path / "whole.db")
    called = [n for n in ray.names if "average" in n]
    assert set(called) == {f"my zoo: run-{i}: average-case-euclidean@0.1" for i in range(3)}
    assert len(ray.options) == 2
    assert ray.killed == 2
    assert ray.options[0]["name"].startswith("spiritlevel my zoo ")
    run_study(config)
    assert len(ray.options) == 2  # nothing to do, nothing started


def test_a_share_of_a_node() -> None:
    """Kills: more workers than GPUs, than memory, than threads have cores."""
    config = StudyConfig.model_validate(
        {"zoo": {"checkpoints": "x"}, "data": {"train": "x"}, "measures": "adaptive", "device": "cuda", "threads": 2,
         "ray": {"memory": 2, "resources": {"a100": 0.5}}}
    )  # fmt: skip
    share = Share.of(config)
    assert share.options == {"num_cpus": 2, "num_gpus": 1.0, "resources": {"a100": 0.5}, "memory": 2 * 2**30}
    node = {"CPU": 9.0, "GPU": 8.0, "memory": 100.0 * 2**30, "a100": 8.0}
    assert share.fit(node) == 4
    assert share.fit({**node, "GPU": 3.0}) == 3
    assert share.fit({**node, "memory": 5.0 * 2**30}) == 2
    assert share.fit({**node, "a100": 0.5}) == 1
    assert share.fit({"CPU": 9.0}) == 0
    assert str(share) == "2 CPU and 1 GPU and 0.5 a100 and 2 GiB"
    assert Share.of(config.model_copy(update={"device": "cpu"})).gpus == 0


class Other(RemoteWorker):
    """A node with something else installed, or other data."""

    change: dict[str, Any]

    def prepare(self, sent: Any) -> Any:
        said = super().prepare(sent)
        return replace(said, **self.change) if isinstance(said, Ready) else said


class Deadly(RemoteWorker):
    """Lost before it is ready."""

    def prepare(self, sent: Any) -> Any:
        raise FakeRay.exceptions.RayError("The actor died.\nIts process has died. Some common causes include: (1) all")


class Broken(RemoteWorker):
    """Code that raises."""

    def perform(self, task: Task, sent: Any) -> Any:
        raise FakeRay.exceptions.RayTaskError("a traceback\nZeroDivisionError: division by zero")


class Restless(RemoteWorker):
    """Files that change again and again."""

    def perform(self, task: Task, sent: Any) -> Any:
        return Wanted(tuple(str(c.source) for c in self._plan.zoo.values()))


class Mortal(RemoteWorker):
    """Lost at a unit of run-1, twice."""

    losses = 0

    def perform(self, task: Task, sent: Any) -> Any:
        if task.checkpoint == "run-1" and Mortal.losses < 2:
            Mortal.losses += 1
            raise FakeRay.exceptions.RayError("it died")
        return super().perform(task, sent)


def ran(plan: tuple[Plan, Session], ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    fake(monkeypatch, ray)
    return list(in_ray(*plan, tasks_of(*plan)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"versions": {"spiritlevel": "0.0.1"}, "node": "far"}, "on every node as here, but far has 0.0.1"),
        ({"columns": {}, "node": "far"}, "same settings and data on every node as here, but on far they differ"),
    ],
)
def test_nodes_that_would_compute_other_numbers_are_refused(
    plan: tuple[Plan, Session], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], match: str
) -> None:
    """Kills: a table of two versions, and units that nobody ever does because their hashes are unknown there."""
    monkeypatch.setattr(Other, "change", change, raising=False)
    with pytest.raises(EngineError, match=match):
        ran(plan, FakeRay(Other), monkeypatch)


def test_workers_that_never_get_ready(plan: tuple[Plan, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="3 in a row were lost before: Its process has died; does every node"):
        ran(plan, FakeRay(Deadly), monkeypatch)


def test_code_that_raises_on_a_worker(plan: tuple[Plan, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="expected spiritlevel to work on every node, but ZeroDivisionError"):
        ran(plan, FakeRay(Broken), monkeypatch)


def test_files_that_change_while_the_study_runs(plan: tuple[Plan, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"expected files that stay as they are, but .*run-0.safetensors"):
        ran(plan, FakeRay(Restless), monkeypatch)


@pytest.mark.parametrize("retries", [1, 2])
def test_losses_and_retries(plan: tuple[Plan, Session], monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    """Kills: a loss that costs numbers although retries are left, and one that hangs when none are."""
    config = plan[0].config.model_copy(update={"ray": plan[0].config.ray.model_copy(update={"retries": retries})})
    monkeypatch.setattr(Mortal, "losses", 0)
    found = ran((replace(plan[0], config=config), plan[1]), FakeRay(Mortal), monkeypatch)
    outcomes = [(d.checkpoint, k, o) for d in found for k, o in d.outcomes.items()]
    assert len({(c, k) for c, k, _ in outcomes}) == len(outcomes) == 2 * len(tasks_of(*plan)[0].keys)
    failed = {c for c, _, o in outcomes if o.error is not None}
    assert failed == (set() if retries == 2 else {"run-1"})
    if failed:
        assert "2 workers were lost at it, the last one because it died" in str(outcomes[-1][2].error)
        assert len([o for c, _, o in outcomes if o.error]) == len(tasks_of(*plan)[0].keys)


class Waiting(FakeRay):
    """A cluster on which nothing ever starts."""

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        time.sleep(0.01)
        return [], calls


def test_no_room_for_a_worker(plan: tuple[Plan, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a study that waits for ever for a GPU that the cluster does not have."""
    update = {"ray": plan[0].config.ray.model_copy(update={"wait": 0.05, "gpus": 1.0})}
    given = replace(plan[0], config=plan[0].config.model_copy(update=update)), plan[1]
    match = (
        r"room for a worker with 1 CPU and 1 GPU within 0.05 s, but none could begin on 1 nodes \(1 CPU, 0 GPU\): ask"
    )
    with pytest.raises(EngineError, match=match):
        ran(given, Waiting(), monkeypatch)


def greedy(output: torch.Tensor, batch: Any) -> torch.Tensor:
    torch.empty(10**16)
    raise AssertionError("this machine has ten petabytes")


def test_memory_that_is_not_there_is_said_with_a_way_out(tmp_path: Path) -> None:
    """Kills: an allocator's words alone, which do not say which setting helps."""
    write_zoo(tmp_path, 1)
    table = run_study(settings(tmp_path, measures=["gradient-norm"], loss={"function": greedy}))
    said = {c: e for _, c, e in table.failures}["train_loss"]
    assert re.search("allocate memory.*set batches.micro to fewer examples", said, re.DOTALL)
    assert Outcome.failed(MemoryError()).error == (
        "MemoryError; set batches.micro to fewer examples in one pass, or take a device with more memory"
    )
    assert Outcome.failed(ValueError("wrong")).error == "ValueError: wrong"


# ----------------------------------------------------------------------------------------------- refused at the start


def test_ray_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zoo(tmp_path, 2)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"'ray' for engine 'ray': pip install 'spiritlevel\[ray\]'"):
        run_study(settings(tmp_path, engine="ray"))


def test_ray_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zoo(tmp_path, 2)
    (tmp_path / "ray.py").write_text("raise RuntimeError('built for another machine')")
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingDependencyError, match="built for another machine"):
        run_study(settings(tmp_path, engine="ray"))


@pytest.mark.parametrize("source", ["ray.address", "RAY_ADDRESS"])
def test_nobody_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Kills: Ray's own patience, which is many minutes; the address of neither setting nor environment taken."""
    write_zoo(tmp_path, 2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        if source == "RAY_ADDRESS":
            monkeypatch.setenv("RAY_ADDRESS", address)
        config = settings(tmp_path, engine="ray", ray={"address": address} if source == "ray.address" else {})
        began = time.monotonic()
        with pytest.raises(
            EngineError, match=rf"{source}: expected a Ray cluster at {address}, but .*refused.*ray start"
        ):
            run_study(config)
    assert time.monotonic() - began < 8
    assert not (tmp_path / "study.db").exists()


def test_a_ray_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zoo(tmp_path, 2)
    broken = ModuleType("ray")
    broken.is_initialized = lambda: False  # type: ignore[attr-defined]
    broken.init = _no_start  # type: ignore[attr-defined]
    broken.shutdown = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(rc, "_imported", lambda: broken)
    with pytest.raises(EngineError, match="expected to start a Ray on this machine, but no ports left: `ray stop`"):
        run_study(settings(tmp_path, engine="ray"))


def _no_start(**given: Any) -> None:
    assert given["address"] == "local"
    assert given["include_dashboard"] is False
    raise RuntimeError("no ports left\nand much more")


def test_a_gpu_by_number(tmp_path: Path) -> None:
    write_zoo(tmp_path, 2)
    with pytest.raises(ConfigError, match="device: expected 'cuda' for engine 'ray', got 'cuda:1'"):
        run_study(settings(tmp_path, engine="ray", device="cuda:1"))


def test_planned_where_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a head node without a GPU that refuses a study for nodes with one, and settings hashes that follow it."""
    write_zoo(tmp_path, 2)
    ray = fake(monkeypatch, FakeRay(nodes=({"CPU": 1.0, "GPU": 1.0},)))
    with pytest.raises(ArgumentError, match="expected a device that torch can use here, got 'cuda'"):
        run_study(settings(tmp_path, engine="ray", device="cuda"))  # said by the worker
    assert ray.options[0]["num_gpus"] == 1.0


def test_settings_of_the_cluster_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_zoo(tmp_path, 2)
    path = tmp_path / "study.yaml"
    text = "zoo: {checkpoints: 'runs/*'}\ndata: {train: train.npz}\nmeasures: adaptive\nengine: ray\n"
    text += "ray:\n  adress: auto\n"
    path.write_text(text)
    assert main(["study", "run", str(path)]) == 2
    assert "study.yaml:6:3: ray.adress" in capsys.readouterr().err
    path.write_text(text.replace("adress: auto", "retries: -1"))
    assert main(["study", "run", str(path)]) == 2
    assert "study.yaml:6:3: ray.retries: " in capsys.readouterr().err
    path.write_text(text.replace("adress: auto", "address: 127.0.0.1:1"))
    assert main(["study", "run", str(path)]) == 1
    assert "study.yaml:6:3: ray.address: expected a Ray cluster at 127.0.0.1:1" in capsys.readouterr().err


def test_quiet_and_without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: Ray's usage reports, on by default; a user's own choice written over."""
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", "mine")
    rc._imported()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] == "mine"


def test_working_dir_starts_at_the_configuration(tmp_path: Path) -> None:
    assert rc._rooted({"working_dir": ".", "pip": ["timm"]}, tmp_path) == {
        "working_dir": str(tmp_path),
        "pip": ["timm"],
    }
    assert rc._rooted({"working_dir": "s3://a/b.zip"}, tmp_path) == {"working_dir": "s3://a/b.zip"}


def test_the_network_of_the_zoo_is_small() -> None:
    """The tests above rely on it: neighbours are sent with it."""
    assert sum(p.numel() for p in network().parameters()) < 100
