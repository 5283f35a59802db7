"""One model on many devices: the processes of a process group measure it together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.core.bare import is_sharded, whole
from spiritlevel.core.batches import batch_size, cut, tensors_in, to_device
from spiritlevel.core.blocks import Block
from spiritlevel.core.evaluation import forward, widen
from spiritlevel.core.fetching import Fetching
from spiritlevel.core.ranks import Crew, Ranks, Replicated, Spread
from spiritlevel.core.spread import agreeing
from spiritlevel.core.tensors import same_device
from spiritlevel.errors import ArgumentError, DataError, SymmetryError
from spiritlevel.geometry import Chart, Geometry
from spiritlevel.geometry.spread import assigned, check_spread, spread_chart
from spiritlevel.problem.problem import Problem
from spiritlevel.symmetry.trace import few_examples
from spiritlevel.symmetry.verify import allowed_drift, drift_along

__all__ = ["DistributedProblem"]

Weights = Mapping[str, Tensor]


class _Nothing:
    """The batch of a rank that has no examples for it."""


class DistributedProblem(Problem):
    """The loss of one model on data that several processes share: every measure gives the number of one process.

    Made and measured by all ranks of the default process group alike (``torchrun``), with the same arguments. Each
    rank passes its examples through the model; loss, gradient and products with the curvature are sums over ranks. All
    ranks get the same result. Decisions are taken once: a solver sees the same numbers on every rank.

    Accepts a plain model that is the same on every rank, one inside DistributedDataParallel (names are those of the
    model inside), and one sharded with ``fully_shard`` (FSDP2). Ranks that differ in weights, data or what they call,
    and a rank that dies, are a `RanksError` on the others within the time limit. With ``state="sharded"`` no rank ever
    holds more of the model than what it owns and the weights of the layer at hand.

    Args:
        model: as for `Problem`.
        batches: the same on every rank, or each rank's own; see `Ranks`.
        loss: as for `Problem`.
        parameters: as for `Problem`.
        ranks: how the work is shared.
        normalize_logits: as for `Problem`.
        micro_batch: most examples in one pass of one rank.
        max_batches: as for `Problem`.
        checkpointing: as for `Problem`.
    """

    _shares_weights = True

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        loss: Any = None,
        parameters: Iterable[str] | Callable[[str], bool] | None = None,
        *,
        ranks: Ranks | None = None,
        normalize_logits: bool = False,
        micro_batch: int | None = None,
        max_batches: int | None = None,
        checkpointing: bool = False,
    ) -> None:
        self.ranks = Ranks() if ranks is None else ranks
        self.crew = Crew.of(self.ranks.timeout)
        with self.measuring("making the problem"):
            super().__init__(
                model,
                batches,
                loss,
                parameters,
                normalize_logits=normalize_logits,
                micro_batch=micro_batch,
                max_batches=max_batches,
                checkpointing=checkpointing,
            )
            spread = is_sharded(self.model)
            if spread and self.ranks.state == "whole":
                raise ArgumentError("expected state='auto' or 'sharded' for a model sharded over ranks, got 'whole'")
            self.sharded = spread or self.ranks.state == "sharded"
            self._checked_ranks = False
            self._blocks: Sequence[Block] = self.symmetries if self.sharded else ()
        self._places: dict[int, int] = {}
        self._spare_example: Any = None

    # ---------------------------------------------------------------------------------------------------- decisions

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        self.crew.failed = False
        try:
            self.crew.numbers(what, np.zeros(0))
            with agreeing((Spread if getattr(self, "sharded", False) else Replicated)(self.crew)):
                yield
        except BaseException:
            self.crew.tell_failure()
            raise

    def joined(self, what: str, total: float, vector: Tensor | None = None) -> tuple[float, Any]:
        total = self.crew.sum(what, total)
        if self.sharded:  # gradients went to their owners already
            self._way.forget()
        elif vector is not None:
            self.crew.add_up(what, vector)
        return total, vector

    def together(self, what: str, items: list[Any]) -> list[Any]:
        return [x for found in self.crew.objects(what, items) for x in found] if self.sharded else items

    def check(self) -> list[float]:
        if not self._checked_ranks:
            self._compare_ranks()
            self._checked_ranks = True
        return super().check()

    def _compare_ranks(self) -> None:
        """Refuse ranks that measure different things."""
        settings = {**self.settings, "micro_batch": self.micro_batch, "ranks": str(self.ranks)}
        self.crew.alike("settings", settings, "pass the same arguments", _first_difference)
        shapes = {n: (tuple(p.shape), str(p.dtype)) for n, p in self.model.named_parameters()}
        self.crew.alike("parameters", shapes, "build the same model on every rank", _first_difference)
        if not is_sharded(self.model):
            held = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
            self.crew.alike(
                "weights",
                {n: _content(t) for n, t in held.items()},
                "load the same checkpoint on every rank, or broadcast rank 0's",
                _first_difference,
            )
        if self.ranks.data == "split":
            found = {f"batch {i}": _content(*tensors_in(b)) for i, b in enumerate(super().batches())}
            self.crew.alike(
                "batches",
                found,
                "give every rank the same batches in the same order, or say Ranks(data='own') where each has its own",
                _first_difference,
            )
        elif self._schedule and self.sharded:
            self._spare_example = self._counting(self.sample())

    # --------------------------------------------------------------------------------------------------------- data

    def batches(self) -> Iterator[Any]:
        if self.ranks.data == "split":
            yield from super().batches()
            return
        mine, self._places = self._own(), {}
        for i in range(len(self._schedule)):
            batch = next(mine, None)
            batch = _Nothing() if batch is None else batch
            self._places = {id(batch): i}
            yield batch

    def _own(self) -> Iterator[Any]:
        """This rank's batches, of which there may be none."""
        device = same_device(dict(self.model.named_parameters()))
        for i, batch in enumerate(self._batches):
            if self.max_batches is not None and i >= self.max_batches:
                return
            yield to_device(batch, device)

    @cached_property
    def _schedule(self) -> list[tuple[float, int]]:
        """Of each batch: loss terms on all ranks, and most passes on one."""
        mine = [(self.terms(b), len(self._pieces(b))) for b in self._own()]
        everyone = self.crew.objects("the sizes of all batches", mine)
        count = max(len(found) for found in everyone)
        if not count or not any(t for found in everyone for t, _ in found):
            raise DataError("expected examples on at least one rank, got none: does drop_last drop all?")
        each = [[found[i] for found in everyone if i < len(found)] for i in range(count)]
        return [(sum(t for t, _ in rows), max(n for _, n in rows)) for rows in each]

    def count(self) -> int | None:
        return super().count() if self.ranks.data == "split" else len(self._schedule)

    def terms(self, batch: Any) -> float:
        return 0.0 if isinstance(batch, _Nothing) else super().terms(batch)

    @cached_property
    def _all_terms(self) -> float:
        if self.ranks.data == "own":
            return sum(t for t, _ in self._schedule)
        return sum(self.terms(b) for b in self.batches())

    def shares(self, batch: Any = None) -> Iterator[tuple[Any, float]]:
        for one in self.batches() if batch is None else (batch,):
            terms, passes = self._size(one)
            total = self._all_terms if batch is None else terms
            done = 0
            for part in self._pieces(one):
                count = self.terms(part)
                if count:  # a mean over no terms may be NaN
                    yield part, count / total
                    done += 1
            if self.sharded:  # all ranks take part in every pass, for they hold each other's weights
                yield from ((self._spare(one), 0.0) for _ in range(passes - done))

    def _size(self, batch: Any) -> tuple[float, int]:
        """Loss terms on all ranks, and most passes on one."""
        if self.ranks.data == "split":
            each = -(-batch_size(batch) // self.crew.size)
            return self.terms(batch), -(-each // (self.micro_batch or each or 1))
        if id(batch) in self._places:
            return self._schedule[self._places[id(batch)]]
        rows = self.crew.objects("the size of a batch", (self.terms(batch), len(self._pieces(batch))))
        return sum(t for t, _ in rows), max(n for _, n in rows)

    def _pieces(self, batch: Any) -> list[Any]:
        """What this rank passes through the model, one micro-batch after the other."""
        if isinstance(batch, _Nothing):
            return []
        size, low, high = batch_size(batch), 0, batch_size(batch)
        if self.ranks.data == "split":
            low, high = (size * r // self.crew.size for r in (self.crew.rank, self.crew.rank + 1))
        step = self.micro_batch or max(high - low, 1)
        return [self._cut(batch, i, min(i + step, high), size) for i in range(low, high, step)]

    def _cut(self, batch: Any, low: int, high: int, size: int) -> Any:
        return batch if (low, high) == (0, size) else cut(batch, low, high, size)

    def _spare(self, batch: Any) -> Any:
        """An example for a pass that does not count."""
        if self.ranks.data == "own":
            return self._spare_example
        return self._counting(batch)

    def _counting(self, batch: Any) -> Any:
        """The first example with a loss term."""
        size = batch_size(batch)
        each = (cut(batch, i, i + 1, size) for i in range(size))
        return next((one for one in each if self.terms(one)), cut(batch, 0, 1, size))

    @cached_property
    def _sample(self) -> Any:
        mine = next(self._own(), None)
        have = self.crew.objects("who has examples", mine is not None)
        found = self.crew.from_one("a batch to test on", _on_cpu(mine), have.index(True))
        return to_device(found, same_device(dict(self.model.named_parameters())))

    def sample(self) -> Any:
        return next(self.batches()) if self.ranks.data == "split" else self._sample

    # ------------------------------------------------------------------------------------------------------ weights

    @property
    def owners(self) -> dict[str, int]:
        """The rank that holds each measured parameter with all that belongs to it, where the state is sharded."""
        return assigned({n: p.numel() for n, p in self._stored.items()}, self._blocks, self.crew.size)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The measured parameters in float32 or better; where the state is sharded, those this rank owns."""
        if not self.sharded:
            return super().weights
        owners, found = self.owners, {}
        for n, p in self._stored.items():
            full = whole(p)
            if owners[n] == self.crew.rank:
                found[n] = widen(full).contiguous()
        return found

    @cached_property
    def _way(self) -> Fetching:
        """How ranks get each other's weights; made anew with the owners."""
        stored, still = self._stored, {}
        if is_sharded(self.model):
            still = {n: p for n, p in self.model.named_parameters() if n not in stored}
        all_of_them = {**stored, **still}
        dtypes = {n: widen(torch.empty(0, dtype=p.dtype)).dtype for n, p in all_of_them.items()}
        shapes = {n: p.shape for n, p in all_of_them.items()}

        def getter(p: Tensor) -> Callable[[], Tensor]:
            return lambda: widen(whole(p))

        ways = {n: getter(p) for n, p in still.items()}
        return Fetching(self.crew, self.owners, shapes, dtypes, same_device(stored), ways)

    def output(self, weights: Weights, batch: Any) -> Any:
        if not self.sharded:
            return super().output(weights, batch)
        with self._way.passing():
            return forward(self.model, self._way.placeholders(weights), batch)

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.sharded:
                stack.enter_context(self._way.keeping_names())
            yield

    def chart(self, geometry: Geometry) -> Chart:
        if not self.sharded:
            return super().chart(geometry)
        blocks: Sequence[Block] = ()
        if geometry.needs_blocks:
            blocks = self.symmetries if geometry.blocks is None else geometry.blocks
        check_spread(geometry, blocks)
        if blocks and list(blocks) != list(self._blocks):  # what a block joins must be on one rank
            self._blocks = blocks
            self.__dict__.pop("_way", None)
        self.check()
        if blocks:
            self.verify(blocks)
        names, device = list(self._stored), same_device(self._stored)
        return spread_chart(geometry, self.weights, names, blocks, self.dtype, device, self.crew)

    def verify(self, blocks: Sequence[Block]) -> None:
        """Refuse symmetries that do not hold on a few examples; where the state is sharded, all blocks at once."""
        if not self.sharded:
            super().verify(blocks)
            return
        if self._verified is blocks:
            return
        mine = self.weights
        own = [b for b in blocks if all(n in mine for n in b.parameters)]
        here = drift_along(self.output, mine, own, few_examples(self.sample()), self.crew.rank)
        drift = max(self.crew.objects("the drift along all orbits", here))
        allowed = allowed_drift(self.dtype)
        if not drift <= allowed:
            raise SymmetryError(
                f"expected the model's output to stay within {allowed:g} along the orbits of all blocks, but it "
                f"changes by {drift:.2g}: find the block with verify_symmetries on a whole model, and leave it out "
                "with Quotient(blocks=...)"
            )
        self._verified = blocks


def _on_cpu(batch: Any) -> Any:
    return None if batch is None else to_device(batch, torch.device("cpu"))


def _content(*tensors: Tensor) -> str:
    """A hash of shapes and entries."""
    digest = hashlib.blake2b(digest_size=8)
    for t in tensors:
        digest.update(f"{tuple(t.shape)}{t.dtype}".encode())
        digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    different = [n for n in dict.fromkeys([*one, *other]) if one.get(n) != other.get(n)]
    return f"first {different[0]}, {len(different)} in all"
