"""The monitor by itself: it changes nothing, keeps its budget, survives failures, and its log survives everything."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import random
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from conftest import build_vit
from spiritlevel.errors import ArgumentError, DataError, StoreError
from spiritlevel.measures import Options
from spiritlevel.monitor import Catalogued, Monitor, Probe, Reading, Rise, TopEigenvalue, from_loader, read_log
from spiritlevel.monitor.budget import Budget
from spiritlevel.monitor.untouched import inner, untouched
from spiritlevel.monitor.view import LiveView, LogView, follow, spark
from spiritlevel.problem import Objective

F = nn.functional


class Awkward(nn.Module):
    """A network with everything that a careless measurement would change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.3)
        self.attention = nn.MultiheadAttention(12, 2, dropout=0.2, batch_first=True)
        self.last, self.calls, self.cache = nn.Linear(12, 3), 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # what it does next depends on how often it was called
        random.random(), np.random.rand(), torch.rand(2)
        h = self.drop(torch.relu(self.norm(self.first(x))))
        self.cache = h.detach()
        h = h + self.attention(h[:, None], h[:, None], h[:, None], need_weights=False)[0][:, 0]
        return self.last(h) * (1.0 + 0.01 * (self.calls % 3) * self.training)


def examples(n: int = 24) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)


@dataclass(frozen=True)
class Broken(Probe):
    """Fails after it has done much."""

    error: type[BaseException] = RuntimeError
    name = "broken"
    gradients = 1

    def read(self, problem: Any, memory: Any) -> Any:
        torch.manual_seed(99), random.seed(99), np.random.seed(99)
        problem.model.eval()
        problem.model.calls = 1000
        next(problem.model.parameters()).grad = None
        problem.tensor(problem.weights, next(problem.batches()))
        raise self.error("it did not work\nand more")


ALL = ("geodesic", "adaptive", TopEigenvalue("hessian-top", products=3), Broken())


def trained(monitored: bool, mixed: bool = False, accumulate: int = 1, workers: int = 0, steps: int = 5) -> Any:
    """A training loop of somebody's own: dropout, augmentation by three generators, shuffling, AdamW."""
    random.seed(1), np.random.seed(1)
    model, batch = Awkward(), examples()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(*examples(48)), batch_size=8, shuffle=True, num_workers=workers)
    monitor = Monitor(model, batch, every=2, budget=None, measures=ALL) if monitored else None
    torch.manual_seed(2)
    done = 0
    while done < steps:
        for i, (x, y) in enumerate(loader):
            x = x + 0.1 * random.random() + 0.1 * float(np.random.rand()) + 0.1 * torch.randn(())
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                loss = F.cross_entropy(model(x), y) / accumulate
                if mixed and monitor is not None and i == 0 and done:
                    monitor.measure()  # in the middle of a step, under autocast, with gradients there
            loss.backward()
            if (i + 1) % accumulate and monitor is not None and done == 2:
                monitor.measure()  # while gradients of the first micro-batch wait for the second
            if (i + 1) % accumulate == 0:
                optimizer.step()
                done += 1
                optimizer.zero_grad()
                if monitor is not None:
                    monitor.step()
    return model, optimizer, monitor


def states(model: Any, optimizer: Any) -> list[Any]:
    """Everything that training goes on with."""
    return [
        *(p.detach() for p in model.state_dict().values()),
        *(v for s in optimizer.state.values() for v in s.values()),
        torch.get_rng_state(),
        torch.tensor(np.random.get_state()[1].astype(np.int64)),
        torch.tensor([hash(random.getstate()), model.calls, model.training]),
        *(torch.zeros(0) if p.grad is None else p.grad for p in model.parameters()),
    ]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="plain"),
        pytest.param({"mixed": True}, id="mixed"),
        pytest.param({"accumulate": 2}, id="accumulate"),
        pytest.param({"workers": 2}, id="workers", marks=pytest.mark.slow),
    ],
)
def test_training_is_bitwise_the_same(how: dict[str, Any]) -> None:
    """Kills: no random state put back (any of three), modes or attributes left changed, .grad touched, autocast left
    on or off, batch statistics updated; in each case also after a measure that raised."""
    with_it, optimizer, monitor = trained(True, **how)
    after = states(with_it, optimizer)
    assert same(after, states(*trained(False, **how)[:2]))
    assert len(monitor.readings) >= 2
    for reading in monitor.readings:
        assert {"loss", "gradient-norm", "geodesic@0.1", "adaptive@1", "hessian-top"} <= set(reading.values)
        assert reading.failures == {"broken": "RuntimeError: it did not work"}


