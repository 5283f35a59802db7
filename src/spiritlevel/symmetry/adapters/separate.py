"""Queries, keys, values and output in linear layers of their own."""

from __future__ import annotations

from torch import nn

from spiritlevel.symmetry.adapters.attention import Attention, blocks_of
from spiritlevel.symmetry.adapters.base import ADAPTERS, Answer, Refusal, join
from spiritlevel.symmetry.adapters.doubts import doubt
from spiritlevel.symmetry.adapters.layers import affine, described, outputs_of
from spiritlevel.symmetry.adapters.names import KEY, QUERY, VALUE, child, heads_of, output_of, setting
from spiritlevel.symmetry.adapters.norms import norms_of
from spiritlevel.symmetry.adapters.slots import Slot, into_heads

__all__ = ["separate"]

_POSITIONAL = {"query": "pos_query_proj", "key": "pos_key_proj"}
"""Positions that are projected like contents and meet those of the other side (DeBERTa): more rows of that factor."""


@ADAPTERS.register("separate projections")
def separate(name: str, module: nn.Module, parent: nn.Module | None) -> Answer:
    """Four layers for queries, keys, values and output, with as many or fewer heads of keys and values than of queries.

    BERT, ViT, CLIP, T5, Whisper, Llama and their kin; self-attention and cross-attention alike.
    """
    roles = [child(module, names) for names in (QUERY, KEY, VALUE)]
    if isinstance(module, nn.MultiheadAttention) or any(r is None for r in roles):
        return None
    q, k, v = (r for r in roles if r is not None)
    found = output_of(name, module, parent)
    if found is None:
        return Refusal("attention without an output projection that could be found")
    out, outer = found
    layers = {q: getattr(module, q), k: getattr(module, k), v: getattr(module, v), "output": outer}
    extra = {side: n for side, n in _POSITIONAL.items() if child(module, (n,))}
    layers |= {n: getattr(module, n) for n in extra.values()}
    wrong = next((r for r, x in layers.items() if not affine(x)), None)
    if wrong is not None:
        return Refusal(f"attention whose {wrong} is {described(layers[wrong])}, not a plain Linear")
    last = out.removeprefix(f"{name}.")
    refusal = doubt(module, {q, k, v, last, *extra.values(), *(norms_of(module) or ())}, last)
    if refusal is not None:
        return refusal
    query, key, value = (outputs_of(layers[r])[0] for r in (q, k, v))
    sizes = _sizes(module, query, key, value, outputs_of(outer)[1])
    if isinstance(sizes, Refusal):
        return sizes
    heads, group, width, value_width = sizes

    def into(role: str, group: int = 1, width: int = width) -> tuple[Slot, ...]:
        layer = getattr(module, role)
        return into_heads(join(name, role), layer, (heads * group, width), (slice(None),), heads, group)

    queries, keys = into(q, group), into(k)
    queries += into(extra["query"], group) if "query" in extra else ()
    keys += into(extra["key"]) if "key" in extra else ()
    values = into(v, 1, value_width)
    return blocks_of(module, Attention(name, queries, keys, values, out, outer, width, value_width))


def _sizes(module: nn.Module, query: int, key: int, value: int, inner: int) -> tuple[int, int, int, int] | Refusal:
    """Key-value heads, queries for each, width of a head, width of its values; from the sizes of the projections."""
    count = heads_of(module)
    if count is None:
        return Refusal("attention that does not say how many heads it has (num_attention_heads, num_heads, n_heads)")
    if query % count or inner % count:
        return Refusal(f"attention whose width is no multiple of its {count} heads")
    width, value_width = query // count, inner // count
    said = setting(module, "head_dim", "attention_head_size", "head_size")
    if isinstance(said, int) and said != width:
        return Refusal(f"attention with heads of {said}, but queries of {width} for each")
    if key % width or count % (key // width) or value != key // width * value_width:
        return Refusal("attention whose keys and values do not fit its queries head by head")
    heads = key // width
    return heads, count // heads, width, value_width
