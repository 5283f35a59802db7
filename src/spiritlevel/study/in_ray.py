"""Units on a Ray cluster: workers are actors that get one unit at a time; this process alone writes the store."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from spiritlevel.errors import EngineError, SpiritlevelError
from spiritlevel.study.deal import Deal, Unit, given_up
from spiritlevel.study.node_files import Wanted, packed, stamp_of
from spiritlevel.study.order import Order
from spiritlevel.study.plan import Plan
from spiritlevel.study.ray_cluster import Share, joined, no_room, room
from spiritlevel.study.remote import Ready, RemoteWorker, data_files, versions
from spiritlevel.study.session import Session
from spiritlevel.study.units import Done, Task

__all__ = ["in_ray"]

_TICK = 1.0  # seconds between looks at nodes that came or went; an answer is taken at once
_STILLBORN = 3  # workers in a row that die before they are ready: then the fault is not theirs


def in_ray(plan: Plan, session: Session, tasks: Sequence[Task]) -> Iterator[Done]:
    """Units are handed out one by one, a checkpoint's to one worker as long as there are others for the rest.

    A worker that is lost costs time only: another gets its unit. The workers go when the generator is closed, and are
    ended by Ray when this process is killed.
    """
    config = plan.config
    order = Order.of(plan, config.threads or 1, "ray")
    jobs = plan.jobs(session)
    deal = Deal(tasks, jobs, {name: i for i, name in enumerate(plan.zoo)}, config.ray.retries)
    if not len(deal):
        return
    columns = {c.name: c.key for job in jobs for c in job.columns}
    with joined(config, len(deal)) as ray:
        yield from _Crew(ray, plan, order, deal, columns).work()


@dataclass(eq=False)
class _Hand:
    """One worker, and what it is at.

    Attributes:
        actor: Ray's handle.
        begun: whether it runs.
        ready: whether it has its data.
        unit: what it has in hand; None while it loads or waits.
        at: the checkpoint it had last.
        calls: with the same unit; the files it wants are sent with the second.
    """

    actor: Any
    begun: bool = False
    ready: bool = False
    unit: Unit | None = None
    at: str | None = None
    calls: int = 0


class _Crew:
    """All workers of a study."""

    def __init__(self, ray: ModuleType, plan: Plan, order: Order, deal: Deal, columns: Mapping[str, str]) -> None:
        self._ray, self._plan, self._deal, self._columns = ray, plan, deal, columns
        self._share, self._stamps = Share.of(plan.config), _stamps(plan)
        self._order, self._known_stamps = ray.put(order), ray.put(self._stamps)
        self._parcels: dict[str, Any] = {}
        self._hands: list[_Hand] = []
        self._busy: dict[Any, _Hand] = {}
        self._numbers, self._run = count(1), uuid.uuid4().hex[:6]
        self._stillborn, self._room, self._looked, self._waits = 0, 0, -math.inf, time.monotonic()

    def work(self) -> Iterator[Done]:
        """Everything that is done, as it is done."""
        try:
            while len(self._deal) or any(h.unit for h in self._hands):
                self._grow()
                for answer in self._ray.wait(list(self._busy), num_returns=1, timeout=_TICK)[0]:
                    yield from self._heard(self._busy.pop(answer), answer)
                for hand in self._hands:
                    if hand.ready and hand.unit is None and len(self._deal):
                        self._give(hand, self._deal.next(hand.at))
        finally:
            for hand in self._hands:
                self._end(hand)

    def _grow(self) -> None:
        """As many workers as there is room and work for; nodes may come and go. An error where none ever begins."""
        now = time.monotonic()
        if now - self._looked > _TICK:
            self._room, self._looked = room(self._ray, self._share), now
        busy = sum(h.unit is not None for h in self._hands)
        wanted = min(self._plan.config.workers or self._room or 1, len(self._deal) + busy)
        while len(self._hands) < wanted:
            self._start()
        if any(h.begun for h in self._hands):
            self._waits = now
        elif now - self._waits > self._plan.config.ray.wait:
            raise no_room(self._ray, self._share, f" within {self._plan.config.ray.wait:g} s")

    def _start(self) -> None:
        number = next(self._numbers)
        name = f"spiritlevel {self._plan.config.name} {self._run} worker {number}"
        worker = self._ray.remote(RemoteWorker).options(**self._share.options, max_restarts=0, name=name)
        hand = _Hand(worker.remote(self._order, self._known_stamps, number))
        self._hands.append(hand)
        self._busy[hand.actor.begin.remote()] = hand

    def _prepare(self, hand: _Hand, wanted: Sequence[str]) -> None:
        self._busy[hand.actor.prepare.remote(self._sent(wanted))] = hand

    def _give(self, hand: _Hand, unit: Unit | None, wanted: Sequence[str] = ()) -> None:
        if unit is None:
            return
        hand.calls = hand.calls + 1 if hand.unit is unit else 1
        hand.unit, hand.at = unit, unit.task.checkpoint
        call = hand.actor.perform.options(name=f"{self._plan.config.name}: {unit}")
        self._busy[call.remote(unit.task, self._sent(wanted))] = hand

    def _sent(self, wanted: Sequence[str]) -> Any:
        """The content of files, put into Ray's memory once for all nodes."""
        if not wanted:
            return {}
        key = "\n".join(wanted)
        if key not in self._parcels:
            self._parcels = {key: self._ray.put({path: packed(Path(path)) for path in wanted})}
        return self._parcels[key]

    def _heard(self, hand: _Hand, answer: Any) -> Iterator[Done]:
        try:
            said = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:  # the worker lives, but its code failed us
            raise EngineError(f"expected spiritlevel to work on every node, but {_short(error)}") from error
        except self._ray.exceptions.RayError as error:
            yield from self._lost(hand, error)
            return
        if isinstance(said, SpiritlevelError):
            raise said
        if said is None:
            hand.begun = True
            self._prepare(hand, ())
        elif isinstance(said, Wanted):
            if hand.calls > 1:
                raise EngineError(
                    f"expected files that stay as they are, but {', '.join(said.paths[:3])} changed while the study "
                    "runs: run it again"
                )
            if hand.unit is None:
                hand.calls = 2
                self._prepare(hand, said.paths)
            else:
                self._give(hand, hand.unit, said.paths)
        elif isinstance(said, Ready):
            self._check(said)
            hand.ready, hand.calls, self._stillborn = True, 0, 0
        else:
            assert hand.unit is not None
            self._deal.done(hand.unit)
            hand.unit = None
            yield from said

    def _check(self, said: Ready) -> None:
        """A worker that would compute other numbers is refused: with other packages, or on other data."""
        for package, here in versions().items():
            if said.versions.get(package) != here:
                raise EngineError(
                    f"expected {package} {here} on every node as here, but {said.node} has "
                    f"{said.versions.get(package)}: install the same, or name it in ray.runtime_env"
                )
        others = [n for n, key in self._columns.items() if said.columns.get(n) != key]
        if others:
            raise EngineError(
                f"expected the same settings and data on every node as here, but on {said.node} they differ for "
                f"{', '.join(others[:3])} ({len(others)} columns in all): are the data files or functions there other "
                "ones? `files: sent` under `ray` sends those of this machine"
            )

    def _lost(self, hand: _Hand, error: Exception) -> Iterator[Done]:
        """Another worker gets what this one had in hand."""
        self._hands.remove(hand)
        self._end(hand)
        if not hand.ready:
            self._stillborn += 1
            if self._stillborn >= _STILLBORN:
                raise EngineError(
                    f"expected workers that load the study, but {_STILLBORN} in a row were lost before: "
                    f"{_short(error)}; does every node have spiritlevel, your own modules (ray.runtime_env), and "
                    "memory for the data?"
                ) from error
        if hand.unit is not None:
            task = self._deal.lost(hand.unit)
            if task is not None:
                digest, losses = self._plan.zoo[task.checkpoint].digest(), self._plan.config.ray.retries + 1
                yield given_up(task, digest, losses, _short(error))

    def _end(self, hand: _Hand) -> None:
        try:
            self._ray.kill(hand.actor, no_restart=True)
        except Exception:  # gone already, or the whole cluster is
            return


def _stamps(plan: Plan) -> dict[str, str]:
    sources = [c.source for c in plan.zoo.values() if isinstance(c.source, Path)]
    return {str(path): stamp_of(path) for path in [*sources, *data_files(plan.config).values()]}


def _short(error: Exception) -> str:
    """What Ray says of an error, without its list of everything that could have caused it."""
    lines = [line.strip() for line in str(error).partition("Some common causes")[0].splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
