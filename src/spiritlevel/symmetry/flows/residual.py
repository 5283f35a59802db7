"""Rotations of the residual stream, where RMS norms are all that looks at it and embeddings are not tied."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from spiritlevel.core.blocks import Block, Rotation
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters import join
from spiritlevel.symmetry.flows.norms import norms_of, reading_layers
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import Layer, layer_of
from spiritlevel.symmetry.trace import Trace

__all__ = ["residual"]


@FLOWS.register("residual")
def residual(trace: Trace) -> Sequence[Block]:
    """O(d) on the embedding, on every layer that writes into the stream, and on every layer that reads a norm of it.

    Readers are rotated behind the gain of their norm. The embedding fixes the axes.
    """
    tables = [c for c in trace.of(nn.Embedding) if c.module.weight.shape[0] > 2]  # type: ignore[index]
    if not tables:
        return []
    width = tables[0].channels
    norms = [n for n in norms_of(trace) if not n.linear and n.width == width and reading_layers(trace, n)]
    if not norms or any(n.centred or n.bias is not None for n in norms):
        return []
    readers = {layer.weight[0]: (layer, norm) for norm in norms for layer in reading_layers(trace, norm)}
    factors, gains = _tables(trace, width), [None] * len(_tables(trace, width))
    for layer in _writers(trace, width, set(readers)):
        factors.append(layer.columns_out())
        gains.append(None)
    for layer, norm in readers.values():
        factors.append(layer.columns_in())
        gains.append(norm.gain_row())  # type: ignore[arg-type]
    return [Rotation("residual stream", tuple(factors), tuple(gains), "residual")]


def _tables(trace: Trace, width: int) -> list[Factor]:
    calls = {c.name: c.module for c in trace.of(nn.Embedding) if c.channels == width}
    return [
        Factor((Piece(join(n, "weight"), tuple(m.weight.shape), (), (0,), 1),))  # type: ignore[arg-type]
        for n, m in calls.items()
    ]


def _writers(trace: Trace, width: int, readers: set[str]) -> list[Layer]:
    """Layers with as many outputs as the stream is wide that do not read it."""
    layers: dict[str, Layer] = {}
    for call in trace.calls:
        layer = layer_of(call.name, call.module)
        if layer is not None and layer.width_out == width and layer.weight[0] not in readers:
            layers[layer.weight[0]] = layer
        down = getattr(call.module, "down_proj", None)
        if isinstance(down, nn.Parameter) and down.dim() == 3:
            axis = 1 if down.shape[1] == width else 2
            name = join(call.name, "down_proj")
            layers[name] = Layer(call.name, (name, tuple(down.shape)), 3 - axis, axis, None)
    return list(layers.values())
