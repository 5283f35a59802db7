"""One chart for stacked networks: each coordinate belongs to one of them.

The elementwise geometries work on stacked weights as they are. For the quotient a stack of networks is one network with
more heads: every piece of a block gets the stacking axis as one more axis of heads, and all factorisations, geodesics
and projections are done for all heads of all networks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spiritlevel.core.blocks import Block, Pair
from spiritlevel.core.views import Factor, Piece
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Geometry, Quotient

__all__ = ["StackedChart", "stacked_block"]


def stacked_block(block: Block, count: int) -> Pair:
    """The block of ``count`` networks whose weights are stacked along a new first axis."""
    if not isinstance(block, Pair):
        raise ArgumentError(f"expected pairs of factors only, got {block.name!r}: measure these networks one by one")
    return replace(block, left=_stacked_factor(block.left, count), right=_stacked_factor(block.right, count))


def _stacked_factor(factor: Factor, count: int) -> Factor:
    return Factor(tuple(_stacked_piece(p, count) for p in factor.pieces))


def _stacked_piece(piece: Piece, count: int) -> Piece:
    return replace(
        piece,
        shape=(count, *piece.shape),
        index=(slice(None), *piece.index),
        split=(count, *piece.split) if piece.split else (),
        batch=(0, *(axis + 1 for axis in piece.batch)),
        rows=tuple(axis + 1 for axis in piece.rows),
        column=None if piece.column is None else piece.column + 1,
        pair=None if piece.pair is None else piece.pair + 1,
    )


class StackedChart:
    """Coordinates of several networks: a row for each, in the order that a chart of one network has.

    Args:
        geometry: without an edge and without directions that a network lacks (see `Ensemble`).
        weights: stacked along the first axis.
        blocks: of one network, for a quotient.
        count: how many networks.
    """

    def __init__(self, geometry: Geometry, weights: Mapping[str, Tensor], blocks: Sequence[Block], count: int) -> None:
        if isinstance(geometry, Quotient):
            together = [stacked_block(b, count) for b in blocks]
            geometry = geometry.but(blocks=together)
        self._chart = geometry.chart(weights)
        facts = self._chart.describe(1.0)
        if facts:
            raise ArgumentError(
                f"expected a geometry whose facts are the same for all networks, got {', '.join(facts)}: measure these "
                "networks one by one"
            )
        self.count, self.dtype, self.size = count, self._chart.dtype, self._chart.size // count
        columns, start = [], 0
        for part in self._chart.parts:
            spans = [s for _, s in part.spans()]
            columns += [torch.arange(start + s.start, start + s.stop).view(count, -1) for s in spans]
            start += part.size
        self._order = torch.cat(columns, 1).view(-1).to(self._chart.device)

    def _flat(self, rows: Tensor) -> Tensor:
        flat = torch.empty_like(rows).view(-1)
        flat[self._order] = rows.reshape(-1)
        return flat

    def _rows(self, flat: Tensor) -> Tensor:
        return flat[self._order].view(self.count, self.size)

    def zeros(self) -> Tensor:
        """The coordinates of the networks themselves."""
        return torch.zeros(self.count, self.size, dtype=self.dtype, device=self._chart.device)

    def gaussian(self, generator: torch.Generator) -> Tensor:
        """For each network the Gaussian that its own chart would draw from this generator."""
        z = torch.randn(self.size, generator=generator, dtype=self.dtype, device=generator.device)
        return self._rows(self._chart.project(self._flat(z.to(self._chart.device).repeat(self.count, 1))))

    def weights(self, rows: Tensor) -> dict[str, Tensor]:
        """The stacked weights at one point for each network."""
        return self._chart.weights(self._flat(rows))

    def evaluate(self, rows: Tensor) -> tuple[dict[str, Tensor], Callable[[Mapping[str, Tensor]], Tensor]]:
        """The same, cut off from autograd, and the way back for gradients."""
        moved, back = self._chart.evaluate(self._flat(rows))
        return moved, lambda gradient: self._rows(back(gradient))
