"""One adapter per layout of attention weights: where the factors of each head lie.

An adapter looks at one module and answers with blocks, with a refusal (this looks like attention, but the group is not
known to act on it), or with nothing. It goes by structure, never by the name of a model. Adapters are tried in the
order in which they are registered, and the first that answers decides.

The pairs of one attention layer, with biases as one more row of their factor:

    queries and keys     G = [W_q^T; b_q],  H = [W_k^T; b_k]    (scores use G H^T only)
    values and outputs   G = [W_v^T; b_v],  H = W_o^T rows      (the output bias belongs to the rest)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from spiritlevel.core.blocks import Pair
from spiritlevel.core.registry import Registry
from spiritlevel.core.views import Factor, Piece

__all__ = ["ADAPTERS", "Adapter", "Refusal", "heads_of", "projection"]


@dataclass(frozen=True)
class Refusal:
    """A module that looks like attention but whose group is not known."""

    reason: str


Adapter = Callable[[str, nn.Module, nn.Module | None], "Sequence[Pair] | Refusal | None"]
"""``(name, module, parent) -> blocks, a refusal, or None``; parameter names start with ``name``."""

ADAPTERS: Registry[Adapter] = Registry("symmetry adapter")

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads")
_QUERY = ("q_proj", "query", "q_lin", "to_q", "q")
_KEY = ("k_proj", "key", "k_lin", "to_k", "k")
_VALUE = ("v_proj", "value", "v_lin", "to_v", "v")
_OUTPUT = ("o_proj", "out_proj", "out_lin", "to_out", "o")
_POSITIONS = ("position_embeddings", "rotary", "rope", "alibi", "cos", "sin", "freqs")


def join(prefix: str, name: str) -> str:
    """A parameter's full name; the root module has the prefix ""."""
    return f"{prefix}.{name}" if prefix else name


def heads_of(module: nn.Module) -> int | None:
    """The number of heads an attention module says it has, itself or in its config."""
    for holder in (module, getattr(module, "config", None)):
        for name in _HEADS:
            count = getattr(holder, name, None)
            if isinstance(count, int) and count > 0:
                return count
    return None


def projection(name: str, linear: nn.Linear, heads: int) -> Factor:
    """The factor of a projection into heads: rows of its weight, head by head, and its bias as one more row."""
    width = linear.out_features // heads
    pieces = [Piece(f"{name}.weight", (heads, width, linear.in_features), batch=(0,), rows=(2,), column=1)]
    if linear.bias is not None:
        pieces.append(Piece(f"{name}.bias", (heads, width), batch=(0,), rows=(), column=1))
    return Factor(tuple(pieces))


def _label(name: str, roles: str) -> str:
    return f"{name}: {roles}" if name else roles