def test_the_comparison_can_fail() -> None:
    model, optimizer, _ = trained(False)
    before = states(model, optimizer)
    torch.rand(1)
    assert not same(before, states(model, optimizer))


def test_an_interrupt_comes_through_and_leaves_no_trace() -> None:
    model = Awkward()
    monitor = Monitor(model, examples(), every=1, budget=None, measures=[Broken(KeyboardInterrupt)])
    before = states(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(KeyboardInterrupt):
        monitor.step()
    assert same(before, states(model, torch.optim.SGD(model.parameters(), 0.1)))


def test_readings_are_those_of_the_measures_in_float32() -> None:
    """Kills: a reading under autocast or in training mode."""
    model, (x, y) = Awkward(), examples()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        reading = Monitor(model, (x, y), every=1, budget=None, measures=["geodesic"]).step()
    problem = sl.Problem(model, [(x, y)])
    assert reading is not None
    assert reading.values["loss"] == pytest.approx(problem.value(problem.weights, (x, y)), abs=1e-7)
    assert reading.values["gradient-norm"] == pytest.approx(sl.gradient_norm(problem, sl.Quotient()).value, rel=1e-5)
    whole = sl.geodesic_sharpness(problem, 0.1).value
    assert 0.9 * whole < reading.values["geodesic@0.1"] <= whole * (1 + 1e-4)


def test_every_device_in_use_gets_its_random_state_back(monkeypatch: pytest.MonkeyPatch) -> None:
    state, put_back = [torch.tensor([1]), torch.tensor([2])], []
    for name, value in {
        "is_available": lambda: True, "is_initialized": lambda: True, "get_rng_state_all": lambda: state,
        "set_rng_state_all": put_back.append,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    with warnings.catch_warnings(action="ignore"), untouched(nn.Linear(1, 1)):  # autocast may say there is none
        pass
    assert put_back == [state]


@pytest.mark.slow
def test_wrappers_are_looked_through_and_compiled_networks_are_not_compiled_again() -> None:
    model = Awkward()
    assert inner(nn.DataParallel(model)) is model
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    network = torch.nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    compiled = torch.compile(network, backend=backend)
    compiled(examples()[0])
    before = len(calls)
    reading = Monitor(compiled, examples(), every=1, budget=None, measures=["adaptive"]).step()
    assert reading is not None
    assert reading.failures == {}
    compiled(examples()[0])
    assert len(calls) == before


# ------------------------------------------------------------------------------------------------------------- budget


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Timed(Probe):
    """Takes a stated time."""

    clock: Clock
    seconds: tuple[float, ...] = (2.0,)
    name = "timed"
    gradients = 2

    def read(self, problem: Any, memory: Any) -> Any:
        i = memory.get(0, 0)
        memory[0] = i + 1
        self.clock.now += self.seconds[min(i, len(self.seconds) - 1)]
        return {"timed": sl.Measurement("timed", 1.0, (1.0,), None, sl.Status.EXACT)}


def run(clock: Clock, probe: Probe, steps: int, budget: float | None, every: int, each: float = 1.0) -> Monitor:
    monitor = Monitor(nn.Linear(6, 3), examples(), every=every, budget=budget, measures=[probe], clock=clock)
    monitor.begin()
    for _ in range(steps):
        clock.now += each
        monitor.step()
        if monitor.readings and budget is not None:
            assert monitor.budget.share <= budget + 1e-9
    return monitor


def test_the_budget_is_kept_at_every_moment(caplog: pytest.LogCaptureFixture) -> None:
    """3 % of 1000 s pay for 15 readings of 2 s. Kills: readings that are not counted, a share of the whole time, a
    budget that is asked only once."""
    clock = Clock()
    with caplog.at_level(logging.WARNING, "spiritlevel"):
        monitor = run(clock, Timed(clock), 1000, 0.03, 10)
    steps = [r.step for r in monitor.readings]
    assert steps == [140, 150, *(10 * math.ceil(2 * k / 0.3) for k in range(3, 16))]  # set-up is waited for first
    assert monitor.readings[-1].share == pytest.approx(0.03)
    said = [r.getMessage() for r in caplog.records]
    assert len([s for s in said if "instead of 10" in s]) >= 1
    assert "readings about every 70 steps instead of 10 keep to 3.0% of training time" in said[-1]
    assert monitor.notes[-1][1] in said[-1]


def test_without_a_limit_and_with_room_nothing_is_left_out() -> None:
    clock = Clock()
    assert [r.step for r in run(clock, Timed(clock), 50, None, 10).readings] == [10, 20, 30, 40, 50]
    clock = Clock()
    assert [r.step for r in run(clock, Timed(clock, (0.001,)), 200, 0.03, 10).readings] == list(range(140, 201, 10))


def test_a_dear_reading_is_paid_for_by_waiting() -> None:
    clock = Clock()
    monitor = Monitor(nn.Linear(6, 3), examples(), every=1, budget=0.1, measures=[Timed(clock, (1.0, 20.0, 1.0))],
                      clock=clock)  # fmt: skip
    for _ in range(1000):
        clock.now += 1.0
        monitor.step()
    first = [r.step for r in monitor.readings[:3]]
    assert first[2] - first[1] >= 200 - 20
    assert monitor.budget.share <= 0.1


def test_the_budget_refuses_what_is_no_share() -> None:
    for wrong in (0, -1, 1.5, "much"):
        with pytest.raises(ArgumentError, match=r"expected budget to be a share of training time in \(0, 1\]"):
            Budget(wrong)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- failures


class Failing(nn.Module):
    """Raises in its forward pass when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.fails = nn.Linear(6, 3), False

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise MemoryError("no room")
        return self.net(x)


def test_a_failure_is_logged_each_time_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kills: an exception that ends the training, a failure that is silent, one that is said at each reading, a
    monitor that gives up for good."""
    model, calls = Failing(), []

    def sink(values: Any, step: int) -> None:
        calls.append(step)
        raise OSError("the logger is gone")

    monitor = Monitor(model, examples(), tmp_path / "log.jsonl", every=1, budget=None, to=[sink])
    with caplog.at_level(logging.WARNING, "spiritlevel"), monitor:
        for i in range(6):
            model.fails = 2 <= i < 5
            monitor.step()
    log = read_log(tmp_path / "log.jsonl")
    assert [bool(r.failures) for r in log.readings] == [False, False, True, True, True, False]
    assert log.readings[2].failures["geodesic@0.1"] == "MemoryError: no room"
    assert log.readings[5].values.keys() == log.readings[0].values.keys()
    assert len(calls) == 6
    said = [r.getMessage() for r in caplog.records]
    assert len([s for s in said if "geodesic@0.1 failed at step 3, and training goes on without it" in s]) == 1
    assert len([s for s in said if "the logger is gone" in s]) == 1
    assert len(said) == 3  # the third is adaptive's


def test_a_set_up_that_fails_is_tried_again(tmp_path: Path) -> None:
    model = Failing()
    model.fails = True
    monitor = Monitor(model, examples(), tmp_path / "log.jsonl", every=1, budget=None)
    assert monitor.step() is None
    model.fails = False
    assert monitor.step() is not None
    assert [list(r.failures) for r in read_log(tmp_path / "log.jsonl").readings] == [["set-up"], []]


def test_a_diverged_network_does_not_stop_the_training() -> None:
    model = nn.Linear(6, 3)
    monitor = Monitor(model, examples(), every=1, budget=None)
    monitor.step()
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    reading = monitor.step()
    assert reading is not None
    assert "ModelError: expected finite weights" in reading.failures["geodesic@0.1"]
    assert reading.values == {}


def test_a_full_disk_does_not_stop_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor(nn.Linear(6, 3), examples(), tmp_path / "log.jsonl", every=1, budget=None)
    monitor.step()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(monitor._log), "_line", full)
    assert monitor.step() is not None
    assert monitor.step() is not None
    assert len(read_log(tmp_path / "log.jsonl").readings) == 1
    monitor.close()


def test_wrong_settings_are_an_error_before_training() -> None:
    model, batch = nn.Linear(6, 3), examples()
    with pytest.raises(ArgumentError, match="expected every to be a whole number of steps from 1 on, got 0"):
        Monitor(model, batch, every=0)
    with pytest.raises(ArgumentError, match=r"expected measures out of geodesic, adaptive.*got 'flat'"):
        Monitor(model, batch, measures=["flat"])
    with pytest.raises(ArgumentError, match="expected at least one measure"):
        Monitor(model, batch, measures=[])
    with pytest.raises(ArgumentError, match="expected each measure once"):
        Monitor(model, batch, measures=["geodesic", "geodesic"])
    with pytest.raises(ArgumentError, match=r"expected one batch.*got DataLoader"):
        Monitor(model, DataLoader(TensorDataset(*batch)))
    with pytest.raises(ArgumentError, match="expected names of the model's parameters"):
        Monitor(model, batch, parameters=["no such"])
    with pytest.raises(ArgumentError, match="expected a radius rho"):
        Rise("x", sl.Euclidean(), 0.0)
    with pytest.raises(ArgumentError, match="expected steps >= 1"):
        Rise("x", sl.Euclidean(), 0.1, steps=0)
    with pytest.raises(ArgumentError, match="expected products >= 2"):
        TopEigenvalue("x", products=1)


# ----------------------------------------------------------------------------------------------------------- measures


def test_any_measure_of_the_catalogue_is_one_of_the_monitor() -> None:
    probe = Catalogued("geodesic", Options(rho=(0.05, 0.1)))
    reading = Monitor(nn.Linear(6, 3), examples(), every=1, budget=None, measures=[probe, "gradient-norm"]).step()
    assert reading is not None
    assert set(reading.values) == {"geodesic@0.05", "geodesic@0.1", "gradient-norm"}


def moved(model: nn.Module, size: float) -> None:
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=g, dtype=p.dtype) * p.std() * size if p.numel() > 1 else 0)


