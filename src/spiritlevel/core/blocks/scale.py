"""Weights whose length does not matter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.blocks.base import Block, Tensors, fresh, group_power, joined, random_scales
from spiritlevel.core.views import Factor, Piece

__all__ = ["Scale"]


@dataclass(frozen=True)
class Scale(Block):
    """A factor that is normalised before it is used: ``c > 0`` acts as ``c F``, and nothing has to make up for it.

    The section has entries of root mean square 1.

    Args:
        name: unique within a model.
        factor: F, (heads, rows, columns), with one scale per head.
        kind: what sort of layer it is found in.
    """

    name: str
    factor: Factor
    kind: str = "attention"
    order = 3

    @property
    def group(self) -> str:
        return group_power("R+", self.factor.heads)

    @property
    def dimension(self) -> int:
        return self.factor.heads

    @property
    def parameters(self) -> tuple[str, ...]:
        return joined(self.factor)

    @property
    def algebra(self) -> tuple[int, ...]:
        return (self.factor.heads, 1, 1)

    @property
    def claims(self) -> tuple[Piece, ...]:
        return self.factor.pieces

    @property
    def free(self) -> bool:
        return True

    def generate(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        tangent = fresh(weights, self.parameters, empty=True)
        self.factor.write_tangent(tangent, self.factor.read(weights) * element)
        return tangent

    def draw(self, generator: torch.Generator, strength: float, condition: float | None = None) -> Tensor:
        return random_scales(self.algebra, generator, strength, condition)

    def act(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        factor, new = self.factor.read(weights), fresh(weights, self.parameters)
        self.factor.write(new, (factor.double() * element.to(factor.device)).to(factor.dtype))
        return new

    def section(self, weights: Tensors) -> Tensor:
        factor = self.factor.read(weights).double()
        size = torch.linalg.matrix_norm(factor, keepdim=True) / math.sqrt(factor.shape[1] * factor.shape[2])
        return torch.where(size > 0, 1 / size, torch.ones_like(size))

    def inverse(self, element: Tensor) -> Tensor:
        return 1 / element
