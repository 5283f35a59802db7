"""``torch.nn.MultiheadAttention``."""

from __future__ import annotations

from torch import nn

from spiritlevel.core.blocks import Block, Leftover, Pair
from spiritlevel.symmetry.adapters.base import ADAPTERS, Answer, Refusal, join, label
from spiritlevel.symmetry.adapters.slots import Part, Slot, factor, out_of_heads
from spiritlevel.symmetry.adapters.translations import key_shift, value_shift

__all__ = ["multihead"]


@ADAPTERS.register("torch MultiheadAttention")
def multihead(name: str, module: nn.Module, parent: nn.Module | None) -> Answer:
    """Queries, keys and values fused in ``in_proj_weight`` or separate; learned extra keys and values are more rows."""
    del parent
    if not isinstance(module, nn.MultiheadAttention):
        return None
    if type(module).forward is not nn.MultiheadAttention.forward:
        return Refusal("a subclass of MultiheadAttention with a forward pass of its own")
    q, k, v = (_side(name, module, i) for i in range(3))
    out, whole = join(name, "out_proj"), Part(0, module.head_dim)
    output = out_of_heads(out, module.out_proj, module.num_heads)
    blocks: list[Block | Leftover] = [
        Pair(label(name, "queries, keys"), factor(q, whole), factor(k, whole)),
        Pair(label(name, "values, output"), factor(v, whole), factor(output, whole)),
    ]
    if not module.add_zero_attn:  # a key of zeros would not be shifted with the others
        blocks += key_shift(name, k, whole)
        blocks += value_shift(name, v, module.head_dim, out, module.out_proj, 1)
    return blocks


def _side(name: str, module: nn.MultiheadAttention, i: int) -> tuple[Slot, ...]:
    """Weight, bias and learned extra row of queries (0), keys (1) or values (2)."""
    heads, width, letter = module.num_heads, module.head_dim, "qkv"[i]
    inner = (module.embed_dim, module.kdim, module.vdim)[i]
    third, whole = (i, slice(None)), (slice(None),)
    if module.in_proj_weight is not None:
        found = [Slot(join(name, "in_proj_weight"), (3, heads, width, inner), third, heads, 1, inner)]
    else:
        found = [Slot(join(name, f"{letter}_proj_weight"), (heads, width, inner), whole, heads, 1, inner)]
    if module.in_proj_bias is not None:
        found.append(Slot(join(name, "in_proj_bias"), (3, heads, width), third, heads, 1, None))
    if letter != "q" and getattr(module, f"bias_{letter}") is not None:
        found.append(Slot(join(name, f"bias_{letter}"), (heads, width), whole, heads, 1, None))
    return tuple(found)
