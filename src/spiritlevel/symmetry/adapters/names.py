"""What attention modules call their parts, over models and versions of libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from spiritlevel.symmetry.adapters.base import join

__all__ = ["FUSED", "KEY", "OUTPUT", "QUERY", "VALUE", "child", "heads_of", "output_of", "setting"]

QUERY = ("q_proj", "query", "query_proj", "q_lin", "to_q", "q")
KEY = ("k_proj", "key", "key_proj", "k_lin", "to_k", "k")
VALUE = ("v_proj", "value", "value_proj", "v_lin", "to_v", "v")
FUSED = ("query_key_value", "qkv_proj", "Wqkv", "c_attn", "qkv", "to_qkv")
OUTPUT = ("o_proj", "out_proj", "out_lin", "to_out", "o", "dense", "Wo", "c_proj", "proj", "projection")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads")


def child(module: nn.Module, names: Sequence[str]) -> str | None:
    """The first of several names that a child has."""
    children = dict(module.named_children())
    return next((n for n in names if n in children), None)


def setting(module: nn.Module, *names: str) -> Any:
    """The first of several settings that the module, or its config, has (None: none of them)."""
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if value is not None:
                return value
    return None


def heads_of(module: nn.Module) -> int | None:
    """The number of heads an attention module says it has, itself or in its config."""
    for holder in (module, getattr(module, "config", None)):
        for name in _HEADS:
            count = getattr(holder, name, None)
            if isinstance(count, int) and count > 0:
                return count
    return None


def output_of(name: str, module: nn.Module, parent: nn.Module | None) -> tuple[str, nn.Module] | None:
    """The output projection: a child, or (BERT's layout) the ``dense`` of the sibling called ``output``."""
    own = child(module, OUTPUT)
    if own is not None:
        return join(name, own), getattr(module, own)
    dense = getattr(getattr(parent, "output", None), "dense", None)
    if isinstance(dense, nn.Module):
        return join(name.rpartition(".")[0], "output.dense"), dense
    return None
