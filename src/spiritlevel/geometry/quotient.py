"""The quotient by a model's symmetry blocks, times an elementwise geometry for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.core.blocks import Block, Pair
from spiritlevel.core.tensors import natural_dtype
from spiritlevel.core.views import Piece
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.geometry.base import Chart, Geometry, Part, Weights, required
from spiritlevel.geometry.cross_geodesic import TOLERANCES
from spiritlevel.geometry.entrywise import GEOMETRIES, Elementwise
from spiritlevel.geometry.metrics import METRICS, Curve
from spiritlevel.geometry.pairs import Pairs
from spiritlevel.geometry.renormed import Norm, RenormedPairs
from spiritlevel.geometry.section import Section

__all__ = ["Quotient"]


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
        kinds: which kinds of blocks to ask the model for; None for its default, the paper's.
        norm: for the paper's ablation (App. G) only: how long a horizontal vector of a pair is. ``metric`` as it should
            be; ``elementwise`` as in adaptive sharpness, ``euclidean``: with these nothing is invariant any more.
        relaxation: for the paper's ablation (App. H) only: ``eps`` in ``(G*G + eps 1)^-1`` of the norm. It breaks the
            invariance, all the more where heads have small singular values; nothing here needs it.
    """

    metric: Literal["inverse_gram", "cross_gram"] = "inverse_gram"
    curve: Curve = "exact"
    blocks: Sequence[Block] | None = field(default=None, repr=False)
    rest_geometry: Geometry = field(default_factory=Elementwise)
    kinds: str | tuple[str, ...] | None = None
    norm: Norm = "metric"
    relaxation: float = 0.0

    needs_blocks = True

    def __init__(
        self,
        metric: Literal["inverse_gram", "cross_gram"] = "inverse_gram",
        curve: Curve = "exact",
        blocks: Sequence[Block] | None = None,
        rest: Geometry | None = None,
        *,
        kinds: str | tuple[str, ...] | None = None,
        norm: Norm = "metric",
        relaxation: float = 0.0,
    ) -> None:
        if metric not in METRICS:
            raise ArgumentError(f"expected metric out of {', '.join(METRICS)}; got {metric!r}")
        if curve not in ("exact", "second_order", "first_order"):
            raise ArgumentError(f"expected curve 'exact', 'second_order' or 'first_order', got {curve!r}")
        if isinstance(rest, Quotient):
            raise ArgumentError("expected an elementwise geometry for the rest, got another Quotient")
        if blocks is not None and kinds is not None:
            raise ArgumentError("expected either blocks or kinds of blocks to look for, got both: leave one out")
        if norm not in ("metric", "elementwise", "euclidean"):
            raise ArgumentError(f"expected norm 'metric', 'elementwise' or 'euclidean', got {norm!r}")
        if not (math.isfinite(relaxation) and relaxation >= 0):
            raise ArgumentError(f"expected a relaxation from 0 on, got {relaxation!r}")
        if relaxation and (metric, norm) != ("inverse_gram", "metric"):
            raise ArgumentError("expected relaxation with the norm of inverse_gram only: nothing else is inverted")
        given = {"metric": metric, "curve": curve, "blocks": blocks, "kinds": kinds, "norm": norm}
        for name, value in {**given, "relaxation": float(relaxation)}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "rest_geometry", Elementwise() if rest is None else rest)

    def but(self, *, curve: Curve | None = None, blocks: Sequence[Block] | None = None) -> Quotient:
        """The same with another curve, or with blocks of its own."""
        return Quotient(
            self.metric,
            curve or self.curve,
            self.blocks if blocks is None else blocks,
            self.rest_geometry,
            kinds=self.kinds if blocks is None else None,
            norm=self.norm,
            relaxation=self.relaxation,
        )

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
        return parts + [self._pairs(weights, group, dtype) for group in groups.values()]

    def _pairs(self, weights: Weights, group: Sequence[Pair], dtype: torch.dtype) -> Pairs:
        if self.norm == "metric" and not self.relaxation:
            return Pairs(weights, group, self.metric, self.curve, dtype)
        return RenormedPairs(weights, group, self.metric, self.curve, dtype, self.norm, self.relaxation)

    def osculating(self) -> Quotient:
        if self.curve != "exact":
            return self
        return self.but(curve="second_order")

    def settings(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"geometry": str(self)}
        if self.metric == "cross_gram" and self.curve == "exact":
            facts["geodesic tolerance"] = f"{TOLERANCES[torch.float64]:g} (float64), {TOLERANCES[torch.float32]:g}"
        return facts

    def __str__(self) -> str:
        more = {"kinds": self.kinds, "norm": self.norm, "relaxation": self.relaxation}
        usual = {"kinds": None, "norm": "metric", "relaxation": 0.0}
        shown = "".join(f", {name}={value!r}" for name, value in more.items() if value != usual[name])
        return f"Quotient(metric={self.metric!r}, curve={self.curve!r}, rest={self.rest_geometry}{shown})"


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
