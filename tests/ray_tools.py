"""For tests of engine ``ray``: a loss that takes its time, a real cluster, its workers, and a Ray that is none."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch.nn.functional as F
from torch import Tensor

_NO_WORKERS = ("ray::IDLE", "ray::SPILL", "ray::RESTORE", "ray::DELETE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def slow_loss(output: Tensor, batch: Any) -> Tensor:
    """Cross-entropy that waits on workers only: a study in this process, without the variable, does not."""
    time.sleep(float(os.environ.get("SPIRITLEVEL_TEST_SLEEP", "0")))
    return F.cross_entropy(output, batch[1])


@contextmanager
def cluster(nodes: int, folder: Path, **resources: Any) -> Iterator[Any]:
    """A real cluster of so many nodes with one core each, and a temporary folder of its own for each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(shutdown_at_exit=True)
    try:
        for i in range(nodes):
            there = folder / f"node-{i}"
            there.mkdir(parents=True, exist_ok=True)
            made.add_node(num_cpus=1, include_dashboard=False, env_vars={"TMPDIR": str(there)}, **resources)
        yield made
    finally:
        import ray

        ray.shutdown()
        made.shutdown()


def workers(of: int | None = None) -> list[psutil.Process]:
    """The study's workers among the processes that one started, by default this one; named after what they do."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if title.startswith("ray::") and not title.startswith(_NO_WORKERS):
            found.append(process)
    return found


class FakeRay:
    """What the engine uses of Ray, in this process: calls are made when their answers are asked for.

    Args:
        worker: what an actor is made of; by default the one that the engine asks for.
        nodes: resources of each node.
    """

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, worker: Callable[..., Any] | None = None, nodes: tuple[dict[str, float], ...] = ()) -> None:
        self._worker, self._nodes = worker, nodes or ({"CPU": 1.0},)
        self.names: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.killed = 0

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": n} for n in self._nodes]

    def put(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(value))

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        del num_returns, timeout
        ready = [c for c in calls if not getattr(c, "waits", False)][:1]
        return ready, []

    def get(self, call: Any) -> Any:
        return self.put(call())

    def kill(self, actor: Any, no_restart: bool) -> None:
        del actor, no_restart
        self.killed += 1

    def remote(self, kind: Any) -> Any:
        def make(*args: Any) -> Any:
            actor = (self._worker or kind)(*map(self.put, args))
            return SimpleNamespace(**{n: self._method(getattr(actor, n)) for n in ("begin", "prepare", "perform")})

        def options(**given: Any) -> Any:
            self.options.append(given)
            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def _method(self, method: Any) -> Any:
        def call(*args: Any) -> Any:
            return lambda: method(*map(self.put, args))

        def options(name: str) -> Any:
            self.names.append(name)
            return SimpleNamespace(remote=call)

        return SimpleNamespace(remote=call, options=options)
