"""Batch normalisation in evaluation mode, with the layer that feeds it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiritlevel.core.blocks.base import Block, Tensors, fresh, group_power, joined, random_scales
from spiritlevel.core.views import Factor, Piece

__all__ = ["BatchNorm"]


@dataclass(frozen=True, eq=False)
class BatchNorm(Block):
    """``y = g (W x + b - mu) / sigma + beta`` with fixed statistics: a scale per channel, a shift where there is b.

    ``(a, c)`` acts as ``W a``, ``g / a``, ``b -> mu + (b - mu) a + c``, and ``beta`` so that ``y`` stays. The section
    is ``g = sigma`` and ``b = 0``: the folded layer, with a shift.

    Args:
        name: unique within a model.
        weight: W, (channels, rows, 1).
        bias: b, (channels, 1, 1), or None.
        gain: g, (channels, 1, 1).
        shift: beta, the same.
        mean: running mean, (channels, 1, 1).
        deviation: sigma, root of the running variance plus eps, the same.
        kind: what sort of layer it is.
    """

    name: str
    weight: Factor
    bias: Factor | None
    gain: Factor
    shift: Factor
    mean: Tensor = field(repr=False)
    deviation: Tensor = field(repr=False)
    kind: str = "batch norm"

    @property
    def group(self) -> str:
        scales = group_power("GL(1)", self.gain.heads)
        return scales if self.bias is None else f"{scales} x R^{self.gain.heads}"

    @property
    def dimension(self) -> int:
        return self.gain.heads * (1 if self.bias is None else 2)

    @property
    def parameters(self) -> tuple[str, ...]:
        return joined(self.weight, *(() if self.bias is None else (self.bias,)), self.gain, self.shift)

    @property
    def algebra(self) -> tuple[int, ...]:
        return (self.gain.heads, 1, 1 if self.bias is None else 2)

    @property
    def frozen(self) -> tuple[Piece, ...]:
        return self.gain.pieces + (() if self.bias is None else self.bias.pieces)

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean.to(like.device, like.dtype), self.deviation.to(like.device, like.dtype)

    def generate(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        tangent = fresh(weights, self.parameters, empty=True)
        w, g = self.weight.read(weights), self.gain.read(weights)
        mean, deviation = self._statistics(g)
        rate = element[..., :1]
        b = torch.zeros_like(mean) if self.bias is None else self.bias.read(weights)
        self.weight.write_tangent(tangent, w * rate)
        self.gain.write_tangent(tangent, -g * rate)
        if self.bias is None:  # beta makes up for what happens to -g mu / sigma
            self.shift.write_tangent(tangent, -g * mean / deviation * rate)
        else:
            change = element[..., 1:]
            self.bias.write_tangent(tangent, (b - mean) * rate + change)
            self.shift.write_tangent(tangent, -g / deviation * change)
        return tangent

    def draw(self, generator: torch.Generator, strength: float, condition: float | None = None) -> Tensor:
        scales = random_scales((self.gain.heads, 1, 1), generator, strength, condition)
        if self.bias is None:
            return scales
        shifts = strength * torch.randn(scales.shape, generator=generator, dtype=torch.float64)
        return torch.cat([scales, shifts], -1)

    def act(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        w, g, beta = (f.read(weights) for f in (self.weight, self.gain, self.shift))
        element = element.to(g.device)
        a, mean, deviation = element[..., :1], self.mean.to(g.device).double(), self.deviation.to(g.device).double()
        divisor = torch.where(a == 0, torch.ones_like(a), a)
        b = torch.zeros_like(mean) if self.bias is None else self.bias.read(weights).double()
        moved_b = b if self.bias is None else mean + (b - mean) * a + element[..., 1:]
        moved_g = g.double() / divisor
        moved_beta = beta.double() + (g.double() * (b - mean) - moved_g * (moved_b - mean)) / deviation
        new = fresh(weights, self.parameters)
        self.weight.write(new, (w.double() * a).to(w.dtype))
        self.gain.write(new, moved_g.to(g.dtype))
        self.shift.write(new, moved_beta.to(beta.dtype))
        if self.bias is not None:
            self.bias.write(new, moved_b.to(beta.dtype))
        return new

    def section(self, weights: Tensors) -> Tensor:
        g = self.gain.read(weights).double()
        mean, deviation = self._statistics(g)
        a = g / deviation
        if self.bias is None:
            return a
        return torch.cat([a, -(mean + (self.bias.read(weights).double() - mean) * a)], -1)

    def inverse(self, element: Tensor) -> Tensor:
        a = torch.where(element[..., :1] == 0, torch.ones_like(element[..., :1]), 1 / element[..., :1])
        return a if self.bias is None else torch.cat([a, -element[..., 1:] * a], -1)
