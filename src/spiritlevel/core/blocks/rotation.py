"""Factors whose columns may be rotated together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.blocks.base import Block, Tensors, fresh, group_power, joined
from spiritlevel.core.views import Factor
from spiritlevel.errors import ModelError

__all__ = ["Rotation"]


@dataclass(frozen=True)
class Rotation(Block):
    """An orthogonal ``R`` acts as ``F R`` on every factor: cosine attention, latents, residual streams under RMSNorm.

    Where a gain ``g`` stands between the rotated space and a factor, ``R`` acts on ``F diag(g)``, so as
    ``F diag(g) R diag(g)^-1``. The section turns to the principal axes of the first factor (signs stay open: every
    elementwise metric is blind to them); it needs distinct singular values there.

    Args:
        name: unique within a model.
        factors: each (heads, rows, h); the first one fixes the axes, so no other group may act on its columns.
        gains: for each factor the gain in front of it, (1, 1, h), or None.
        kind: what sort of layer it is found in.
    """

    name: str
    factors: tuple[Factor, ...]
    gains: tuple[Factor | None, ...] = ()
    kind: str = "attention"
    order = 4

    def __post_init__(self) -> None:
        """Check that one rotation can act on all factors."""
        shapes = {(f.heads, f.columns, f.is_complex) for f in self.factors}
        if len(shapes) != 1 or self.factors[0].is_complex or len(self.gains) not in (0, len(self.factors)):
            raise ModelError(
                f"expected real factors of equal heads and columns, and a gain or None for each, in {self.name}; got "
                f"(heads, columns, complex) {sorted(shapes)} and {len(self.gains)} gains"
            )

    @property
    def heads(self) -> int:
        """How many heads, each with a rotation of its own."""
        return self.factors[0].heads

    @property
    def width(self) -> int:
        """The h of O(h)."""
        return self.factors[0].columns

    @property
    def group(self) -> str:
        return group_power(f"O({self.width})", self.heads)

    @property
    def dimension(self) -> int:
        return self.heads * self.width * (self.width - 1) // 2

    @property
    def parameters(self) -> tuple[str, ...]:
        return joined(*self.factors)

    @property
    def algebra(self) -> tuple[int, ...]:
        return (self.heads, self.width, self.width)

    @property
    def free(self) -> bool:
        return True

    def _gains(self, weights: Tensors) -> list[tuple[Factor, Tensor, Tensor]]:
        """Each factor with its gain and the inverse of it."""
        found = []
        for factor, gain in zip(self.factors, self.gains or (None,) * len(self.factors), strict=True):
            one = torch.ones(1, 1, self.width, dtype=torch.float64, device=weights[factor.parameters[0]].device)
            g = one if gain is None else gain.read(weights).double()
            found.append((factor, g, torch.where(g == 0, one, 1 / g)))
        return found

    def _turn(self, weights: Tensors, turn: Tensor, tangent: bool) -> dict[str, Tensor]:
        new = fresh(weights, self.parameters, empty=tangent)
        for factor, g, inverse in self._gains(weights):
            value = factor.read(weights)
            moved = ((value.double() * g) @ turn.to(value.device, torch.float64) * inverse).to(value.dtype)
            (factor.write_tangent if tangent else factor.write)(new, moved)
        return new

    def generate(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        """``F diag(g) (E - E^T) diag(g)^-1``."""
        return self._turn(weights, element - element.mT, tangent=True)

    def draw(self, generator: torch.Generator, strength: float, condition: float | None = None) -> Tensor:
        """The exponential of a skew Gaussian matrix; a condition number, always 1 here, is passed over."""
        del condition
        noise = torch.randn(self.algebra, generator=generator, dtype=torch.float64)
        element: Tensor = torch.matrix_exp((noise - noise.mT) * (max(strength, 0.0) / 2))
        return element

    def act(self, weights: Tensors, element: Tensor) -> dict[str, Tensor]:
        return self._turn(weights, element, tangent=False)

    def section(self, weights: Tensors) -> Tensor:
        """The right singular vectors of the first factor."""
        factor, g, _ = self._gains(weights)[0]
        value = factor.read(weights).double() * g
        axes: Tensor = torch.linalg.eigh(value.mT @ value)[1]
        return axes

    def inverse(self, element: Tensor) -> Tensor:
        return element.mT
