"""The quotient by a model's symmetry blocks, times an elementwise geometry for the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.core.blocks import Block, Pair
from spiritlevel.core.shapes import Flat
from spiritlevel.core.tensors import adjoint, natural_dtype
from spiritlevel.core.views import Piece
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.geometry.base import Chart, Geometry, Part, PullBack, Weights, required
from spiritlevel.geometry.cross_geodesic import TOLERANCES
from spiritlevel.geometry.entrywise import GEOMETRIES, Elementwise
from spiritlevel.geometry.gauge import Passage, canonical_gauge
from spiritlevel.geometry.metrics import METRICS, Curve
from spiritlevel.geometry.section import Section

__all__ = ["Quotient"]


class _Pairs(Part):
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
        self.write(z, into)

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


@GEOMETRIES.register("quotient")
@dataclass(frozen=True)
class Quotient(Geometry):
    """The horizontal space of GL(h) pairs, with an elementwise geometry for every weight outside them.

    Invariant under the whole group of the blocks: any point of the orbit gives the same chart, because it is built at
    the canonical point that all of them share (`spiritlevel.geometry.gauge`).

    Args:
        metric: ``inverse_gram`` (scale-free, complete; the default) or ``cross_gram`` (absolute change of the product;
            its geodesics can end, see `Status.EDGE`).
        curve: ``exact`` geodesics (closed form for inverse_gram, integrated to a stated tolerance for cross_gram), the
            paper's ``second_order`` curve (Eq. 7), or ``first_order`` straight lines.
        blocks: what to quotient by; None asks the model (`spiritlevel.find_symmetries`).
        rest: geometry of everything else.
    """

    metric: Literal["inverse_gram", "cross_gram"] = "inverse_gram"
    curve: Curve = "exact"
    blocks: Sequence[Block] | None = field(default=None, repr=False)
    rest_geometry: Geometry = field(default_factory=Elementwise)

    needs_blocks = True

    def __init__(
        self,
        metric: Literal["inverse_gram", "cross_gram"] = "inverse_gram",
        curve: Curve = "exact",
        blocks: Sequence[Block] | None = None,
        rest: Geometry | None = None,
    ) -> None:
        if metric not in METRICS:
            raise ArgumentError(f"expected metric out of {', '.join(METRICS)}; got {metric!r}")
        if curve not in ("exact", "second_order", "first_order"):
            raise ArgumentError(f"expected curve 'exact', 'second_order' or 'first_order', got {curve!r}")
        if isinstance(rest, Quotient):
            raise ArgumentError("expected an elementwise geometry for the rest, got another Quotient")
        for name, value in (("metric", metric), ("curve", curve), ("blocks", blocks)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "rest_geometry", Elementwise() if rest is None else rest)

    def chart(self, weights: Weights, blocks: Sequence[Block] = ()) -> Chart:
        blocks = list(blocks if self.blocks is None else self.blocks)
        for block in blocks:
            missing = [n for n in block.parameters if n not in weights]
            if missing:
                raise ModelError(
                    f"expected all parameters of block {block.name!r} among the measured ones, missing {missing}: "
                    "measure them too, or leave the block out"
                )
        section, dtype = Section(required(weights), blocks), natural_dtype(weights.values())
        # rows that another block has folded to 0 take no part in a product any more
        frozen = tuple(p for b in blocks for p in b.frozen)
        folded = [b.without(frozen) if isinstance(b, Pair) else b for b in blocks]
        parts, free = self._parts(section.weights, folded, dtype), [b for b in blocks if b.free]
        return Chart(section.weights, parts, dtype, section if section.moves else None, free)

    def _parts(self, weights: Weights, blocks: Sequence[Block], dtype: torch.dtype) -> list[Part]:
        left_over, masks = _uncovered(weights, blocks)
        rest = {n: weights[n] for n in left_over}
        parts = self.rest_geometry.rest(rest, masks, dtype) if rest else []
        groups: dict[tuple[int, int, int, bool], list[Pair]] = {}
        for block in blocks:
            if isinstance(block, Pair):
                key = (block.left.rows, block.right.rows, block.width, block.is_complex)
                groups.setdefault(key, []).append(block)
        return parts + [_Pairs(weights, group, self.metric, self.curve, dtype) for group in groups.values()]

    def osculating(self) -> Quotient:
        if self.curve != "exact":
            return self
        return Quotient(self.metric, "second_order", self.blocks, self.rest_geometry)

    def settings(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"geometry": str(self)}
        if self.metric == "cross_gram" and self.curve == "exact":
            facts["geodesic tolerance"] = f"{TOLERANCES[torch.float64]:g} (float64), {TOLERANCES[torch.float32]:g}"
        return facts

    def __str__(self) -> str:
        return f"Quotient(metric={self.metric!r}, curve={self.curve!r}, rest={self.rest_geometry})"


def _uncovered(weights: Weights, blocks: Sequence[Block]) -> tuple[list[str], dict[str, Tensor]]:
    """Names of parameters with entries outside the blocks, and masks of those entries where only some are.

    Parameters that are partly in pairs and partly frozen are named too, so that something writes their frozen entries.
    """
    claimed: dict[str, Tensor] = {}
    covered: dict[str, Tensor] = {}
    paired = {n for b in blocks if isinstance(b, Pair) for n in b.parameters}
    frozen = {p.parameter for b in blocks for p in b.frozen}
    for block in blocks:
        for piece in block.claims:
            _mark(piece, weights, claimed)
            if int(claimed[piece.parameter].max()) > 1:
                raise ModelError(
                    f"expected blocks that share no weights, but an entry of {piece.parameter!r} is in two, one of "
                    f"them {block.name!r}: leave one of them out"
                )
        for piece in block.claims if isinstance(block, Pair) else block.frozen:
            _mark(piece, weights, covered)
    masks = {n: c == 0 for n, c in covered.items() if bool((c == 0).any()) or n in paired & frozen}
    return [n for n in weights if n not in covered or n in masks], masks


def _mark(piece: Piece, weights: Weights, counts: dict[str, Tensor]) -> None:
    """Count the entries of a piece."""
    w = weights[piece.parameter]
    counts.setdefault(piece.parameter, torch.zeros(w.shape, dtype=torch.uint8, device=w.device))
    piece.mark(counts)
