"""Gains and shifts of normalisation layers, with the layers that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spiritlevel.core.blocks import Block, Gain, Reader, Translation
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters import join
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import Layer, layer_of
from spiritlevel.symmetry.trace import Call, Trace

__all__ = ["Norm", "norms_of", "reading_layers"]


@dataclass(frozen=True)
class Norm:
    """A module that multiplies by a gain per channel and perhaps adds a shift.

    Attributes:
        name: of the module.
        module: itself.
        weight: name of the gain.
        bias: name of the shift, or None.
        width: channels.
        offset: 1 where the gain is stored as its difference from 1.
        linear: a mere scale (twice the input, twice the output), not a normalisation.
        centred: blind to a common shift of its inputs (a mean is taken off).
        calls: all calls of it.
    """

    name: str
    module: nn.Module
    weight: str
    bias: str | None
    width: int
    offset: float
    linear: bool
    centred: bool
    calls: tuple[Call, ...]

    def gain(self) -> Factor:
        """Gain and shift of each channel, (channels, 1 or 2, 1)."""
        pieces = [Piece(self.weight, (self.width,), (0,), (), None, offset=self.offset)]
        if self.bias is not None:
            pieces.append(Piece(self.bias, (self.width,), (0,), (), None))
        return Factor(tuple(pieces))

    def gain_row(self) -> Factor:
        """The gain as one row, (1, 1, channels)."""
        return Factor((Piece(self.weight, (self.width,), (), (), 0, offset=self.offset),))


def norms_of(trace: Trace) -> list[Norm]:
    """Every module with one gain per channel of its last axis."""
    found: dict[str, Norm] = {}
    for call in trace.calls:
        shapes = {n: tuple(p.shape) for n, p in call.module.named_parameters()}
        gains = [n for n, s in shapes.items() if len(s) == 1 and n != "bias"]
        if call.name in found or len(gains) != 1 or set(shapes) - {gains[0], "bias"} or layer_of("", call.module):
            continue
        (width,) = shapes[gains[0]]
        if width != call.channels or width != call.example.shape[-1] or isinstance(call.module, nn.Embedding):
            continue
        probe = _probe(call, gains[0])
        if probe is not None:
            weight, bias = join(call.name, gains[0]), join(call.name, "bias") if "bias" in shapes else None
            calls = tuple(c for c in trace.calls if c.name == call.name)
            found[call.name] = Norm(call.name, call.module, weight, bias, width, *probe, calls)
    return list(found.values())


def _probe(call: Call, gain: str) -> tuple[float, bool, bool] | None:
    """Offset of the stored gain, whether it is a mere scale, whether it is blind to a shift; None: something else."""
    x = call.example.detach()
    values = {n: p.detach().to(x.dtype) for n, p in call.module.named_parameters()}

    def run(x: Tensor, gain_value: Tensor) -> Tensor:
        zero = {n: torch.zeros_like(v) for n, v in values.items()}
        with torch.no_grad():
            out: Tensor = functional_call(call.module, {**zero, gain: gain_value}, (x,))
        return out

    one = torch.ones_like(values[gain])
    try:
        at_zero, at_one, at_three = (run(x, one * c) for c in (0.0, 1.0, 3.0))
        twice, shifted = run(2 * x, one), run(x + x.abs().amax() + 1, one)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    step, tolerance = at_one - at_zero, 1e-3 * float(at_one.abs().amax())
    if at_one.shape != x.shape or float((at_three - at_zero - 3 * step).abs().amax()) > tolerance:
        return None  # not affine in the gain
    offset = 1.0 if float(at_zero.abs().amax()) > tolerance else 0.0
    linear = bool((twice - 2 * at_one).abs().amax() <= tolerance)
    return offset, linear, bool((shifted - at_one).abs().amax() <= 10 * tolerance)


def reading_layers(trace: Trace, norm: Norm) -> list[Layer]:
    """The linear layers that are given what a norm writes, each once."""
    layers: dict[str, Layer] = {}
    for call in norm.calls:
        for reader in trace.calls:
            if call.output not in reader.inputs:
                continue
            for layer in _layers(reader):
                if layer.width_in == norm.width:
                    layers[layer.weight[0]] = layer
    return list(layers.values())


def _layers(call: Call) -> Iterator[Layer]:
    """The layer that a module is, or the experts or the router it holds as plain parameters."""
    layer = layer_of(call.name, call.module)
    if layer is not None:
        yield layer
        return
    own = dict(call.module.named_parameters(recurse=False))
    width = call.example.shape[-1]
    for name, p in own.items():
        full, bias = join(call.name, name), join(call.name, "bias") if "bias" in own else None
        if p.dim() == 3 and ("gate_up" in name or "gate_proj" in name or "up_proj" in name):
            axis = 2 if p.shape[2] == width else 1
            yield Layer(call.name, (full, tuple(p.shape)), axis, 3 - axis, None)
        elif p.dim() == 2 and name == "weight" and p.shape[1] == width:
            yield Layer(call.name, (full, tuple(p.shape)), 1, 0, bias)


@FLOWS.register("norm")
def norms(trace: Trace) -> Sequence[Block]:
    """``gain / a`` and the readers' columns times ``a``; a shift moves into the readers' biases where all have one."""
    blocks: list[Block] = []
    for norm in norms_of(trace):
        layers = [] if norm.linear else reading_layers(trace, norm)
        if not layers:
            continue
        if norm.bias is not None and all(x.bias is not None for x in layers):
            readers = tuple(Reader(x.columns_in(), x.bias_rows()) for x in layers)
            shift = Factor((Piece(norm.bias, (norm.width,), (), (), 0),))
            blocks.append(Translation(f"{norm.name}: shift", shift, readers, "norm", first=True))
        pieces = tuple(p for x in layers for p in x.reading().pieces)
        blocks.append(Gain(f"{norm.name}: gain", norm.gain(), Factor(pieces), "norm"))
    return blocks
