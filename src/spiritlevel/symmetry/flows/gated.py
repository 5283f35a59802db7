"""Gated layers ``down(act(gate(x)) * up(x))``: a scale of any sign between up and down, per channel and expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from spiritlevel.core.blocks import Block, Pair
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters import join
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import Layer, layer_of
from spiritlevel.symmetry.trace import Trace

__all__ = ["gated"]

_SEPARATE = (("gate_proj", "up_proj", "down_proj"), ("wi_0", "wi_1", "wo"), ("w1", "w3", "w2"), ("gate", "up", "down"))
_FUSED = (("gate_up_proj", "down_proj"), ("Wi", "Wo"), ("weights_in", "weights_out"), ("w12", "w3"), ("wi", "wo"))


@FLOWS.register("gated")
def gated(trace: Trace) -> Sequence[Block]:
    """By the children of a module: gate, up and down; gate and up in one layer; experts in one tensor."""
    blocks: list[Block] = []
    for name, module in trace.model.named_modules():
        blocks += [*_separate(name, module), *_fused(name, module), *_experts(name, module)]
    return blocks


def _separate(name: str, module: nn.Module) -> Iterator[Block]:
    for gate, up, down in _SEPARATE:
        parts = [getattr(module, n, None) for n in (gate, up, down)]
        if all(isinstance(p, nn.Linear) for p in parts):
            above, below = layer_of(join(name, up), parts[1]), layer_of(join(name, down), parts[2])  # type: ignore[arg-type]
            if above and below and above.width_out == below.width_in:
                yield Pair(f"{name}: gated channels", above.writing(), below.reading(), "gated")


def _fused(name: str, module: nn.Module) -> Iterator[Block]:
    """The second half of the outputs is the linear one in all layouts known."""
    for both, down in _FUSED:
        parts = [getattr(module, n, None) for n in (both, down)]
        if all(isinstance(p, nn.Linear) for p in parts):
            above, below = (layer_of(join(name, n), p) for n, p in zip((both, down), parts, strict=True))  # type: ignore[arg-type]
            if above and below and above.width_out == 2 * below.width_in:
                yield Pair(f"{name}: gated channels", _half(above), below.reading(), "gated")


def _half(layer: Layer) -> Factor:
    """Rows and bias of the second half of the outputs."""
    weight, shape = layer.weight
    half = shape[0] // 2
    pieces = [Piece(weight, (2, half, shape[1]), batch=(0,), rows=(1,), column=None, index=(1,))]
    if layer.bias is not None:
        pieces.append(Piece(layer.bias, (2, half), batch=(0,), rows=(), column=None, index=(1,)))
    return Factor(tuple(pieces))


def _experts(name: str, module: nn.Module) -> Iterator[Block]:
    """``gate_up_proj`` (experts, 2 x inner, outer) with ``down_proj`` (experts, outer, inner)."""
    own = dict(module.named_parameters(recurse=False))
    both, down = own.get("gate_up_proj"), own.get("down_proj")
    if both is None or down is None or both.dim() != 3 or down.dim() != 3 or both.shape[1] != 2 * down.shape[2]:
        return
    experts, outer, inner = down.shape
    up = Piece(join(name, "gate_up_proj"), (experts, 2, inner, outer), (0, 1), (2,), None, index=(slice(None), 1))
    read = Piece(join(name, "down_proj"), (experts, outer, inner), (0, 2), (1,), None)
    yield Pair(f"{name}: gated channels of experts", Factor((up,)), Factor((read,)), "gated")
