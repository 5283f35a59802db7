"""Positive rescaling of neurons through ReLU and what else is positively homogeneous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from spiritlevel.core.blocks import Block, Pair
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import Layer, layer_of
from spiritlevel.symmetry.trace import Call, Trace

__all__ = ["relu"]

_BENT = (nn.ReLU, nn.LeakyReLU)
_PASSED = (
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.Dropout,
    nn.Dropout2d,
    nn.Flatten,
    nn.Identity,
    nn.MaxPool1d,
    nn.MaxPool2d,
)


@FLOWS.register("relu")
def relu(trace: Trace) -> Sequence[Block]:
    """Row and bias of a neuron times ``c > 0``, the columns that read it over ``c``."""
    blocks: list[Block] = []
    for call in trace.calls:
        if not isinstance(call.module, _BENT) or not call.inputs:
            continue
        writer = trace.writer(call.inputs[0])
        before = None if writer is None else layer_of(writer.name, writer.module)
        for after in _after(trace, call) if before else ():
            if before and after.width_in % before.width_out == 0:
                name, right = f"{before.name}, {after.name}: neurons", after.reading(before.width_out)
                blocks.append(Pair(name, before.writing(), right, "relu", positive=True))
    return blocks + _functional(trace)


def _after(trace: Trace, call: Call) -> Iterator[Layer]:
    """The layers that read what a module writes, through modules that pass scales on."""
    for reader in trace.readers(call.output):
        layer = layer_of(reader.name, reader.module)
        if layer is not None:
            yield layer
        elif isinstance(reader.module, _PASSED) and reader.output != call.output:  # dropout gives back what it gets
            yield from _after(trace, reader)


def _functional(trace: Trace) -> list[Block]:
    """Torch's own transformer layers, which call ReLU as a function between ``linear1`` and ``linear2``."""
    blocks: list[Block] = []
    for name, module in trace.model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            before = layer_of(f"{name}.linear1".lstrip("."), module.linear1)
            after = layer_of(f"{name}.linear2".lstrip("."), module.linear2)
            if before and after and _is_relu(module):
                found = f"{before.name}, {after.name}: neurons"
                blocks.append(Pair(found, before.writing(), after.reading(), "relu", positive=True))
    return blocks


def _is_relu(module: nn.Module) -> bool:
    activation = getattr(module, "activation", None)
    return isinstance(activation, nn.ReLU) or getattr(activation, "__name__", "") == "relu"
