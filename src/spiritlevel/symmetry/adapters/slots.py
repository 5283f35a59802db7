"""Where the heads of one projection lie in its weight, its bias, or a vector of gains.

Every layout is the same five axes in some order: key-value head, query of its group, width of a head, inputs, and what
else is fused beside them. A `Slot` says once where they are; factors over a whole head, over the complex pairs of
rotary positions or over single gains are then read off it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from torch import nn

from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters.base import join
from spiritlevel.symmetry.adapters.layers import is_transposed, weight_of

__all__ = ["Pairing", "Part", "Slot", "bias_of", "factor", "gains", "into_heads", "out_of_heads", "projection"]


class Pairing(Enum):
    """Which two columns of a head a rotary position turns into each other."""

    HALVES = "halves"
    """``i`` and ``i + r/2``."""
    NEIGHBOURS = "neighbours"
    """``2i`` and ``2i + 1``."""


@dataclass(frozen=True)
class Part:
    """Columns ``start`` to ``stop`` of a head, turned in pairs or (None) not at all."""

    start: int
    stop: int
    pairing: Pairing | None = None

    @property
    def width(self) -> int:
        """How many columns."""
        return self.stop - self.start


@dataclass(frozen=True)
class Slot:
    """One parameter of a projection.

    The parameter, viewed as ``shape`` and indexed by ``index``, has the axes (heads * group, width, inputs), or
    (inputs, heads * group, width) where ``transposed``; without ``inputs`` it is a bias. ``start`` is where in the
    width axis the head begins; the group acts on the parameter plus ``offset``.
    """

    parameter: str
    shape: tuple[int, ...]
    index: tuple[int | slice, ...]
    heads: int
    group: int
    inputs: int | None
    transposed: bool = False
    start: int = 0
    offset: float = 0.0

    def piece(self, part: Part, single: bool = False) -> Piece:
        """The rows of a factor that lie here.

        Complex columns where the part is turned; with ``single``, a real group GL(1) for each column (or turned pair
        of columns, which then are two rows).
        """
        n = part.width
        inner = {None: (n,), Pairing.HALVES: (2, n // 2), Pairing.NEIGHBOURS: (n // 2, 2)}[part.pairing]
        sizes = (self.heads, self.group, *inner)
        lead = 1 if self.transposed else 0
        rest = () if self.inputs is None else (self.inputs,)
        split = (*rest, *sizes) if self.transposed else (*sizes, *rest)
        axes = range(lead, lead + len(sizes))
        rows = (axes[1], *(() if self.inputs is None else (0 if self.transposed else len(sizes),)))
        index = (*self.index, slice(self.start + part.start, self.start + part.stop))
        if part.pairing is None:
            batch, column = ((axes[0], axes[2]), None) if single else ((axes[0],), axes[2])
            return Piece(self.parameter, self.shape, batch, rows, column, index, split=split, offset=self.offset)
        turn, mates = (axes[3], axes[2]) if part.pairing is Pairing.HALVES else (axes[2], axes[3])
        if single:
            return Piece(
                self.parameter,
                self.shape,
                (axes[0], turn),
                (*rows, mates),
                None,
                index,
                split=split,
                offset=self.offset,
            )
        return Piece(self.parameter, self.shape, (axes[0], turn), rows, None, index, mates, split, self.offset)


def factor(slots: Iterable[Slot], part: Part) -> Factor:
    """The factor of a projection over some columns of its heads."""
    return Factor(tuple(s.piece(part) for s in slots))


def gains(slots: Iterable[Slot], part: Part) -> Factor:
    """The factor of gains, each column (or turned pair) with a group GL(1) of its own."""
    return Factor(tuple(s.piece(part, single=True) for s in slots))


def bias_of(slots: Iterable[Slot], part: Part) -> Factor | None:
    """The biases of a projection over some columns of its heads; None if it has none."""
    pieces = tuple(s.piece(part) for s in slots if s.inputs is None)
    return Factor(pieces) if pieces else None


def into_heads(
    name: str,
    layer: nn.Module,
    shape: tuple[int, ...],
    index: tuple[int | slice, ...],
    heads: int,
    group: int = 1,
    start: int = 0,
) -> tuple[Slot, ...]:
    """Weight and bias of a projection into heads.

    Args:
        name: full name of the layer.
        layer: a Linear, or its transpose Conv1D.
        shape: how its outputs are laid out; the last axis is the width.
        index: which of them these heads are, one entry for each axis but the last.
        heads: number of groups that act on them.
        group: heads that share one group (the queries of a key-value head).
        start: where in the last axis the heads begin.
    """
    weight, bias = weight_of(layer), getattr(layer, "bias", None)
    if is_transposed(layer):
        inputs = weight.shape[0]
        first = Slot(join(name, "weight"), (inputs, *shape), (slice(None), *index), heads, group, inputs, True, start)
    else:
        inputs = weight.shape[1]
        first = Slot(join(name, "weight"), (*shape, inputs), index, heads, group, inputs, False, start)
    if bias is None:
        return (first,)
    return first, Slot(join(name, "bias"), shape, index, heads, group, None, False, start)


def out_of_heads(name: str, layer: nn.Module, heads: int, group: int = 1) -> tuple[Slot, ...]:
    """The weight of a projection out of heads; its bias is no part of the factor."""
    weight, count = weight_of(layer), heads * group
    if is_transposed(layer):
        inside, outside = weight.shape
        shape: tuple[int, ...] = (count, inside // count, outside)
        return (Slot(join(name, "weight"), shape, (slice(None),), heads, group, outside),)
    outside, inside = weight.shape
    shape = (outside, count, inside // count)
    return (Slot(join(name, "weight"), shape, (slice(None), slice(None)), heads, group, outside, True),)


def projection(name: str, layer: nn.Module, heads: int) -> Factor:
    """The factor of a projection into heads: rows of its weight, head by head, and its bias as one more row."""
    size = weight_of(layer).shape[1 if is_transposed(layer) else 0]
    slots = into_heads(name, layer, (heads, size // heads), (slice(None),), heads)
    return factor(slots, Part(0, size // heads))
