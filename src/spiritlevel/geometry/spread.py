"""A chart whose coordinates lie spread over ranks: each has those of the parameters it owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core.blocks import Block, Pair
from spiritlevel.core.fetching import TOKEN
from spiritlevel.core.ranks import Crew
from spiritlevel.core.shapes import Flat
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry.base import Chart, Geometry, Part, PullBack, Transported, Weights
from spiritlevel.geometry.dense import Dense

__all__ = ["SpreadChart", "assigned", "check_spread", "spread_chart"]

_DRAWN = 1 << 20  # random numbers drawn at a time; a multiple of 16, which is how many torch makes together


def assigned(sizes: Mapping[str, int], blocks: Sequence[Block], ranks: int) -> dict[str, int]:
    """An owner for each parameter: the largest first, to the rank with the least; those of one block together.

    >>> assigned({"a": 4, "b": 3, "c": 2}, [], 2)
    {'a': 0, 'b': 1, 'c': 1}
    """
    first = {n: n for n in sizes}

    def root(n: str) -> str:
        while first[n] != n:
            n = first[n]
        return n

    for block in blocks:
        inside = [n for n in block.parameters if n in sizes]
        for n in inside[1:]:
            first[root(n)] = root(inside[0])
    groups: dict[str, list[str]] = {}
    for n in sizes:
        groups.setdefault(root(n), []).append(n)
    weight = {r: sum(sizes[n] for n in names) for r, names in groups.items()}
    load = [0] * ranks
    owners: dict[str, int] = {}
    for r in sorted(groups, key=lambda r: -weight[r]):  # stable: the same on every rank
        rank = load.index(min(load))
        load[rank] += weight[r]
        owners |= dict.fromkeys(groups[r], rank)
    return {n: owners[n] for n in sizes}


class _Token(Part):
    """One coordinate that moves nothing: see `spiritlevel.core.fetching.TOKEN`."""

    size, dimension, names = 1, 0, (TOKEN,)

    def write(self, z: Flat, into: dict[str, Tensor]) -> None:
        into[TOKEN] = z * 1.0

    def coordinates(self, tangent: Weights) -> Tensor:
        return torch.zeros(1, device=next(iter(tangent.values())).device if tangent else None)

    def tangent(self, z: Flat, into: dict[str, Tensor]) -> None:
        del z, into

    def project(self, z: Flat) -> Tensor:
        return torch.zeros_like(z)

    def evaluate(self, z: Flat, into: dict[str, Tensor]) -> PullBack:
        self.write(z, into)

        def pull_back(gradient: Weights, slot: Tensor) -> None:
            del gradient
            slot.zero_()

        return pull_back

    def spans(self) -> list[tuple[str, slice]]:
        return []

    def dimensions(self) -> dict[str, int]:
        return {}


class SpreadChart(Chart):
    """The part of a chart that belongs to one rank's parameters.

    Random vectors are, entry by entry, those of the chart of one process with the same generator.

    Attributes:
        dimension: of all ranks together.
    """

    def __init__(
        self,
        weights: Weights,
        parts: Sequence[Part],
        dtype: torch.dtype,
        device: torch.device,
        crew: Crew,
        place: Callable[[str, int], tuple[int, ...]],
    ) -> None:
        self.parts = (*(p for p in parts if p.size), _Token())
        self.size = sum(p.size for p in self.parts)
        self.dtype, self.device = dtype, device
        self._still = {n: w for n, w in weights.items() if not any(n in p.names for p in self.parts)}
        self._section = self._change = self._verticals = None
        self._seen = {}
        self._crew = crew
        mine = list(self._stretches(place))
        facts = crew.objects(
            "the layout of a chart",
            (
                sum(p.dimension for p in self.parts),
                [(key, s.stop - s.start) for key, _, s in mine],
                super().layer_dimensions(),
            ),
        )
        self.dimension = sum(d for d, _, _ in facts)
        self._of_all: dict[str, int] = {n: d for _, _, layers in facts for n, d in layers.items()}
        order = sorted(
            (key, rank, i, n) for rank, (_, found, _) in enumerate(facts) for i, (key, n) in enumerate(found)
        )
        self.whole = sum(n for *_, n in order)
        starts = np.cumsum([0, *(n for *_, n in order)]).tolist()
        here = {i: at for (_, rank, i, _), at in zip(order, starts, strict=False) if rank == crew.rank}
        self._wanted = [(here[i], s) for i, (_, _, s) in enumerate(mine)]
        names = sorted(set(_names_of_all(crew, mine)))
        self._names = list(dict.fromkeys(n for _, n in names))

    def _stretches(self, place: Callable[[str, int], tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], str, slice]]:
        start = 0
        for part in self.parts:
            count: dict[str, int] = {}
            for name, s in part.spans():
                yield place(name, count.get(name, 0)), name, slice(start + s.start, start + s.stop)
                count[name] = count.get(name, 0) + 1
            start += part.size

    def random(self, draw: Callable[[int], Tensor]) -> Tensor:
        z = self.zeros()
        wanted, start = sorted(self._wanted, key=lambda w: w[0]), 0
        while start < self.whole:
            left = self.whole - start
            count = _DRAWN if left >= _DRAWN + 16 else left  # torch makes a short rest anew from its last 16
            numbers = draw(count)
            for at, s in wanted:
                low, high = max(at, start), min(at + s.stop - s.start, start + count)
                if low < high:
                    z[s.start + low - at : s.start + high - at] = numbers[low - start : high - start].to(z)
            start += count
        return z

    def layers(self) -> dict[str, tuple[slice, ...]]:
        mine = super().layers()
        return {n: mine.get(n, ()) for n in self._names}

    def layer_dimensions(self) -> dict[str, int]:
        return dict(self._of_all)

    def describe(self, rho: float) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for found in self._crew.objects("facts about a chart", super().describe(rho)):
            for key, value in found.items():
                summed = key == "null directions"
                facts[key] = value if key not in facts else facts[key] + value if summed else max(facts[key], value)
        return facts

    def stopped(self, z: Flat) -> int:
        return int(self._crew.sum("geodesics that ended", super().stopped(z)))


def _names_of_all(crew: Crew, mine: list[tuple[tuple[int, ...], str, slice]]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Places and names of the layers of all ranks."""
    for found in crew.objects("the layers of a chart", [(key, name) for key, name, _ in mine]):
        yield from found