def test_a_carried_point_does_not_depend_on_the_point_of_the_orbit(tiny_vit: nn.Module, tiny_batch: Any) -> None:
    """The rise at the carried point is the same when both networks are written with other weights. Kills: coordinates
    kept as they are although the frame turned, tangent vectors carried in the weights."""
    other = copy.deepcopy(tiny_vit)
    moved(other, 0.05)

    def rise(before: nn.Module, after: nn.Module) -> tuple[float, float]:
        first, then = (sl.Problem(m, [tiny_batch]) for m in (before, after))
        chart, new = first.chart(sl.Quotient()), then.chart(sl.Quotient())
        z = Objective(first, chart, tiny_batch)(chart.zeros())[1]
        carried = new.carry(chart.keep(z * (0.1 / z.norm())))
        assert carried is not None
        assert float(carried.norm()) == pytest.approx(0.1, rel=1e-9)
        back = chart.carry(chart.keep(z))
        torch.testing.assert_close(back, z, atol=1e-9, rtol=0)
        return Objective(then, new, tiny_batch).value(carried), Objective(then, new, tiny_batch).value(new.zeros())

    plain, centre = rise(tiny_vit, other)
    turned = []
    for seed, model in enumerate((tiny_vit, other)):
        twin = copy.deepcopy(model)
        twin.load_state_dict(sl.move_along_orbit(twin, sl.find_symmetries(twin), 1.0, seed), strict=False)
        turned.append(twin)
    again, _ = rise(*turned)
    assert plain > centre + 1e-4
    assert again == pytest.approx(plain, rel=1e-7)
    wide = sl.Problem(build_vit(hidden=16), [tiny_batch]).chart(sl.Quotient())
    small = sl.Problem(tiny_vit, [tiny_batch]).chart(sl.Quotient())
    assert wide.carry(small.keep(small.zeros())) is None


