"""LayerScale: a gain per channel behind the layer that writes the channel."""

from __future__ import annotations

from collections.abc import Sequence

from spiritlevel.core.blocks import Block, Gain
from spiritlevel.symmetry.flows.norms import norms_of
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import layer_of
from spiritlevel.symmetry.trace import Trace

__all__ = ["layer_scale"]


@FLOWS.register("layer scale")
def layer_scale(trace: Trace) -> Sequence[Block]:
    """``lambda / a`` and the rows and bias of the layer before it times ``a``."""
    blocks: list[Block] = []
    for scale in norms_of(trace):
        writers = [trace.writer(k) for c in scale.calls for k in c.inputs[:1]]
        layers = {w.name: layer_of(w.name, w.module) for w in writers if w is not None}
        layer = next(iter(layers.values()), None)
        if scale.linear and scale.bias is None and len(layers) == 1 and layer and layer.width_out == scale.width:
            blocks.append(Gain(f"{scale.name}: layer scale", scale.gain(), layer.writing(), "layer scale"))
    return blocks