def spread_chart(
    geometry: Geometry,
    weights: Weights,
    names: Sequence[str],
    blocks: Sequence[Block],
    dtype: torch.dtype,
    device: torch.device,
    crew: Crew,
) -> SpreadChart:
    """Coordinates of what this rank owns.

    Args:
        geometry: Euclidean, Elementwise, Diagonal or a Quotient by pairs.
        weights: the parameters this rank owns.
        names: of all measured parameters, in the model's order.
        blocks: of all ranks.
        dtype: of coordinates.
        device: of coordinates.
        crew: the ranks.
    """
    check_spread(geometry, blocks)
    groups: dict[tuple[Any, ...], int] = {}
    places: dict[str, tuple[int, int]] = {}
    for i, b in enumerate(blocks):
        assert isinstance(b, Pair)
        key = (b.left.rows, b.right.rows, b.width, b.is_complex)
        places[b.name] = (groups.setdefault(key, len(groups)), i)
    order = {n: i for i, n in enumerate(names)}

    def place(name: str, again: int) -> tuple[int, ...]:  # as `Quotient` has it: the rest, then pairs, factor by factor
        return (0, order[name]) if name not in places else (1, places[name][0], again, places[name][1])

    mine = [b for b in blocks if all(n in weights for n in b.parameters)]
    parts = geometry._parts(weights, mine, dtype) if weights else []
    return SpreadChart(weights, parts, dtype, device, crew, place)


def check_spread(geometry: Geometry, blocks: Sequence[Block]) -> None:
    """Refuse geometries whose parts do not each belong to one rank."""
    if isinstance(geometry, Dense | Transported):
        raise ArgumentError(
            "expected a geometry that moves weights or pairs by themselves where the state is sharded, got "
            f"{geometry}: take state='whole', or Euclidean, Elementwise, Diagonal or Quotient"
        )
    odd = [b.name for b in blocks if not isinstance(b, Pair) or b.frozen or b.free]
    if odd:
        raise ArgumentError(
            "expected only pairs (kinds 'attention' and 'lora') to quotient by where the state is sharded, got "
            f"{odd[0]!r}: take state='whole', or leave it out"
        )
