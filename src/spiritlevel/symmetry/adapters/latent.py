"""Latent attention: keys and values are expanded from one small latent vector (DeepSeek's MLA).

    queries    q = W_qb n(W_qa x), or W_q x;  of each head [plain | turned] columns
    latent     [c | k_r] = W_kva x;  c is normalised, k_r turned by positions and shared by all heads
    keys       [k_c | v] = W_kvb n(c) of each head;  scores are q_plain k_c + q_turned k_r

Plain columns have GL per head, the shared turned key one GL(1, C)^{r/2} for all heads together, values GL per head.
"""

from __future__ import annotations

from torch import nn

from spiritlevel.core.blocks import Pair
from spiritlevel.symmetry.adapters.base import ADAPTERS, Answer, Refusal, join, label
from spiritlevel.symmetry.adapters.doubts import doubt
from spiritlevel.symmetry.adapters.layers import affine, outputs_of
from spiritlevel.symmetry.adapters.names import child, heads_of, output_of, setting
from spiritlevel.symmetry.adapters.rotary import parts_of
from spiritlevel.symmetry.adapters.slots import Part, factor, into_heads, out_of_heads

__all__ = ["latent"]

_SIZES = ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "v_head_dim")
_LATENT, _EXPAND = "kv_a_proj_with_mqa", "kv_b_proj"
_KNOWN = {_LATENT, _EXPAND, "kv_a_layernorm", "q_a_proj", "q_a_layernorm"}


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
        return Refusal(f"latent attention whose {wrong} is {type(layers[wrong]).__name__}, not a plain Linear")
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
    whole, layer = slice(None), layers[_EXPAND]
    sizes, both = (heads, plain + turned), (heads, plain + values)
    q, kv, shared = (join(name, n) for n in (query, _EXPAND, _LATENT))
    q_plain = into_heads(q, layers[query], sizes, (whole,), heads)
    q_turned = into_heads(q, layers[query], sizes, (whole,), 1, heads, start=plain)  # one group for all heads
    k_plain = into_heads(kv, layer, both, (whole,), heads)
    k_turned = into_heads(shared, layers[_LATENT], (1, rank + turned), (whole,), 1, start=rank)
    v = into_heads(kv, layer, both, (whole,), heads, start=plain)
    o = out_of_heads(out, outer, heads)
    return [
        Pair(label(name, "queries, keys (plain columns)"), *(factor(s, Part(0, plain)) for s in (q_plain, k_plain))),
        *(
            Pair(label(name, "queries, shared key (turned columns)"), factor(q_turned, part), factor(k_turned, part))
            for part in parts
        ),
        Pair(label(name, "values, output"), *(factor(s, Part(0, values)) for s in (v, o))),
    ]
