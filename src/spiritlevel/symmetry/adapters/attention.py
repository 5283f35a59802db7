"""From where the heads of an attention layer lie to its blocks.

    queries and keys     G = [W_q^T; b_q],  H = [W_k^T; b_k]    (scores use G H^T only)
    values and outputs   G = [W_v^T; b_v],  H = W_o^T rows      (the output bias belongs to the rest)

The queries that share a key-value head are stacked as rows of one factor, and so are their columns of ``W_o``: one
group acts on all of them. Rotary positions leave GL(1, C) for every pair of columns they turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from spiritlevel.core.blocks import Leftover, Pair
from spiritlevel.symmetry.adapters.base import Refusal, label
from spiritlevel.symmetry.adapters.doubts import is_cosine
from spiritlevel.symmetry.adapters.norms import gain_blocks, norms_of
from spiritlevel.symmetry.adapters.rotary import parts_of
from spiritlevel.symmetry.adapters.slots import Part, Slot, factor

__all__ = ["Attention", "blocks_of"]


@dataclass(frozen=True)
class Attention:
    """Where the heads of one layer lie, and how wide they are."""

    name: str
    queries: tuple[Slot, ...]
    keys: tuple[Slot, ...]
    values: tuple[Slot, ...]
    output: tuple[Slot, ...]
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


def blocks_of(module: nn.Module, attention: Attention) -> list[Pair | Leftover] | Refusal:
    """The blocks of a layer that nothing else is known to act on; none where positions act in an unknown way."""
    parts = parts_of(module, attention.width)
    if isinstance(parts, Refusal):
        return parts
    whole = Part(0, attention.value_width)
    outer = Pair(
        label(attention.name, "values, output"), factor(attention.values, whole), factor(attention.output, whole)
    )
    return [*_scores(module, attention, parts), outer]


def _scores(module: nn.Module, attention: Attention, parts: list[Part]) -> list[Pair | Leftover]:
    """What acts on queries and keys."""
    inside = tuple(dict.fromkeys(s.parameter for s in (*attention.queries, *attention.keys)))
    if is_cosine(module):
        return [Leftover(inside, "scores are cosines: only rotations and scales act on queries and keys")]
    norms = norms_of(module)
    if norms:
        left_out = Leftover(inside, "queries and keys are normalised after their projection")
        return [left_out, *gain_blocks(module, attention.name, norms, parts, attention.heads, attention.group)]
    return [
        Pair(label(attention.name, _roles(part, parts)), factor(attention.queries, part), factor(attention.keys, part))
        for part in parts
    ]


def _roles(part: Part, parts: list[Part]) -> str:
    """What a block of queries and keys is called: where only some columns are turned, it says which."""
    if len(parts) == 1:
        return "queries, keys"
    return f"queries, keys ({'plain' if part.pairing is None else 'turned'} columns)"