def _merge(name: str, weight_shape: tuple[int, ...], heads: int) -> Factor:
    """The factor of a projection out of heads: columns of its weight, head by head."""
    rows, columns = weight_shape
    shape = (rows, heads, columns // heads)
    return Factor((Piece(f"{name}.weight", shape, batch=(1,), rows=(0,), column=2),))


def _child(module: nn.Module, names: Sequence[str]) -> str | None:
    children = dict(module.named_children())
    return next((n for n in names if n in children), None)


@ADAPTERS.register("separate projections")
def separate(name: str, module: nn.Module, parent: nn.Module | None) -> Sequence[Pair] | Refusal | None:
    """Four linear layers for queries, keys, values and output (BERT, ViT, CLIP, DistilBERT and their kin)."""
    roles = [_child(module, names) for names in (_QUERY, _KEY, _VALUE)]
    if isinstance(module, nn.MultiheadAttention) or any(r is None for r in roles):
        return None
    q, k, v = (r for r in roles if r is not None)
    found = _output(name, module, parent)
    if found is None:
        return Refusal("attention without an output projection that could be found")
    out, outer = found
    layers = {q: getattr(module, q), k: getattr(module, k), v: getattr(module, v), "output": outer}
    wrong = [r for r, x in layers.items() if type(x) is not nn.Linear]
    if wrong:
        return Refusal(f"attention whose {wrong[0]} is {type(layers[wrong[0]]).__name__}, not a plain Linear")
    refusal = _twist(module, {q, k, v, out.removeprefix(f"{name}.")})
    if refusal is not None:
        return refusal
    heads, widths = heads_of(module), {x.out_features for x in (layers[q], layers[k])}
    if heads is None:
        return Refusal("attention that does not say how many heads it has (num_attention_heads, num_heads, n_heads)")
    if len(widths) != 1 or layers[v].out_features != outer.in_features:
        return Refusal("attention with fewer key or value heads than query heads")
    if any(size % heads for size in (layers[q].out_features, layers[v].out_features)):
        return Refusal(f"attention whose width is no multiple of its {heads} heads")
    return [
        Pair(
            _label(name, "queries, keys"),
            projection(join(name, q), layers[q], heads),
            projection(join(name, k), layers[k], heads),
        ),
        Pair(
            _label(name, "values, output"),
            projection(join(name, v), layers[v], heads),
            _merge(out, tuple(outer.weight.shape), heads),
        ),
    ]


def _output(name: str, module: nn.Module, parent: nn.Module | None) -> tuple[str, nn.Linear] | None:
    """The output projection: a child, or (BERT's layout) the ``dense`` of the sibling called ``output``."""
    child = _child(module, _OUTPUT)
    if child is not None:
        return join(name, child), getattr(module, child)
    dense = getattr(getattr(parent, "output", None), "dense", None)
    if dense is None:
        return None
    return join(name.rpartition(".")[0], "output.dense"), dense


def _twist(module: nn.Module, known: set[str]) -> Refusal | None:
    """A reason to doubt that scores are plain products of queries and keys."""
    accepted = inspect.signature(module.forward).parameters
    turned = next((p for p in accepted if any(word in p for word in _POSITIONS)), None)
    if turned is not None:
        return Refusal(f"attention that takes {turned!r}: positions act on queries and keys, so the group is smaller")
    for child, sub in module.named_children():
        if child not in known and (
            "rot" in child or "rope" in child or "pos" in child or next(sub.parameters(), None) is not None
        ):
            return Refusal(f"attention with a further part {child!r} that may act on queries or keys")
    own = [n for n, _ in module.named_parameters(recurse=False)]
    return Refusal(f"attention with a further parameter {own[0]!r}") if own else None


@ADAPTERS.register("torch MultiheadAttention")
def multihead(name: str, module: nn.Module, parent: nn.Module | None) -> Sequence[Pair] | Refusal | None:
    """``torch.nn.MultiheadAttention``: queries, keys and values fused in one weight, or separate."""
    del parent
    if not isinstance(module, nn.MultiheadAttention):
        return None
    if type(module).forward is not nn.MultiheadAttention.forward:
        return Refusal("a subclass of MultiheadAttention with a forward pass of its own")
    heads, width = module.num_heads, module.head_dim
    factors = []
    for i, letter in enumerate("qkv"):
        inner = {"q": module.embed_dim, "k": module.kdim, "v": module.vdim}[letter]
        if module.in_proj_weight is not None:
            fused = join(name, "in_proj_weight")
            pieces = [Piece(fused, (3, heads, width, inner), batch=(0,), rows=(2,), column=1, index=(i,))]
        else:
            own = join(name, f"{letter}_proj_weight")
            pieces = [Piece(own, (heads, width, inner), batch=(0,), rows=(2,), column=1)]
        if module.in_proj_bias is not None:
            bias = join(name, "in_proj_bias")
            pieces.append(Piece(bias, (3, heads, width), batch=(0,), rows=(), column=1, index=(i,)))
        if letter != "q" and getattr(module, f"bias_{letter}") is not None:
            pieces.append(Piece(join(name, f"bias_{letter}"), (heads, width), batch=(0,), rows=(), column=1))
        factors.append(Factor(tuple(pieces)))
    q, k, v = factors
    out = _merge(join(name, "out_proj"), tuple(module.out_proj.weight.shape), heads)
    return [Pair(_label(name, "queries, keys"), q, k), Pair(_label(name, "values, output"), v, out)]
