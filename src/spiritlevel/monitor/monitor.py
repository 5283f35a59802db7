"""Flatness during training: every so many steps a few cheap measures on a fixed batch, within a budget of time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from spiritlevel.core.results import Measurement
from spiritlevel.core.tensors import same_device
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.monitor.budget import Budget
from spiritlevel.monitor.fixed import fixed_batches
from spiritlevel.monitor.log import LogWriter, Reading
from spiritlevel.monitor.probes import Memory, Probe, probes_of
from spiritlevel.monitor.untouched import inner, untouched
from spiritlevel.monitor.view import LiveView
from spiritlevel.problem import Problem

__all__ = ["DEFAULT", "Monitor", "Sink"]

_log = logging.getLogger("spiritlevel")

DEFAULT = ("geodesic", "adaptive")
"""What is measured when nothing is named. Gradient norm and loss come with the first."""

Sink = Callable[[Mapping[str, float], int], object]
"""Takes named numbers and the step: `mlflow.log_metrics`, those of `spiritlevel.integrations.loggers`, ..."""

_PREFIX = "flatness/"
_CHANGED = 1.5  # a stretched interval is said again when it has changed by this factor
_SET_UP = 4  # gradients the set-up costs: three passes over the batch, finding symmetries and testing them
_PASS = 3.0  # a forward and backward pass in forward passes (the backward pass costs two)


class Monitor:
    """Measures flatness while a network trains, and never changes how it trains.

    Call `step` after each optimizer step. It measures at multiples of ``every`` as far as the budget allows: it knows
    what readings cost and what they have taken so far, and leaves one out where it would take more than ``budget`` of
    the training time; it says so once in the log ``spiritlevel`` and in the file. Weights, gradients, buffers, modes,
    random states and optimizer are left as they were (`untouched`). A measure that fails is logged and said once; it
    never stops the training. Searches begin at the last maximiser, carried to the new weights.

    With several processes only the first measures; the others wait for it where they would wait for a slow step.

    Args:
        model: the network in training; a wrapper for data parallelism is looked through.
        batches: what to measure on, always the same: ``(inputs, targets)``, a dict with ``labels``, or a list of those.
        log: the file to add to (JSON lines); None for none.
        every: steps between readings, if the budget allows.
        budget: share of training time readings may take together; None for no limit.
        measures: names (``geodesic``, ``adaptive``, ``hessian-top``, or any of ``spiritlevel measure``), or probes.
        to: where the numbers go besides: functions of named numbers and the step.
        live: show a live view in the terminal.
        loss: as in `Problem`.
        parameters: as in `Problem`.
        micro_batch: as in `Problem`.
        clock: seconds, for tests.

    Attributes:
        readings: all readings of this process.
        notes: what it said, with the steps.
        budget: what they take.

    >>> model = nn.Linear(2, 2)
    >>> monitor = Monitor(model, (torch.eye(2), torch.tensor([0, 1])), every=1, budget=None, measures=["adaptive"])
    >>> sorted(monitor.step().values)
    ['adaptive@1']
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Any,
        log: str | Path | None = None,
        *,
        every: int = 100,
        budget: float | None = 0.03,
        measures: Sequence[str | Probe] = DEFAULT,
        to: Sequence[Sink] = (),
        live: bool = False,
        loss: Any = None,
        parameters: Iterable[str] | Callable[[str], bool] | None = None,
        micro_batch: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ArgumentError(f"expected every to be a whole number of steps from 1 on, got {every!r}")
        self.model, self.every, self.budget = inner(model), every, Budget(budget, clock)
        self.probes = probes_of(measures)
        self.readings: list[Reading] = []
        self.notes: list[tuple[int, str]] = []
        self._batches = fixed_batches(batches)
        names = list(parameters) if isinstance(parameters, Iterable) and not isinstance(parameters, str) else parameters

        def make() -> Problem:
            return Problem(self.model, self._batches, loss, names, micro_batch=micro_batch)

        self._make: Callable[[], Problem] = make
        self._make()  # wrong settings are an error now, not a failure in the middle of training
        self._problem: Problem | None = None
        self._memory: dict[str, Memory] = {}
        self._said: set[str] = set()
        self._steps, self._first, self._interval, self._prior = 0, 0, 0, 0.0
        self._sinks = [*to]
        self._writes = not _elsewhere()
        self._log = LogWriter(log) if log is not None and self._writes else None
        self._started = False
        if live and self._writes:
            self._sinks.append(LiveView(self))

    @property
    def steps(self) -> int:
        """The last step it was told of."""
        return self._steps

    def begin(self, step: int = 0) -> None:
        """Training starts, or goes on, after so many steps. Called by the first `step` if it was not before."""
        self._steps = self._first = step
        self.budget.begin()
        if not self._started and self._log is not None:
            log = self._log
            self._guarded("the log", lambda: log.start(step, self.settings))
        self._started = True

    @property
    def settings(self) -> dict[str, Any]:
        """What fixes the readings, as plain data."""
        return {
            "model": type(self.model).__name__,
            "measures": [p.name for p in self.probes],
            "probes": [str(p) for p in self.probes],
            "every": self.every,
            "budget": self.budget.limit,
            "spiritlevel": version("spiritlevel"),
            "torch": torch.__version__,
        }

    def step(self, facts: Mapping[str, float] | None = None, *, at: int | None = None) -> Reading | None:
        """After an optimizer step; a reading where one was due and could be afforded.

        Args:
            facts: numbers to keep beside the reading (learning rate, training loss, ...).
            at: the number of the step, where the training loop counts by itself; by default one more than the last.
        """
        if not self._started:
            self.begin(0 if at is None else at - 1)
        self._steps = self._steps + 1 if at is None else at
        if not self._writes or self._steps % self.every:
            return None
        return self.measure(facts) if self._affordable() else None

    def measure(self, facts: Mapping[str, float] | None = None) -> Reading | None:
        """A reading now, whatever the budget says; its cost counts."""
        if not self._started:
            self.begin(self._steps)
        if not self._writes or not self._set_up():
            return None
        with untouched(self.model):
            since = self._from_here()
            reading = self._read(facts or {}, since)
            self._keep(reading)
            self._send(reading)
            self.budget.stop(since)
        return reading

    # ---------------------------------------------------------------------------------------------------- the budget

    def _from_here(self) -> float:
        """What training has asked the device for is done: it is not ours."""
        device = same_device(dict(self.model.named_parameters()))
        if device.type in ("cuda", "mps"):
            getattr(torch, device.type).synchronize()
        return self.budget.start()

    def _affordable(self) -> bool:
        """Whether a reading now keeps the budget; before the first, the set-up is a reading of its own."""
        each = self.budget.training / max(self._steps - self._first, 1)
        gradients = sum(p.gradients for p in self.probes)
        if self._problem is None and self.budget.limit is not None:
            if not self.budget.allows(_SET_UP * each):
                self._tell_pace((gradients + _SET_UP) * each, each)
                return False
            if not self._set_up():
                return False
        cost = self.budget.expected(max(gradients * _PASS * self._prior, each))
        self._tell_pace(cost, each)
        return self.budget.allows(cost)

    def _tell_pace(self, cost: float, each: float) -> None:
        """Say how far apart readings are, where that is not what was asked for."""
        wanted = -(-self.budget.interval(cost, each) // self.every) * self.every
        before = self._interval or self.every
        if not before / _CHANGED < wanted < before * _CHANGED and each > 0:
            self._interval = wanted
            self.say(
                f"a reading takes about {cost:.2g} s and a training step {each:.2g} s: readings about every {wanted} "
                f"steps instead of {self.every} keep to {self.budget.limit:.1%} of training time"
                if wanted > self.every
                else f"readings every {self.every} steps keep to the budget again"
            )

    # -------------------------------------------------------------------------------------------------- the measures

    def _set_up(self) -> bool:
        """The problem with its checks, made once; False where that fails: it is tried again when the next is due."""
        if self._problem is not None:
            return True

        def make() -> None:
            problem = self._make()
            _refuse_sharded(self.model)
            problem.check()
            weights, began = problem.weights, time.perf_counter()
            for batch in problem.batches():  # once more: the first passes also make what later ones find made
                problem.value(weights, batch)
            self._prior = time.perf_counter() - began
            self._problem = problem

        with untouched(self.model):
            since = self._from_here()
            error = self._guarded("set-up", make)
            seconds = self.budget.stop(since, reading=False)
            if error is not None:
                failed = {"set-up": error}
                self._keep(Reading(self._steps, {}, {}, failed, seconds, self.budget.share, time=time.time()))
        return error is None

    def _keep(self, reading: Reading) -> None:
        self.readings.append(reading)
        if self._log is not None:
            log = self._log
            self._guarded("the log", lambda: log.reading(reading))

    def _read(self, facts: Mapping[str, float], since: float) -> Reading:
        values: dict[str, float] = {}
        states: dict[str, str] = {}
        failures: dict[str, str] = {}
        details: dict[str, Any] = {}
        for probe in self.probes:
            found: dict[str, Measurement] = {}

            def read(probe: Probe = probe, found: dict[str, Measurement] = found) -> None:
                assert self._problem is not None
                found.update(probe.read(self._problem, self._memory.setdefault(probe.name, {})))

            error = self._guarded(probe.name, read)
            if error is not None:
                failures[probe.name] = error
                self._memory.pop(probe.name, None)
                continue
            for name, m in found.items():
                details[name] = {"status": str(m.status), "stats": m.stats}
                states[name] = str(m.status)
                if math.isfinite(m.value):
                    values[name] = m.value
        training = self.budget.training
        seconds = self.budget.start() - since
        share = (self.budget.spent + seconds) / (training - seconds) if training > seconds else 0.0
        return Reading(
            self._steps, values, states, failures, seconds, share, max(training - seconds, 0.0), dict(facts), details,
            time.time(),
        )  # fmt: skip

    def _guarded(self, what: str, work: Callable[[], object]) -> str | None:
        """Do it; an error becomes words, said once for each cause, and training goes on."""
        try:
            work()
        except Exception as error:  # whatever a network, a logger or a full disk may raise
            short = str(error).strip().splitlines()[0] if str(error).strip() else ""
            words = f"{type(error).__name__}: {short}"
            key = f"{what} {type(error).__name__}"
            if key not in self._said:
                self._said.add(key)
                self.say(f"{what} failed at step {self._steps}, and training goes on without it: {words}")
            return words
        return None

    # -------------------------------------------------------------------------------------------------- what it says

    def say(self, text: str) -> None:
        """A warning to the user, in the file too."""
        _log.warning("monitor: %s", text)
        self.notes.append((self._steps, text))
        try:
            if self._log is not None:
                self._log.note(self._steps, text)
        except (OSError, ValueError):  # the log itself is what failed
            self._log = None

    def _send(self, reading: Reading) -> None:
        named = {_PREFIX + n.replace("@", "_"): v for n, v in reading.values.items()}
        named[_PREFIX + "share"] = reading.share
        for sink in self._sinks:
            name = getattr(sink, "__qualname__", type(sink).__name__)
            self._guarded(f"logger {name}", lambda sink=sink: sink(named, reading.step))  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, for checkpoints; where the last searches ended is not kept: the next begins afresh."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: the next `step` is one more than the saved."""
        self.begin(int(state["steps"]))

    def close(self) -> None:
        """Training has ended."""
        for sink in self._sinks:
            close = getattr(sink, "close", None)
            if close is not None:
                self._guarded("closing a logger", close)
        if self._log is not None:
            log, self._log = self._log, None
            self._guarded("the log", lambda: log.end(self._steps))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # no end: training broke off
            self._log = None
        self.close()


def _elsewhere() -> bool:
    """Whether another process of the same training measures."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0


def _refuse_sharded(model: nn.Module) -> None:
    sharded = [n for n, p in model.named_parameters() if hasattr(p, "device_mesh")]
    if sharded:
        raise ModelError(
            f"expected whole parameters on each process, got sharded ones such as {sharded[0]}: gathering them would "
            "need all processes; measure the checkpoints instead"
        )
