"""What a geometry needs to know of a change of variables; the maps themselves are in `spiritlevel.reparam`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["ChangeOfVariables"]

Weights = Mapping[str, Tensor]


@runtime_checkable
class ChangeOfVariables(Protocol):
    """A smooth bijection of named parameters, as far as a chart needs to know it."""

    @property
    def inverted(self) -> ChangeOfVariables:
        """The way back."""
        ...

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        """The new parameters; differentiable as often as wanted."""
        ...

    def jvp(self, weights: Weights, tangent: Weights) -> dict[str, Tensor]:
        """A tangent vector at ``weights`` in the new parameters."""
        ...
