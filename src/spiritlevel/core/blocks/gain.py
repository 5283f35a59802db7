"""Scalar gains, and the weights that read what they scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.blocks.base import Block, Tensors, fresh, group_power, joined, random_scales
from spiritlevel.core.views import Factor, Piece
from spiritlevel.errors import ModelError

__all__ = ["Gain"]


@dataclass(frozen=True)
class Gain(Block):
    """A gain per channel, used only through its product with the weights that read (or write) the channel.

    A scale ``a`` per channel acts as ``(gain / a, readers a)``. The section is gain 1: the readers take the gain
    over, and it no longer moves. So the quotient is measured on the folded weights, whatever other group acts on them
    too, and no direction is counted twice.

    Args:
        name: unique within a model.
        gain: (channels, rows, 1): the gain in the first piece; a shift that is scaled with it in a further row.
        readers: (channels, rows, 1): what multiplies the channel.
        kind: what sort of layer it is found in.
    """

    name: str
    gain: Factor
    readers: Factor
    kind: str = "norm"
    order = 2

    def __post_init__(self) -> None:
        """Check that there is one number per channel."""
        shapes = [(f.heads, f.columns, f.is_complex) for f in (self.gain, self.readers)]
        if shapes[0] != shapes[1] or shapes[0][1:] != (1, False) or self.gain.pieces[0].size[1] != 1:
            raise ModelError(
                f"expected one gain per channel and as many channels in the readers of {self.name}, got factors of "
                f"(heads, columns, complex) {shapes[0]} and {shapes[1]}"
            )

    @property
    def group(self) -> str:
        return group_power("GL(1)", self.gain.heads)

    @property
    def dimension(self) -> int:
        return self.gain.heads

    @property
    def parameters(self) -> tuple[str, ...]:
        return joined(self.gain, self.readers)

    @property
    def algebra(self) -> tuple[int, ...]:
        return (self.gain.heads, 1, 1)

    @property
    def frozen(self) -> tuple[Piece, ...]:
        return (self.gain.pieces[0],)

    def generate(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        tangent = fresh(weights, self.parameters, empty=True)
        self.gain.write_tangent(tangent, -self.gain.read(weights) * element)
        self.readers.write_tangent(tangent, self.readers.read(weights) * element)
        return tangent

    def draw(self, generator: torch.Generator, strength: float, condition: float | None = None) -> Tensor:
        return random_scales(self.algebra, generator, strength, condition)

    def act(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        gains, readers = self.gain.read(weights), self.readers.read(weights)
        a = element.to(gains.device, torch.float64)
        divisor = torch.where(a == 0, torch.ones_like(a), a)  # a gain of 0 stays 0; nothing of its channel arrives
        new = fresh(weights, self.parameters)
        self.gain.write(new, (gains.double() / divisor).to(gains.dtype))
        self.readers.write(new, (readers.double() * a).to(readers.dtype))
        return new

    def section(self, weights: Tensors) -> Tensor:
        """The gain itself."""
        return self.gain.read(weights)[:, :1].double()

    def inverse(self, element: Tensor) -> Tensor:
        return torch.where(element == 0, torch.ones_like(element), 1 / element)