def test_carrying_follows_a_frame_that_turns(tiny_vit: nn.Module, tiny_batch: Any) -> None:
    """Where two singular values of a head cross, canonical columns swap; the carried vector stays where it was. Kills:
    Chart.carry that keeps coordinates as they are."""
    problem = sl.Problem(tiny_vit, [tiny_batch])
    chart = problem.chart(sl.Quotient())
    z = Objective(problem, chart, tiny_batch)(chart.zeros())[1]
    kept = chart.keep(z * (0.1 / z.norm()))
    swap = torch.tensor([1, 0, *range(2, chart.parts[-1].gauge.left.shape[-1])])
    frames = tuple(tuple(f[..., swap] for f in frame) if frame else frame for frame in kept.frames)
    pieces = []
    for part, piece in zip(chart.parts, kept.pieces, strict=True):
        a, b = part._matrices(piece) if part.frame() else (piece, None)
        pieces.append(piece if b is None else part._flat(a[..., swap], b[..., swap]))
    carried = chart.carry(type(kept)(tuple(pieces), frames))
    torch.testing.assert_close(carried, torch.cat(kept.pieces), atol=1e-9, rtol=0)


def test_searches_begin_where_the_last_ended() -> None:
    """On the same weights, four gradients a reading close in on the maximum. Kills: cold starts."""
    model, batch = build_vit(), vit_batch()
    monitor = Monitor(model, batch, every=1, budget=None, measures=[Rise("geodesic", sl.Quotient(), 0.5)])
    readings = [r for r in (monitor.step() for _ in range(8)) if r is not None]
    values = [r.values["geodesic@0.5"] for r in readings]
    best = sl.geodesic_sharpness(sl.Problem(model, [batch]), 0.5).value
    assert all(b > a - 1e-12 for a, b in itertools.pairwise(values))
    assert values[0] < 0.7 * best
    assert 0.99 * best < values[-1] < 1.001 * best
    stats = [r.details["geodesic@0.5"]["stats"] for r in readings]
    assert [s["warm starts"] for s in stats] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert [s["evaluations"] for s in stats] == [4, 5, 5, 5, 5, 5, 5, 5]


