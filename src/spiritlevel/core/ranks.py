"""Processes that measure one model together: settings, collective operations, and errors instead of hangs.

Every operation begins with a meeting: each rank says in a few numbers what it is about to do, and all of them learn it.
A rank that does something else, or one that failed, is an error on every rank at once. Meetings go over a gloo group of
their own with a time limit, so a rank that is gone is found before any device collective waits for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from spiritlevel.errors import ArgumentError, RanksError, SpiritlevelError

__all__ = ["Crew", "Ranks", "Replicated", "Spread"]

Array = np.ndarray[Any, np.dtype[np.float64]]
_FAILED = -1.0  # what a rank says that cannot go on
_HEAD, _ROW = 3, 64  # numbers of a message: which step, its number, how long; and as many as there is room for


@dataclass(frozen=True)
class Ranks:
    """How the processes of a process group share one measurement.

    Args:
        data: ``split``: every rank is given the same batches and takes its share of the examples of each.
            ``own``: every rank is given its own examples; batch i is what all ranks give as their i-th, and a rank may
            give smaller ones, fewer, or none.
        state: who holds coordinates, gradients and solver vectors. ``whole``: every rank all of them, as it holds all
            weights. ``sharded``: each parameter with all that belongs to it is on one rank, and others fetch it for
            the moment they need it. ``auto``: sharded for models whose parameters are DTensors (FSDP2), else whole.
        timeout: seconds to wait for the other ranks before saying that one is gone.
    """

    data: Literal["split", "own"] = "split"
    state: Literal["auto", "whole", "sharded"] = "auto"
    timeout: float = 300.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.data not in ("split", "own"):
            raise ArgumentError(f"expected data='split' or data='own', got {self.data!r}")
        if self.state not in ("auto", "whole", "sharded"):
            raise ArgumentError(f"expected state='auto', 'whole' or 'sharded', got {self.state!r}")
        if not (isinstance(self.timeout, int | float) and 0 < self.timeout < math.inf):
            raise ArgumentError(f"expected a timeout in seconds above 0, got {self.timeout!r}")


class Crew:
    """The ranks of the default process group, and what they do together.

    Making one is itself collective: all ranks have to.

    Args:
        timeout: seconds to wait for the others.

    Attributes:
        rank: of this process.
        size: how many there are.
    """

    def __init__(self, timeout: float) -> None:
        _need_group()
        self._world = dist.group.WORLD
        self.rank, self.size, self._timeout = dist.get_rank(), dist.get_world_size(), timeout
        with self._explained("the start"):
            self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        # another group of a device's backend would hold buffers of its own on the device
        self._data = self._control if dist.get_backend() == "gloo" else dist.group.WORLD
        self._count = 0
        self.failed = False

    @classmethod
    def of(cls, timeout: float) -> Crew:
        """The one with this time limit: groups hold sockets, and there need not be one for each problem."""
        _need_group()
        crew = _crews.get(timeout)
        if crew is None or crew._world is not dist.group.WORLD or crew.failed:
            crew = _crews[timeout] = cls(timeout)
        return crew

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except SpiritlevelError:
            self.failed = True
            raise
        except (RuntimeError, ValueError) as error:  # torch's distributed errors are RuntimeErrors
            self.failed = True
            short = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise RanksError(
                f"expected all {self.size} ranks at {what} within {self._timeout:g} s, but rank {self.rank} lost the "
                f"others ({short}): a rank has ended, is stuck, or is doing something else. Look at the first error in "
                "the output of the other ranks, and start all of them again; nothing was changed"
            ) from error

    def numbers(self, what: str, mine: Array) -> Array:
        """The numbers of all ranks, one row for each.

        Raises:
            RanksError: where another rank is at something else, has failed, or is gone.
        """
        self._count += 1
        row, inside = np.zeros(_ROW), min(len(mine), _ROW - _HEAD)
        row[:_HEAD], row[_HEAD : _HEAD + inside] = (_mark(what), self._count, len(mine)), mine[:inside]
        rows = self._gathered(what, row)
        self._compare(what, rows[:, :_HEAD])
        found = rows[:, _HEAD : _HEAD + inside]
        return found if inside == len(mine) else np.hstack([found, self._gathered(what, mine[inside:])])

    def _gathered(self, what: str, row: Array) -> Array:
        sent = torch.from_numpy(np.ascontiguousarray(row, dtype=np.float64))
        rows = [torch.empty_like(sent) for _ in range(self.size)]
        with self._explained(what):
            dist.all_gather(rows, sent, group=self._control)
        found: Array = torch.stack(rows).numpy()
        return found

    def _compare(self, what: str, heads: Array) -> None:
        failed = [r for r in range(self.size) if heads[r, 0] == _FAILED]
        if failed:
            self.failed = True
            raise RanksError(
                f"expected all ranks to go on to {what}, but rank {failed[0]} stopped with an error: see its message; "
                "nothing was changed"
            )
        other = [r for r in range(self.size) if (heads[r] != heads[self.rank]).any()]
        if other:
            self.failed = True
            raise RanksError(
                f"expected all ranks at the same step, but rank {self.rank} is at {what} and rank {other[0]} is not: "
                "call the same measures with the same settings, in the same order, on every rank"
            )

    def tell_failure(self) -> None:
        """Let the others know at their next meeting that this rank cannot go on; no error if they are gone too."""
        if self.failed:
            return
        self.failed = True
        row = torch.zeros(_ROW, dtype=torch.float64)
        row[0] = _FAILED
        try:
            dist.all_gather([torch.empty_like(row) for _ in range(self.size)], row, group=self._control)
        except RuntimeError:
            return

    def sum(self, what: str, mine: float) -> float:
        """Of a number over ranks; the same on each, to the last bit."""
        return math.fsum(self.numbers(what, np.array([mine]))[:, 0])

    def add_up(self, what: str, x: Tensor) -> Tensor:
        """The sum over ranks of a long vector, in place."""
        self.numbers(f"{what}, {x.numel()} entries", np.zeros(0))
        with self._explained(what):
            dist.all_reduce(x, group=self._data)
        return x

    def objects(self, what: str, mine: Any) -> list[Any]:
        """Anything that can be pickled, of all ranks."""
        self.numbers(what, np.zeros(0))
        found: list[Any] = [None] * self.size
        with self._explained(what):
            dist.all_gather_object(found, mine, group=self._control)
        return found

    def from_one(self, what: str, mine: Any, rank: int = 0) -> Any:
        """What one rank has."""
        self.numbers(what, np.zeros(0))
        box = [mine if rank == self.rank else None]
        with self._explained(what):
            dist.broadcast_object_list(box, src=rank, group=self._control)
        return box[0]

    def fetch(self, what: str, x: Tensor, owner: int) -> Tensor:
        """A tensor from the rank that has it, into ``x``; no meeting, for there are many of these in one pass."""
        with self._explained(what):
            dist.broadcast(x, src=owner, group=self._data)
        return x

    def bring(self, what: str, x: Tensor, owner: int) -> Tensor:
        """The sum over ranks of ``x`` on the one that owns it, in place; elsewhere ``x`` is spoilt."""
        with self._explained(what):
            dist.reduce(x, dst=owner, group=self._data)
        return x

    def alike(self, what: str, mine: Any, way_out: str, describe: Callable[[Any, Any], str] | None = None) -> None:
        """Refuse to go on where ranks differ in something they must share."""
        everyone = self.objects(what, mine)
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                where = "" if describe is None else f" ({describe(everyone[0], theirs)})"
                raise RanksError(
                    f"expected the same {what} on every rank, but rank {rank} has others{where}: {way_out}"
                )


_crews: dict[float, Crew] = {}


def _need_group() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError(
            "expected a process group, got none: start with torchrun and call torch.distributed.init_process_group() "
            "first, or make a spiritlevel.Problem"
        )


def _mark(what: str) -> float:
    """A number for a step, exact in float64."""
    return float(int.from_bytes(hashlib.blake2b(what.encode(), digest_size=6).digest(), "big"))


class Replicated:
    """Every rank holds all of the long vectors: the first one's numbers hold for all."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def total(self, numbers: Array) -> Array:
        return self.same(numbers)

    def most(self, numbers: Array) -> Array:
        return self.same(numbers)

    def same(self, numbers: Array) -> Array:
        found: Array = self._crew.numbers("a decision", numbers.reshape(-1))[0].reshape(numbers.shape)
        return found


class Spread(Replicated):
    """Every rank holds a stretch of the long vectors."""

    def total(self, numbers: Array) -> Array:
        rows = self._crew.numbers("an inner product", numbers.reshape(-1))
        found: Array = rows.sum(0).reshape(numbers.shape)
        return found

    def most(self, numbers: Array) -> Array:
        found: Array = self._crew.numbers("a largest entry", numbers.reshape(-1)).max(0).reshape(numbers.shape)
        return found
