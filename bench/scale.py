"""A study on Ray: two workers against one, and what handing out a unit costs beside the same units in one process.

All numbers come from one run. Wall clock alone tells little on a shared machine, so CPU seconds stand beside it: what
one worker spends on all units over what the busier of two spends is the speed-up on two cores that nobody else uses.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from safetensors.torch import save_file
from torch import nn

from spiritlevel.study import run_study
from spiritlevel.study.pace import Pace

ROUNDS = 3
CHECKPOINTS = 24
TINY = 100


def network() -> nn.Module:
    """7805 weights: too many to be measured with its neighbours, few enough for a short benchmark."""
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 5))


@dataclass
class _Watch:
    """Looks at the clock and at the workers' CPU time when units are done."""

    times: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    first: dict[int, float] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)

    def __call__(self, pace: Pace) -> None:
        """A unit is done."""
        self.times.append(time.perf_counter())
        self.own.append(time.process_time())
        for process in psutil.Process().children(recursive=True):
            try:
                title = " ".join(process.cmdline())
                if title.startswith("ray::") and "Agent" not in title and "IDLE" not in title:
                    used = process.cpu_times()
                    self.last[process.pid] = used.user + used.system
                    self.first.setdefault(process.pid, self.last[process.pid])
            except psutil.Error:
                continue

    @property
    def cpu(self) -> list[float]:
        """CPU seconds of each worker, from the first unit that anybody had done."""
        return [self.last[p] - self.first[p] for p in self.last]


def _study(folder: Path, count: int, measures: list[Any]) -> dict[str, Any]:
    g = np.random.default_rng(0)
    for i in range(count):
        torch.manual_seed(i)
        save_file(network().state_dict(), folder / f"run-{i}.safetensors")
    for name in ("train", "iid"):
        np.savez(folder / f"{name}.npz", x=g.normal(size=(256, 20)).astype(np.float32), y=np.arange(256) % 5)
    return {
        "zoo": {"checkpoints": str(folder / "run-*.safetensors"), "builder": "bench.scale:network"},
        "data": {"train": str(folder / "train.npz"), "tests": {"iid": str(folder / "iid.npz")}},
        "measures": measures,
        "threads": 1,
    }


def _run(config: dict[str, Any], engine: str, workers: int, watch: Callable[[Pace], None]) -> tuple[float, float]:
    """Wall clock, and CPU seconds of this process."""
    store = Path(tempfile.mkdtemp()) / "study.db"
    began, used = time.perf_counter(), time.process_time()
    run_study({**config, "workers": workers}, store, engine=engine, on_done=watch, show_progress=False)
    return time.perf_counter() - began, time.process_time() - used


def _speed_up() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        heavy = [{"measure": "adaptive", "rho": [0.5, 1.0, 2.0]}, {"measure": "worst-case", "geometry": "euclidean"}]
        config = _study(Path(folder), CHECKPOINTS, heavy)
        clocks, cpus, times = [], [], []
        for _ in range(ROUNDS):
            wall, cpu = {}, {}
            for workers in (1, 2):
                watch = _Watch()
                _run(config, "ray", workers, watch)
                wall[workers], cpu[workers] = watch.times[-1] - watch.times[0], watch.cpu
            clocks.append(wall[1] / wall[2])
            cpus.append(sum(cpu[1]) / max(cpu[2]))
            times.append((sum(cpu[1]), sum(cpu[2])))
    return {
        "one worker / two, CPU seconds of the busier": statistics.median(cpus),
        "one worker / two, wall clock": statistics.median(clocks),
        "CPU seconds of all, one worker": statistics.median(t[0] for t in times),
        "CPU seconds of all, two workers": statistics.median(t[1] for t in times),
        "all ratios": {"CPU": cpus, "wall": clocks},
    }


def _overhead() -> dict[str, Any]:
    """Cheap units: on Ray less in one process, each from the first that is done to the last."""
    with tempfile.TemporaryDirectory() as folder:
        config = _study(Path(folder), TINY, ["gradient-norm"])
        clocks, own = [], []
        for _ in range(ROUNDS):
            spent, used = {}, {}
            for engine in ("serial", "ray"):
                watch = _Clock()
                _run(config, engine, 1, watch)
                units = len(watch.times) - 1
                spent[engine] = (watch.times[-1] - watch.times[0]) / units
                used[engine] = (watch.own[-1] - watch.own[0]) / units
            clocks.append(1000 * (spent["ray"] - spent["serial"]))
            own.append(1000 * used["ray"])
    return {
        "more per unit, wall clock, ms": statistics.median(clocks),
        "CPU of the study's process per unit, ms": statistics.median(own),
        "all ratios": clocks,
    }


class _Clock(_Watch):
    """A watch that costs nothing itself."""

    def __call__(self, pace: Pace) -> None:
        """A unit is done."""
        self.times.append(time.perf_counter())
        self.own.append(time.process_time())


def scale() -> dict[str, Any]:
    """Speed-up and overhead on one Ray of two cores; its start is not counted."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    began = time.perf_counter()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    start = time.perf_counter() - began
    try:
        return {
            "load of the machine before": os.getloadavg()[0] / (os.cpu_count() or 1),
            "start of Ray, seconds": start,
            "speed-up": _speed_up(),
            "overhead": _overhead(),
        }
    finally:
        ray.shutdown()
