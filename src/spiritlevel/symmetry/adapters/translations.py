"""Biases that attention does not see, or that the output bias makes up for.

- A key bias adds ``q b_k`` to all scores of a query, which softmax does not see: R^h, for the columns that positions do
  not turn, where nothing but a softmax stands between scores and weights.
- The weights of a query sum to 1, so a value bias adds ``W_o b_v`` to the output: ``(b_v + c, b_o - W_o c)``.
"""

from __future__ import annotations

from torch import nn

from spiritlevel.core.blocks import Translation
from spiritlevel.core.blocks.translation import Reader
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters.base import join, label
from spiritlevel.symmetry.adapters.slots import Part, Slot, bias_of, factor, out_of_heads

__all__ = ["key_shift", "value_shift"]


def key_shift(name: str, keys: tuple[Slot, ...], part: Part) -> list[Translation]:
    """The translation of the key bias over columns that are not turned; with learned extra keys, of them too."""
    shift = bias_of(keys, part) if part.pairing is None else None
    return [] if shift is None else [Translation(label(name, "key bias"), shift)]


def value_shift(
    name: str, values: tuple[Slot, ...], width: int, out: str, outer: nn.Module, group: int
) -> list[Translation]:
    """The translation of the value bias against the output bias; with learned extra values, of them too.

    Args:
        name: of the attention module.
        values: where the values lie.
        width: of one head of values.
        out: full name of the output projection.
        outer: the output projection.
        group: queries for each key-value head.
    """
    whole = Part(0, width)
    shift, bias = bias_of(values, whole), getattr(outer, "bias", None)
    if shift is None or bias is None:
        return []
    weight = factor(out_of_heads(out, outer, shift.heads * group), whole)
    target = Factor((Piece(join(out, "bias"), (bias.numel(),), (), (0,), None),))
    return [Translation(label(name, "value bias, output bias"), shift, (Reader(weight, target, group),))]
