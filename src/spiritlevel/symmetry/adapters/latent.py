"""Latent attention: keys and values are expanded from one small latent vector (DeepSeek's MLA).

    queries    q = W_qb n(W_qa x), or W_q x;  of each head [plain | turned] columns
    latent     [c | k_r] = W_kva x;  c is normalised, k_r turned by positions and shared by all heads
    keys       [k_c | v] = W_kvb n(c) of each head;  scores are q_plain k_c + q_turned k_r

Plain columns have GL per head, the shared turned key one GL(1, C)^{r/2} for all heads together, values GL per head. The
root-mean-square norm of a latent sees its length only: O(rank) between the projections, and GL(1) for every gain.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from spiritlevel.core.blocks import Block, Gain, Pair, Rotation
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters.base import ADAPTERS, Answer, Refusal, join, label
from spiritlevel.symmetry.adapters.doubts import doubt
from spiritlevel.symmetry.adapters.layers import affine, described, outputs_of
from spiritlevel.symmetry.adapters.names import child, heads_of, output_of, setting
from spiritlevel.symmetry.adapters.norms import is_rms, offset_of
from spiritlevel.symmetry.adapters.rotary import parts_of
from spiritlevel.symmetry.adapters.slots import Part, factor, into_heads, out_of_heads

__all__ = ["latent"]

_SIZES = ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "v_head_dim")
_LATENT, _EXPAND = "kv_a_proj_with_mqa", "kv_b_proj"
_KNOWN = {_LATENT, _EXPAND, "kv_a_layernorm", "q_a_proj", "q_a_layernorm"}


@dataclass(frozen=True)
class _Sizes:
    heads: int
    plain: int
    turned: int
    rank: int
    values: int


@ADAPTERS.register("latent attention")
def latent(name: str, module: nn.Module, parent: nn.Module | None) -> Answer:
    """Multi-head latent attention, with queries from a latent of their own or straight from the input."""
    found, query = output_of(name, module, parent), child(module, ("q_b_proj", "q_proj"))
    if found is None or query is None or child(module, (_LATENT,)) is None or child(module, (_EXPAND,)) is None:
        return None
    out, outer = found
    layers = {n: getattr(module, n) for n in (query, _LATENT, _EXPAND)} | {"output": outer}
    wrong = next((r for r, x in layers.items() if not affine(x)), None)
    if wrong is not None:
        return Refusal(f"latent attention whose {wrong} is {described(layers[wrong])}, not a plain Linear")
    heads, (plain, turned, rank, values) = heads_of(module) or 0, (setting(module, n) for n in _SIZES)
    if not all(isinstance(n, int) for n in (plain, turned, rank, values)):
        return Refusal(f"latent attention that does not say its sizes ({', '.join(_SIZES)})")
    expected = {query: heads * (plain + turned), _LATENT: rank + turned, _EXPAND: heads * (plain + values)}
    if any(outputs_of(layers[n])[0] != size for n, size in expected.items()):
        return Refusal("latent attention whose projections do not have the sizes it says")
    refusal = doubt(module, {*_KNOWN, query, out.removeprefix(f"{name}.")})
    parts = parts_of(module, turned, turned) if refusal is None else refusal
    if isinstance(parts, Refusal):
        return parts
    sizes = _Sizes(heads, plain, turned, rank, values)
    return [*_heads(name, module, query, out, outer, sizes, parts), *_latents(name, module, query, sizes)]


def _heads(
    name: str, module: nn.Module, query: str, out: str, outer: nn.Module, sizes: _Sizes, parts: list[Part]
) -> list[Block]:
    """The pairs of every head, and of the turned key that all heads share."""
    heads, plain, whole = sizes.heads, sizes.plain, slice(None)
    expand, latents, q_layer = (getattr(module, n) for n in (_EXPAND, _LATENT, query))
    q, kv, shared = (join(name, n) for n in (query, _EXPAND, _LATENT))
    both, of_query = (heads, plain + sizes.values), (heads, plain + sizes.turned)
    q_plain = into_heads(q, q_layer, of_query, (whole,), heads)
    q_turned = into_heads(q, q_layer, of_query, (whole,), 1, heads, start=plain)  # one group for all heads
    k_plain = into_heads(kv, expand, both, (whole,), heads)
    k_turned = into_heads(shared, latents, (1, sizes.rank + sizes.turned), (whole,), 1, start=sizes.rank)
    v, o = into_heads(kv, expand, both, (whole,), heads, start=plain), out_of_heads(out, outer, heads)
    first, last = Part(0, plain), Part(0, sizes.values)
    turned = label(name, "queries, shared key (turned columns)")
    return [
        Pair(label(name, "queries, keys (plain columns)"), factor(q_plain, first), factor(k_plain, first)),
        *(Pair(turned, factor(q_turned, part), factor(k_turned, part)) for part in parts),
        Pair(label(name, "values, output"), factor(v, last), factor(o, last)),
    ]


def _latents(name: str, module: nn.Module, query: str, sizes: _Sizes) -> list[Block]:
    """Rotations and gains of each latent between its two projections."""
    found: list[Block] = []
    for title, down, norm, up in (
        ("keys, values", _LATENT, "kv_a_layernorm", _EXPAND),
        ("queries", "q_a_proj", "q_a_layernorm", query),
    ):
        before, between, after = (getattr(module, n, None) for n in (down, norm, up))
        if before is None or between is None or after is None or not affine(before) or not affine(after):
            continue
        total, rank = outputs_of(before)[0], outputs_of(after)[1]
        gains = dict(between.named_parameters())
        if set(gains) != {"weight"} or gains["weight"].numel() != rank or not is_rms(between):
            continue
        first = factor(into_heads(join(name, down), before, (1, total), (slice(None),), 1), Part(0, rank))
        gain, reader = join(name, f"{norm}.weight"), join(name, f"{up}.weight")
        shape, offset = (outputs_of(after)[0], rank), offset_of(between) or 0.0
        second = Factor((Piece(reader, shape, (), (0,), 1),))
        row = Factor((Piece(gain, (1, rank), (), (0,), 1, offset=offset),))
        channels = Factor((Piece(gain, (rank,), (0,), (), None, offset=offset),))
        readers = Factor((Piece(reader, shape, (1,), (0,), None),))
        found += [
            Rotation(label(name, f"latent of {title}"), (first, second), (None, row)),
            Gain(label(name, f"gains of the latent of {title}"), channels, readers, kind="attention"),
        ]
    return found
