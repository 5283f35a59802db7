"""Batch normalisation in evaluation mode, behind the layer that feeds it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from spiritlevel.core.blocks import BatchNorm, Block
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters import join
from spiritlevel.symmetry.flows.registry import FLOWS
from spiritlevel.symmetry.layers import layer_of
from spiritlevel.symmetry.trace import Trace

__all__ = ["batch_norm"]


@FLOWS.register("batch norm")
def batch_norm(trace: Trace) -> Sequence[Block]:
    """One block for each normalisation with running statistics whose input is written by one layer."""
    blocks: list[Block] = []
    for call in trace.of(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        norm, writer = call.module, trace.writer(call.inputs[0])
        layer = None if writer is None else layer_of(writer.name, writer.module)
        mean, variance = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
        if layer is None or mean is None or variance is None or getattr(norm, "weight", None) is None:
            continue
        width, full = len(mean), layer.writing()
        channel = Factor(full.pieces[:1])
        bias = Factor(full.pieces[1:]) if layer.bias is not None else None
        gain, shift = (Factor((Piece(join(call.name, n), (width,), (0,), (), None),)) for n in ("weight", "bias"))
        statistics = mean.detach().double(), (variance.detach().double() + norm.eps).sqrt()
        centre, spread = (s.view(-1, 1, 1).clone() for s in statistics)
        blocks.append(BatchNorm(f"{call.name}: batch norm", channel, bias, gain, shift, centre, spread))
    return blocks