def vit_batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(5, 1, 8, 8, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])


def test_the_top_eigenvalue_is_that_of_the_hessian() -> None:
    model, batch = build_vit(), vit_batch()
    monitor = Monitor(model, batch, every=1, budget=None, measures=[TopEigenvalue("top", products=4)])
    values = [r.values["top"] for r in (monitor.step() for _ in range(6)) if r is not None]
    exact = sl.hessian_eigenvalues(sl.Problem(model, [batch]), sl.Quotient(), tolerance=1e-8).value
    assert values[-1] == pytest.approx(exact, rel=1e-3)
    assert values[-1] <= exact * (1 + 1e-9)


# ---------------------------------------------------------------------------------------------------------------- log


def test_a_run_that_goes_on_from_a_checkpoint_continues_the_log(tmp_path: Path) -> None:
    """Kills: readings of steps that were trained anew shown twice, a log written over, a count that begins at 0."""
    path = tmp_path / "deep" / "log.jsonl"
    model = nn.Linear(6, 3)
    with Monitor(model, examples(), path, every=2, budget=None, measures=["adaptive"]) as first:
        for _ in range(6):
            first.step()
        kept = first.state_dict()
        for _ in range(4):
            first.step()
    assert kept == {"steps": 6}
    second = Monitor(model, examples(), path, every=2, budget=None, measures=["adaptive"])
    second.load_state_dict(kept)
    for _ in range(2):
        second.step()
    log = read_log(path)
    assert [r.step for r in log.readings] == [2, 4, 6, 8]
    assert (log.dropped, log.ended, len(log.starts)) == (2, False, 2)
    assert log.starts[1]["step"] == 6
    second.close()
    assert read_log(path).ended


def test_a_torn_line_is_left_out_and_the_next_writer_begins_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    monitor = Monitor(nn.Linear(6, 3), examples(), path, every=1, budget=None, measures=["adaptive"])
    monitor.step(), monitor.step()
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    log = read_log(path)
    assert [r.step for r in log.readings] == [1]
    assert log.damaged == 0  # it may be being written
    again = Monitor(nn.Linear(6, 3), examples(), path, every=1, budget=None, measures=["adaptive"])
    again.begin(1)
    again.step()
    log = read_log(path)
    assert [r.step for r in log.readings] == [1, 2]
    assert log.damaged == 1


