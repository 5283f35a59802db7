"""Shifts that nothing sees, or that biases make up for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.blocks.base import Block, Lengths, Tensors, fresh, joined
from spiritlevel.core.tensors import norm
from spiritlevel.core.views import Factor, Piece

__all__ = ["Reader", "Translation"]


@dataclass(frozen=True)
class Reader:
    """A linear map that reads a shifted vector, with the bias that can take the shift over.

    Attributes:
        weight: (heads x repeat, outputs, columns).
        bias: (1, outputs, 1).
        repeat: how many heads of the weight read each head of the shift (grouped queries).
    """

    weight: Factor
    bias: Factor
    repeat: int = 1


@dataclass(frozen=True)
class Translation(Block):
    """A vector ``c`` per head is added to every row of ``shift``, and ``W c`` is taken from the bias of each reader.

    Key biases and softmax shifts have no reader. The section has rows of mean 0: a single row is 0 and no longer moves,
    which takes near-zero biases out of every relative metric; of several rows the mean is projected out.

    Args:
        name: unique within a model.
        shift: (heads, rows, columns).
        readers: what reads it.
        kind: what sort of layer it is found in.
        first: whether its readers' biases are shifted by further translations.
    """

    name: str
    shift: Factor
    readers: tuple[Reader, ...] = ()
    kind: str = "translation"
    first: bool = False

    @property
    def order(self) -> int:  # type: ignore[override]  # norm shifts move value biases, which move output biases
        """Before or after other translations."""
        return 0 if self.first else 1

    @property
    def group(self) -> str:
        return f"R^{self.dimension}"

    @property
    def dimension(self) -> int:
        return self.shift.heads * self.shift.columns

    @property
    def parameters(self) -> tuple[str, ...]:
        """What it changes: the shift and the biases (the weights of readers are only read)."""
        return joined(self.shift, *(r.bias for r in self.readers))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the weights it reads."""
        return joined(*(r.weight for r in self.readers))

    @property
    def algebra(self) -> tuple[int, ...]:
        return (self.shift.heads, 1, self.shift.columns)

    @property
    def frozen(self) -> tuple[Piece, ...]:
        return self.shift.pieces if self.shift.rows == 1 else ()

    @property
    def claims(self) -> tuple[Piece, ...]:
        return self.shift.pieces

    @property
    def free(self) -> bool:
        return self.shift.rows > 1

    def generate(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        """``c`` in every row of the shift, ``-W c`` in every bias."""
        tangent = fresh(weights, self.parameters, empty=True)
        self.shift.write_tangent(tangent, element.expand(-1, self.shift.rows, -1))
        for bias, change in self._compensation(weights, element):
            bias.write_tangent(tangent, bias.read_tangent(tangent) + change)
        return tangent

    def _compensation(self, weights: Tensors, element: Tensor) -> list[tuple[Factor, Tensor]]:
        changes = []
        for r in self.readers:
            weight = r.weight.read(weights).to(element.dtype)
            c = element.repeat_interleave(r.repeat, 0)
            changes.append((r.bias, -(weight @ c.mT).sum(0, keepdim=True)))
        return changes

    def draw(self, generator: torch.Generator, strength: float, condition: float | None = None) -> Tensor:
        """Gaussian; a condition number, which translations do not have, is passed over."""
        del condition
        return 0.3 * max(strength, 0.0) * torch.randn(self.algebra, generator=generator, dtype=torch.float64)

    def act(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        shift, new = self.shift.read(weights), fresh(weights, self.parameters)
        c = element.to(shift.device)
        self.shift.write(new, (shift.double() + c).to(shift.dtype))
        for bias, change in self._compensation(weights, c):
            value = bias.read(new)
            bias.write(new, (value.double() + change).to(value.dtype))
        return new

    def section(self, weights: Tensors) -> Tensor:
        return -self.shift.read(weights).double().mean(1, keepdim=True)

    def inverse(self, element: Tensor) -> Tensor:
        return -element

    def violation(self, weights: Tensors, gradients: Tensors, lengths: Lengths) -> float:
        """The moment map relative to the gradient of everything measured: that of an exact shift alone would be 0."""
        scale = max((lengths[n][1] / g.numel() ** 0.5 for n, g in gradients.items()), default=0.0)
        size = norm(self.moment(weights, gradients)) / self.dimension**0.5
        return size / scale if scale else (0.0 if size == 0 else float("inf"))
