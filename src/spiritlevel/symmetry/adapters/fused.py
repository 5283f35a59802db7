"""Queries, keys and values in one fused layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spiritlevel.symmetry.adapters.attention import Attention, blocks_of
from spiritlevel.symmetry.adapters.base import ADAPTERS, Answer, Refusal, join
from spiritlevel.symmetry.adapters.doubts import doubt
from spiritlevel.symmetry.adapters.labels import trace_heads
from spiritlevel.symmetry.adapters.layers import affine, described, outputs_of
from spiritlevel.symmetry.adapters.names import FUSED, child, heads_of, output_of
from spiritlevel.symmetry.adapters.norms import norms_of
from spiritlevel.symmetry.adapters.slots import into_heads

__all__ = ["Order", "fused"]


@dataclass(frozen=True)
class Order:
    """How a fused layer orders its outputs: a shape, and the index of queries, keys and values in it."""

    shape: tuple[int, ...]
    queries: tuple[int | slice, ...]
    keys: tuple[int | slice, ...]
    values: tuple[int | slice, ...]

    def numbers(self, width: int) -> list[Tensor]:
        """Which outputs make up the heads of queries, keys and values."""
        every = torch.arange(torch.Size(self.shape).numel()).reshape(self.shape)
        return [every[i].reshape(-1, width) for i in (self.queries, self.keys, self.values)]


def orders(heads: int, group: int, width: int) -> list[Order]:
    """The orders in use: one after the other, or together for every key-value head."""
    count, whole = heads * group, slice(None)
    return [
        Order(
            (count + 2 * heads, width),
            (slice(0, count),),
            (slice(count, count + heads),),
            (slice(count + heads, count + 2 * heads),),
        ),
        Order((heads, group + 2, width), (whole, slice(0, group)), (whole, group), (whole, group + 1)),
    ]


@ADAPTERS.register("fused projection")
def fused(name: str, module: nn.Module, parent: nn.Module | None) -> Answer:
    """One layer for queries, keys and values: [Q | K | V], [heads, 3, width] or [key-value heads, g + 2, width].

    GPT-2, Bloom, GPT-NeoX, Falcon, Phi-3, ModernBERT and their kin. The order is told by `trace_heads`.
    """
    layer_name, count = child(module, FUSED), heads_of(module)
    found = output_of(name, module, parent)
    if layer_name is None or found is None:
        return None
    layer, (out, outer) = getattr(module, layer_name), found
    for role, x in ((layer_name, layer), ("output", outer)):
        if not affine(x):
            return Refusal(f"attention whose {role} is {described(x)}, not a plain Linear")
    if count is None:
        return Refusal("attention that does not say how many heads it has (num_attention_heads, num_heads, n_heads)")
    last = out.removeprefix(f"{name}.")
    refusal = doubt(module, {layer_name, last, *(norms_of(module) or ())}, last)
    if refusal is not None:
        return refusal
    width, rest = divmod(outputs_of(outer)[1], count)
    heads, odd = divmod(outputs_of(layer)[0] - count * width, 2 * width) if width else (0, 1)
    if rest or odd or heads < 1 or count % heads:
        return Refusal(f"attention whose fused layer does not hold {count} heads of queries, keys and values")
    group = count // heads
    order = _order(module, layer, heads, group, width)
    if order is None:
        return Refusal("attention with a fused layer whose order of queries, keys and values could not be told")
    full = join(name, layer_name)
    queries = into_heads(full, layer, order.shape, order.queries, heads, group)
    keys, values = (into_heads(full, layer, order.shape, i, heads) for i in (order.keys, order.values))
    return blocks_of(module, Attention(name, queries, keys, values, out, outer, width, width))


def _order(module: nn.Module, layer: nn.Module, heads: int, group: int, width: int) -> Order | None:
    """The order in which the module reads the outputs of its fused layer."""
    traced = trace_heads(module, layer, width, [getattr(module, n) for n in norms_of(module) or ()])
    if traced is None:
        return None
    for order in orders(heads, group, width):
        expected = order.numbers(width)
        if all(_agree(t, e, heads * group) for t, e in zip(traced, expected, strict=True)):
            return order
    return None


def _agree(traced: Tensor, expected: Tensor, count: int) -> bool:
    """Whether the heads are the expected ones, each key-value head perhaps repeated for its queries."""
    if traced.shape[0] == count and expected.shape[0] < count:
        expected = expected.repeat_interleave(count // expected.shape[0], dim=0)
    return torch.equal(traced, expected)