SCRIPT = """
import sys, torch
from spiritlevel.monitor import Monitor
torch.set_num_threads(1)
torch.manual_seed(0)
monitor = Monitor(torch.nn.Linear(6, 3), (torch.randn(8, 6), torch.randint(3, (8,))), sys.argv[1], every=1, budget=None)
while True:
    monitor.step()
"""


@pytest.mark.slow
def test_a_killed_process_leaves_a_log_that_is_read_meanwhile_and_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)]) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (path.exists() and path.stat().st_size > 20_000):
            time.sleep(0.05)
        meanwhile = len(read_log(path).readings)
        process.send_signal(signal.SIGKILL)
    log = read_log(path)
    assert 0 < meanwhile <= len(log.readings)
    assert [r.step for r in log.readings] == list(range(1, len(log.readings) + 1))
    assert not log.ended


def test_files_that_are_no_log_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text("precious\n")
    with pytest.raises(StoreError, match="expected a new file or a monitor's log"):
        Monitor(nn.Linear(6, 3), examples(), path)
    assert path.read_text() == "precious\n"
    with pytest.raises(DataError, match="got no such line"):
        read_log(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_log(tmp_path / "none.jsonl")
    with pytest.raises(StoreError, match="expected a log that can be written"):
        Monitor(nn.Linear(6, 3), examples(), "/proc/none/log.jsonl")


# ---------------------------------------------------------------------------------------------------------- the batch


class Counted(torch.utils.data.Dataset[Any]):
    """A dataset with augmentation."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(i)) + torch.rand(2), i % 2


def test_the_fixed_batch_is_spread_over_the_dataset_and_always_the_same() -> None:
    loader: Any = DataLoader(Counted(), batch_size=5, shuffle=True)
    with untouched(nn.Linear(1, 1)):
        ((x, y),) = from_loader(loader)
        torch.rand(3)
        ((again, _),) = from_loader(loader)
    assert x[:, 0].floor().tolist() == [0, 2, 4, 6, 8]
    assert y.tolist() == [0] * 5
    assert torch.equal(x, again)
    with pytest.raises(DataError, match="expected a DataLoader over a dataset that can be indexed"):
        from_loader([1, 2])
    with pytest.raises(DataError, match="got an empty dataset"):
        from_loader(DataLoader(TensorDataset(torch.zeros(0, 1))))


# --------------------------------------------------------------------------------------------------------------- view


def test_the_view_says_what_is_there() -> None:
    readings = [Reading(10 * i, {"geodesic@0.1": float(i)}, {"geodesic@0.1": "budget"}, share=0.02) for i in (1, 2, 3)]
    readings.append(Reading(40, {}, {}, {"geodesic@0.1": "ModelError: gone"}))
    text = str(LogView(readings, "run", [(30, "stretched")], "ended"))
    assert "step 40, 4 readings" in text
    assert "ModelError: gone" in text
    assert "▁▅█" in text
    assert "step 30: stretched" in text
    assert "no reading yet" in str(LogView((), "run"))
    assert spark([2.0, 2.0]) == "▁▁"
    assert len(spark([float(i) for i in range(1000)])) == 18
    assert spark([float(i) for i in range(1000)])[-1] == "█"


def test_the_live_views_draw_and_leave_the_last_picture(tmp_path: Path) -> None:
    from io import StringIO

    from rich.console import Console

    path, screen = tmp_path / "log.jsonl", StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with Monitor(nn.Linear(6, 3), examples(), path, every=1, budget=None, live=True) as monitor:
        assert isinstance(monitor._sinks[-1], LiveView)
        monitor._sinks[-1] = LiveView(monitor, console)
        for _ in range(3):
            monitor.step()
    assert "3 readings" in screen.getvalue()
    assert "ended" in screen.getvalue()
    screen.truncate(0)
    follow(path, console, 0.01)
    assert "3 readings" in screen.getvalue()


def test_lines_of_the_log_are_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Monitor(nn.Linear(6, 3), examples(), path, every=1, budget=None) as monitor:
        monitor.step({"learning rate": 0.1})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "reading", "end"]
    assert lines[0]["budget"] is None
    assert lines[1]["facts"] == {"learning rate": 0.1}
    assert lines[1]["details"]["geodesic@0.1"]["stats"]["evaluations"] >= 1
