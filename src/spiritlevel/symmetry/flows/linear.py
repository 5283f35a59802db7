"""Two linear layers in a row: nothing but their product is used."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from spiritlevel.core.blocks import Block, Pair
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import layer_of
from spiritlevel.symmetry.trace import Trace

__all__ = ["linear"]


@FLOWS.register("linear")
def linear(trace: Trace) -> Sequence[Block]:
    """``G = [W_1^T; b_1]`` and ``H = W_2``, with GL(h) between them."""
    blocks: list[Block] = []
    for call in trace.of(nn.Linear):
        first = layer_of(call.name, call.module)
        for reader in trace.readers(call.output):
            second = layer_of(reader.name, reader.module) if isinstance(reader.module, nn.Linear) else None
            if first and second and second.name != first.name and second.width_in == first.width_out:
                name = f"{first.name}, {second.name}: linear"
                blocks.append(Pair(name, first.columns_out(), second.columns_in(), "linear"))
    return blocks
