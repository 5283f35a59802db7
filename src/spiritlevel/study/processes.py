"""Units in several processes on one machine: each has its own data and one checkpoint at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from spiritlevel.errors import SpiritlevelError
from spiritlevel.study.order import Order, cores_here
from spiritlevel.study.plan import Plan, Work, perform
from spiritlevel.study.session import Session
from spiritlevel.study.units import Done, Outcome, Task

__all__ = ["in_processes"]

_spawn = multiprocessing.get_context("spawn")  # torch's threads and CUDA do not survive a fork


@dataclass
class _Worker:
    """One process, our end of the pipe to it, and what it is at."""

    process: BaseProcess
    pipe: Connection
    task: Task | None = None

    def give(self, task: Task | None) -> None:
        self.task = task
        self.pipe.send(task)


def in_processes(plan: Plan, session: Session, tasks: Sequence[Task]) -> Iterator[Done]:
    """Checkpoints are handed out one by one. A process that dies costs its checkpoint, not the study.

    Workers are told to go when the generator is closed, and go by themselves when this process is killed.
    """
    del session  # each worker loads its own
    config = plan.config
    cores = cores_here()
    count = min(config.workers or cores, len(tasks))
    threads = config.threads or max(1, cores // max(count, 1))
    order = Order.of(plan, threads, "processes")
    left = list(reversed(tasks))
    workers = [_start(order) for _ in range(count)]
    try:
        for worker in workers:
            worker.give(left.pop())
        while any(w.task is not None for w in workers):
            for pipe in wait([w.pipe for w in workers if w.task is not None]):
                at = next(i for i, w in enumerate(workers) if w.pipe is pipe)
                worker = workers[at]
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    yield _lost(plan, worker)
                    worker.pipe.close()
                    workers[at] = worker = _start(order) if left else replace(worker, task=None)
                    message = None
                if isinstance(message, SpiritlevelError):
                    raise message
                if isinstance(message, Done):
                    assert worker.task is not None
                    worker.task = replace(worker.task, keys=worker.task.keys - set(message.outcomes))
                    yield message
                elif left:
                    worker.give(left.pop())
                else:
                    worker.task = None
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()


def _start(order: Order) -> _Worker:
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_work, args=(theirs, order), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _lost(plan: Plan, worker: _Worker) -> Done:
    """What a process that died had not done yet."""
    assert worker.task is not None
    worker.process.join()
    code = worker.process.exitcode or 0
    how = (
        f"by signal {-code}" + (" (out of memory?)" if -code == signal.SIGKILL else "") if code < 0 else f"with {code}"
    )
    failed = Outcome.failed(f"expected the process to end its work, but it ended {how}")
    name = worker.task.checkpoint
    return Done(name, plan.zoo[name].digest(), dict.fromkeys(sorted(worker.task.keys), failed))


def _work(pipe: Connection, order: Order) -> None:
    """The life of a worker: take a checkpoint, send what is done, until told to go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and tells us
    threading.Thread(target=_go_with_parent, daemon=True).start()
    plan = order.opened()
    try:
        work = Work.of(plan, plan.open())
    except SpiritlevelError as error:
        pipe.send(error)
        return
    while True:
        task = pipe.recv()
        for done in perform(work, task):
            pipe.send(done)
        pipe.send(None)


def _go_with_parent() -> None:
    """End at once when the parent is gone: nobody would store what comes."""
    parent: Any = multiprocessing.parent_process()
    wait([parent.sentinel])
    os._exit(1)
