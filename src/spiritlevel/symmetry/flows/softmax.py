"""Shifts that a softmax does not see: routers, tables of relative positions, classifiers under cross-entropy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from spiritlevel.core.blocks import Block, Translation
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters import join
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import Layer, layer_of
from spiritlevel.symmetry.trace import Trace

__all__ = ["classifier", "softmax"]

_ROUTERS = ("router", "gate", "classifier")
_TABLES = ("relative_position_bias_table", "relative_attention_bias.weight")


def _shifts(layer: Layer, kind: str) -> Iterator[Block]:
    """A common shift of all rows of a weight, and of all entries of its bias."""
    yield Translation(f"{layer.name}: shift of all outputs", layer.columns_in(), (), kind)
    if layer.bias is not None:
        yield Translation(f"{layer.name}: shift of the bias", layer.bias_rows(), (), kind)


@FLOWS.register("softmax")
def softmax(trace: Trace) -> Sequence[Block]:
    """Routers of experts (those that end in a softmax) and tables of relative position biases."""
    blocks: list[Block] = []
    for name, module in trace.model.named_modules():
        own, parent = dict(module.named_parameters(recurse=False)), name.rpartition(".")[0]
        experts = any("experts" in n for n, _ in trace.model.get_submodule(parent).named_children())
        if name.rpartition(".")[2] in _ROUTERS and experts and "weight" in own and own["weight"].dim() == 2:
            bias = join(name, "bias") if "bias" in own else None
            blocks += _shifts(Layer(name, (join(name, "weight"), tuple(own["weight"].shape)), 1, 0, bias), "softmax")
    for name, p in trace.model.named_parameters():
        if name.endswith(_TABLES) and p.dim() == 2:
            table = Factor((Piece(name, tuple(p.shape), (), (0,), 1),))
            blocks.append(Translation(f"{name}: shift of each head", table, (), "softmax"))
    return blocks


@FLOWS.register("classifier")
def classifier(trace: Trace) -> Sequence[Block]:
    """The layer that writes the model's scores: exact under cross-entropy, not for the scores themselves."""
    for call in trace.of(nn.Linear):
        layer = layer_of(call.name, call.module)
        if layer is not None and call.output in trace.outputs and layer.width_out > 1:
            return list(_shifts(layer, "classifier"))
    return []
