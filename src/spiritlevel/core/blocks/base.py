"""What every symmetry block can do.

A block is a Lie group that acts on some of the weights and leaves the function as it is. Besides its size it knows

- its infinitesimal action (`Block.generate`), from which follow the vertical space, and the moment map: a loss that
  does not change along the orbit has a gradient orthogonal to every generated direction;
- its finite action (`Block.act`) and random elements of the group (`Block.draw`), for moves along the orbit;
- where it has one, its section (`Block.fold`): the point of the orbit that all points of the orbit agree on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from spiritlevel.core.tensors import norm
from spiritlevel.core.views import Factor, Piece

__all__ = ["Block", "Lengths", "Tensors", "fresh", "group_power", "joined", "random_scales"]

Tensors = Mapping[str, Tensor]
Lengths = Mapping[str, tuple[float, float]]


class Block(ABC):
    """A group that acts on weights without changing the function.

    Attributes:
        name: unique within a model.
        kind: the word by which `spiritlevel.find_symmetries` turns it on and off.
        order: blocks with a section are folded in this order, so that what one fold writes the next can read.
    """

    name: str
    kind: str
    order: ClassVar[int] = 0

    @property
    @abstractmethod
    def group(self) -> str:
        """The group in words, such as ``GL(8)^4``."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Real dimension of the group: how many directions of the weights are redundant."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters it acts on."""

    @property
    @abstractmethod
    def algebra(self) -> tuple[int, ...]:
        """Shape of an element of the Lie algebra, heads first (real; it may have more entries than dimensions)."""

    @abstractmethod
    def generate(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        """The vertical tangent vector of an algebra element: the derivative of the action at the identity.

        Linear and differentiable in the element. Parameters come back whole, with 0 where nothing moves.
        """

    @abstractmethod
    def draw(self, generator: torch.Generator, strength: float, condition: float | None = None) -> Tensor:
        """A random group element, in float64 on the CPU.

        Args:
            generator: source of randomness, on the CPU.
            strength: 0 is the identity, 1 mixes thoroughly.
            condition: instead of ``strength``, the condition number of what mixes or scales.
        """

    @abstractmethod
    def act(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        """The parameters of the block after the action of a group element; new tensors."""

    def section(self, weights: Tensors) -> Tensor | None:
        """The group element that takes the weights to the canonical point of their orbit; None where there is none.

        Where there is one, `act` with it is the fold, and the quotient is measured at the folded weights.
        """
        del weights
        return None

    def inverse(self, element: Tensor) -> Tensor:
        """The inverse group element."""
        raise NotImplementedError

    @property
    def frozen(self) -> tuple[Piece, ...]:
        """Entries that do not move in the quotient: their canonical value is the same on every orbit."""
        return ()

    @property
    def claims(self) -> tuple[Piece, ...]:
        """Entries that no other block may claim as well: nothing is counted twice."""
        return self.frozen

    @property
    def free(self) -> bool:
        """Whether vertical directions remain after folding and freezing, for the quotient to project out."""
        return False

    def moment(self, weights: Tensors, gradients: Tensors) -> Tensor:
        """The moment map: the gradient along every generated direction; 0 where the symmetry holds."""
        with torch.enable_grad():
            element = torch.zeros(self.algebra, dtype=_dtype(weights, self), device=_device(weights, self))
            element.requires_grad_()
            tangent = self.generate(weights, element)
            along = torch.stack([(gradients[n] * t).sum() for n, t in tangent.items()]).sum()
            return torch.autograd.grad(along, element)[0]

    def violation(self, weights: Tensors, gradients: Tensors, lengths: Lengths) -> float:
        """The moment map relative to ``sum |w| |dL/dw|`` over the block: rounding where the symmetry holds.

        Args:
            weights: the parameters.
            gradients: of a function that the group should leave as it is.
            lengths: ``|w|`` and ``|dL/dw|`` of each parameter, taken once for all blocks of a model.
        """
        scale = sum(math.prod(lengths[n]) for n in self.parameters)
        size = norm(self.moment(weights, gradients))
        return size / scale if scale else (0.0 if size == 0 else float("inf"))


def group_power(one: str, times: int) -> str:
    """A product of equal groups in words.

    >>> group_power("GL(8)", 4), group_power("O(3)", 1)
    ('GL(8)^4', 'O(3)')
    """
    return one if times == 1 else f"{one}^{times}"


def joined(*factors: Factor) -> tuple[str, ...]:
    """Names of the parameters of several factors, each once."""
    return tuple(dict.fromkeys(n for f in factors for n in f.parameters))


def fresh(weights: Tensors, names: tuple[str, ...], *, empty: bool = False) -> dict[str, Tensor]:
    """Contiguous copies of parameters to write into, or zeros of their shape."""
    if empty:
        return {n: torch.zeros_like(weights[n], memory_format=torch.contiguous_format) for n in names}
    return {n: weights[n].clone(memory_format=torch.contiguous_format) for n in names}


def random_scales(
    shape: tuple[int, ...], generator: torch.Generator, strength: float, condition: float | None
) -> Tensor:
    """Positive factors: log-normal of this strength, or spread over a range of this ratio."""
    if condition is None:
        return torch.exp(strength * torch.randn(shape, generator=generator, dtype=torch.float64))
    half = torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5
    return torch.exp(half * torch.tensor(condition, dtype=torch.float64).log())


def _dtype(weights: Tensors, block: Block) -> torch.dtype:
    return weights[block.parameters[0]].dtype


def _device(weights: Tensors, block: Block) -> torch.device:
    return weights[block.parameters[0]].device
