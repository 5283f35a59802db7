"""The part of a chart that moves GL(h) pairs: all heads of one shape at once, in whitened coordinates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spiritlevel.core.blocks import Pair
from spiritlevel.core.shapes import Flat
from spiritlevel.core.tensors import adjoint
from spiritlevel.geometry.base import Part, PullBack, Weights
from spiritlevel.geometry.gauge import Passage, canonical_gauge
from spiritlevel.geometry.metrics import METRICS, Curve

__all__ = ["Pairs"]


class Pairs(Part):
    """All pairs of one shape, as one batch of heads."""

    def __init__(self, weights: Weights, blocks: Sequence[Pair], metric: str, curve: Curve, dtype: torch.dtype) -> None:
        self._blocks, self._metric, self._name, self._curve = tuple(blocks), METRICS[metric], metric, curve
        self._heads = [b.heads for b in blocks]
        self._shapes = {n: (weights[n].shape, weights[n].dtype) for b in blocks for n in b.parameters}
        self.names = tuple(self._shapes)
        self._weights = {n: weights[n] for n in self._shapes}
        self.gauge = canonical_gauge(*self._read(weights), dtype)
        self._left, self._right = self.gauge.left.shape, self.gauge.right.shape
        reals = 2 if blocks[0].is_complex else 1
        self._split = [math.prod(self._left) * reals, math.prod(self._right) * reals]
        self.size = sum(self._split)
        n, m, r = self._left[1], self._right[1], self.gauge.rank
        each = (r * (n + m) - r * r) * reals
        self._dimensions = {b.name: int(d.sum()) for b, d in zip(blocks, each.split(self._heads), strict=True)}
        self.dimension = sum(self._dimensions.values())

    def _matrices(self, z: Tensor) -> tuple[Tensor, Tensor]:
        a, b = z.split(self._split)
        if self.gauge.left.is_complex():
            return torch.view_as_complex(a.view(*self._left, 2)), torch.view_as_complex(b.view(*self._right, 2))
        return a.view(self._left), b.view(self._right)

    def _flat(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        return torch.cat([a.reshape(-1), b.reshape(-1)])

    def _horizontal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self._metric.project(self.gauge, *self._matrices(z))

    def _spread(self, left: Tensor, right: Tensor, into: dict[str, Tensor], *, tangent: bool = False) -> None:
        """Write the factors of all blocks into their parameters."""
        for name, (shape, dtype) in self._shapes.items():
            if name not in into:
                into[name] = left.new_empty(shape, dtype=dtype)
        pieces = zip(self._blocks, left.split(self._heads), right.split(self._heads), strict=True)
        for block, g, h in pieces:
            (block.write_tangent if tangent else block.write)(into, g, h)

    def write(self, z: Flat, into: dict[str, Tensor]) -> None:
        self._spread(*self._metric.move(self.gauge, *self._matrices(z), self._curve), into)

    def evaluate(self, z: Flat, into: dict[str, Tensor]) -> PullBack:
        Pairs.write(self, z, into)  # of the metric's own coordinates, also where a subclass has others

        def pull_back(gradient: Weights, slot: Tensor) -> None:
            # the curve is computed once more: what autograd keeps of it would weigh on the network's own pass
            left, right = (c.to(self.gauge.left.dtype) for c in self._read(gradient, tangent=True))
            slot.copy_(self._flat(*self._metric.pull_back(self.gauge, *self._matrices(z), self._curve, left, right)))

        return pull_back

    def _read(self, weights: Weights, *, tangent: bool = False) -> tuple[Tensor, Tensor]:
        """Both factors of all blocks."""
        factors = [b.read_tangent(weights) if tangent else b.read(weights) for b in self._blocks]
        left, right = zip(*factors, strict=True)
        return torch.cat(left), torch.cat(right)

    def project(self, z: Flat) -> Tensor:
        return self._flat(*self._horizontal(z))

    def frame(self) -> tuple[Tensor, ...]:
        return self.gauge.left, self.gauge.right

    def carry(self, z: Flat, frame: tuple[Tensor, ...]) -> Tensor:
        if [f.shape for f in frame] != [self._left, self._right]:
            return z
        left, right = (adjoint(f) @ w for f, w in zip(frame, self.frame(), strict=True))
        u, _, v_adjoint = torch.linalg.svd(left + right)
        a, b = self._matrices(z)
        return self._flat(a @ (u @ v_adjoint), b @ (u @ v_adjoint))

    @cached_property
    def _passage(self) -> Passage:
        return self.gauge.passage(*self._read(self._weights))

    def coordinates(self, tangent: Weights) -> Tensor:
        x, y = (t.to(self._passage.left.dtype) for t in self._read(tangent, tangent=True))
        a, b = self._metric.whiten(self._passage, x, y)
        return self._flat(*(self.gauge.living(c.to(self.gauge.left.dtype)) for c in (a, b)))

    def tangent(self, z: Flat, into: dict[str, Tensor]) -> None:
        a, b = (t.to(self._passage.left.dtype) for t in self._horizontal(z))
        self._spread(*self._metric.unwhiten(self._passage, a, b), into, tangent=True)

    def spans(self) -> list[tuple[str, slice]]:
        found = []
        for start, size in zip((0, self._split[0]), self._split, strict=True):
            each = size // sum(self._heads)
            ends = [start + each * n for n in itertools.accumulate(self._heads, initial=0)]
            found += [(b.name, slice(*ends[i : i + 2])) for i, b in enumerate(self._blocks)]
        return found

    def dimensions(self) -> dict[str, int]:
        return dict(self._dimensions)

    def describe(self, rho: float) -> dict[str, Any]:
        dead = int((self.gauge.values == 0).sum())
        facts: dict[str, Any] = {"null directions": dead} if dead else {}
        if self._name == "cross_gram":
            facts["rho / s_min"] = rho / self.gauge.smallest
        return facts

    def stopped(self, z: Flat) -> int:
        if self._curve != "exact":
            return 0
        with torch.no_grad():
            return int(self._metric.stopped(self.gauge, *self._matrices(z)).sum())
