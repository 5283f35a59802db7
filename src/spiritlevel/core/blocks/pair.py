"""Two factors that enter the network only through their product."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.core.blocks.base import Block, Tensors, fresh, group_power, joined, random_scales
from spiritlevel.core.tensors import adjoint
from spiritlevel.core.views import Factor, Piece
from spiritlevel.errors import ModelError

__all__ = ["Pair"]


@dataclass(frozen=True)
class Pair(Block):
    """Two factors a model uses only through ``M = G H^*``, one such product per head.

    An invertible ``A`` acts as ``(G A^-1, H A^*)`` and leaves the function as it is: the group is GL(h) per head, over
    the reals or, where columns are pairs of real ones (rotary positions), over the complex numbers.

    Args:
        name: unique within a model.
        left: G.
        right: H.
        kind: what sort of layer it is found in.
        positive: only positive scales are symmetries (through a ReLU); for width 1.
    """

    name: str
    left: Factor
    right: Factor
    kind: str = "attention"
    positive: bool = False

    def __post_init__(self) -> None:
        """Check that one group can act on both factors."""
        shapes = [(f.heads, f.columns, f.is_complex) for f in (self.left, self.right)]
        if shapes[0] != shapes[1]:
            raise ModelError(
                f"expected equal heads, columns and field in both factors of {self.name}, "
                f"got {shapes[0]} and {shapes[1]}"
            )

    @property
    def heads(self) -> int:
        """How many heads, each with a group of its own."""
        return self.left.heads

    @property
    def width(self) -> int:
        """The h of GL(h)."""
        return self.left.columns

    @property
    def is_complex(self) -> bool:
        """Whether the group is over the complex numbers."""
        return self.left.is_complex

    @property
    def group(self) -> str:
        """The group in words.

        One head: ``GL(8)``; several: ``GL(8)^4``; positive scales: ``R+^4``.
        """
        one = f"GL({self.width},C)" if self.is_complex else f"GL({self.width})"
        return group_power("R+" if self.positive else one, self.heads)

    @property
    def dimension(self) -> int:
        """Real dimension of the group, which is the number of redundant directions at full rank."""
        return self.heads * self.width**2 * (2 if self.is_complex else 1)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters it acts on."""
        return joined(self.left, self.right)

    @property
    def algebra(self) -> tuple[int, ...]:
        h = self.width
        return (self.heads, h, h, 2) if self.is_complex else (self.heads, h, h)

    @property
    def claims(self) -> tuple[Piece, ...]:
        return self.left.pieces + self.right.pieces

    def read(self, weights: Tensors) -> tuple[Tensor, Tensor]:
        """Both factors, each (heads, rows, columns)."""
        return self.left.read(weights), self.right.read(weights)

    def read_tangent(self, tangent: Tensors) -> tuple[Tensor, Tensor]:
        """Both factors of a tangent vector or gradient."""
        return self.left.read_tangent(tangent), self.right.read_tangent(tangent)

    def write(self, weights: Tensors, left: Tensor, right: Tensor) -> None:
        """Put both factors back into contiguous parameters, in place."""
        self.left.write(weights, left)
        self.right.write(weights, right)

    def write_tangent(self, tangent: Tensors, left: Tensor, right: Tensor) -> None:
        """The same for a tangent vector."""
        self.left.write_tangent(tangent, left)
        self.right.write_tangent(tangent, right)

    def without(self, pieces: tuple[Piece, ...]) -> Pair:
        """The pair without rows that another block freezes at 0."""
        left, right = (Factor(tuple(p for p in f.pieces if p not in pieces)) for f in (self.left, self.right))
        return replace(self, left=left, right=right)

    def generate(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        """``(-G L, H L^*)``."""
        ell = torch.view_as_complex(element) if self.is_complex else element
        g, h = self.read(weights)
        tangent = fresh(weights, self.parameters, empty=True)
        self.write_tangent(tangent, -g @ ell, h @ adjoint(ell))
        return tangent

    def draw(self, generator: torch.Generator, strength: float, condition: float | None = None) -> Tensor:
        """``exp(strength N / sqrt(h))``, or singular values spread geometrically between random orthogonal matrices."""
        h, heads = self.width, self.heads
        dtype = torch.complex128 if self.is_complex else torch.float64

        def noise() -> Tensor:
            return torch.randn(heads, h, h, generator=generator, dtype=dtype)

        if condition is None:
            mixed: Tensor = torch.matrix_exp(noise() * (strength / math.sqrt(h)))
            return mixed
        if h == 1:
            sizes = random_scales((heads, 1), generator, strength, condition)
            if self.positive:
                return sizes.unsqueeze(-1)
        else:
            half = math.log(condition) / 2
            sizes = torch.linspace(-half, half, h, dtype=torch.float64).exp().expand(heads, h)
        left, right = (torch.linalg.qr(noise())[0] for _ in range(2))
        element: Tensor = (left * sizes.unsqueeze(-2)) @ right
        return element

    def act(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        """``(G A^-1, H A^*)``, computed in float64 and given back in the precision of the weights."""
        g, h = self.read(weights)
        a = element.to(g.device)
        moved_g = torch.linalg.solve(a, g.to(a.dtype), left=False)
        moved_h = h.to(a.dtype) @ adjoint(a)
        new = fresh(weights, self.parameters)
        self.write(new, moved_g.to(g.dtype), moved_h.to(h.dtype))
        return new

    def inverse(self, element: Tensor) -> Tensor:
        inverted: Tensor = torch.linalg.inv(element)
        return inverted
