"""From where the heads of an attention layer lie to its blocks.

    queries and keys     G = [W_q^T; b_q],  H = [W_k^T; b_k]    (scores use G H^T only)
    values and outputs   G = [W_v^T; b_v],  H = W_o^T rows      (the output bias belongs to the rest)

The queries that share a key-value head are stacked as rows of one factor, and so are their columns of ``W_o``: one
group acts on all of them. Rotary positions leave GL(1, C) for every pair of columns they turn. Where scores are cosines
there remain rotations of queries with keys, and scales of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from spiritlevel.core.blocks import Block, Leftover, Pair, Rotation, Scale
from spiritlevel.symmetry.adapters.base import Refusal, label
from spiritlevel.symmetry.adapters.doubts import is_cosine, shifts_are_lost, sums_to_one
from spiritlevel.symmetry.adapters.norms import gain_blocks, norms_of
from spiritlevel.symmetry.adapters.rotary import parts_of
from spiritlevel.symmetry.adapters.slots import Part, Slot, factor, out_of_heads
from spiritlevel.symmetry.adapters.translations import key_shift, value_shift

__all__ = ["Attention", "blocks_of"]


@dataclass(frozen=True)
class Attention:
    """Where the heads of one layer lie, and how wide they are."""

    name: str
    queries: tuple[Slot, ...]
    keys: tuple[Slot, ...]
    values: tuple[Slot, ...]
    out: str
    """Full name of the output projection."""
    outer: nn.Module
    """The output projection."""
    width: int
    value_width: int

    @property
    def heads(self) -> int:
        """Key-value heads."""
        return self.keys[0].heads

    @property
    def group(self) -> int:
        """Queries for each."""
        return self.queries[0].group


def blocks_of(module: nn.Module, attention: Attention) -> list[Block | Leftover] | Refusal:
    """The blocks of a layer that nothing else is known to act on; none where positions act in an unknown way."""
    parts = parts_of(module, attention.width)
    if isinstance(parts, Refusal):
        return parts
    a, whole = attention, Part(0, attention.value_width)
    output = factor(out_of_heads(a.out, a.outer, a.heads, a.group), whole)
    blocks = [*_scores(module, a, parts), Pair(label(a.name, "values, output"), factor(a.values, whole), output)]
    if sums_to_one(module):
        blocks += value_shift(a.name, a.values, a.value_width, a.out, a.outer, a.group)
    return blocks


def _scores(module: nn.Module, a: Attention, parts: list[Part]) -> list[Block | Leftover]:
    """What acts on queries and keys."""
    norms = norms_of(module)
    if norms:
        inside = tuple(dict.fromkeys(s.parameter for s in (*a.queries, *a.keys)))
        left_out = Leftover(inside, "queries and keys are normalised after their projection")
        return [left_out, *gain_blocks(module, a.name, norms, parts, a.heads, a.group)]
    if is_cosine(module):
        return _cosines(a, parts)
    blocks: list[Block | Leftover] = [
        Pair(label(a.name, _roles(part, parts)), factor(a.queries, part), factor(a.keys, part)) for part in parts
    ]
    if shifts_are_lost(module):
        blocks += [shift for part in parts for shift in key_shift(a.name, a.keys, part)]
    return blocks


def _cosines(a: Attention, parts: list[Part]) -> list[Block | Leftover]:
    """O(h) on both, and a scale of each, for every head; only where nothing is turned and no head is shared."""
    inside = tuple(dict.fromkeys(s.parameter for s in (*a.queries, *a.keys)))
    if a.group > 1 or len(parts) > 1 or parts[0].pairing is not None:
        return [Leftover(inside, "scores are cosines of turned or shared heads")]
    queries, keys = factor(a.queries, parts[0]), factor(a.keys, parts[0])
    return [
        Rotation(label(a.name, "queries, keys"), (queries, keys)),
        Scale(label(a.name, "queries"), queries),
        Scale(label(a.name, "keys"), keys),
    ]


def _roles(part: Part, parts: list[Part]) -> str:
    """What a block of queries and keys is called: where only some columns are turned, it says which."""
    if len(parts) == 1:
        return "queries, keys"
    return f"queries, keys ({'plain' if part.pairing is None else 'turned'} columns)"
