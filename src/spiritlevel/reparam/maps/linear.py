"""Linear maps of whole parameters, and the action of a symmetry on all weights of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spiritlevel.core.blocks import Block
from spiritlevel.errors import ArgumentError, ReparametrisationError
from spiritlevel.reparam.flat import Weights
from spiritlevel.reparam.maps.base import ParameterWise, Reparametrisation, known

__all__ = ["Linear", "OrbitAction"]


class Linear(ParameterWise):
    """``psi = A theta`` on the flattened entries of a parameter: rotations, whitening, mixing.

    Args:
        matrices: an invertible matrix for each named parameter.

    >>> turn = Linear({"w": torch.tensor([[0.0, -1.0], [1.0, 0.0]])})
    >>> turn.forward({"w": torch.tensor([1.0, 0.0])})["w"]
    tensor([0., 1.])
    """

    def __init__(self, matrices: Mapping[str, Tensor]) -> None:
        super().__init__(tuple(matrices))
        self._matrices = dict(matrices)
        for name, a in matrices.items():
            if a.dim() != 2 or a.shape[0] != a.shape[1]:
                raise ArgumentError(f"expected a square matrix for {name!r}, got shape {tuple(a.shape)}")
            s = torch.linalg.svdvals(a.double())
            if not bool(torch.isfinite(s).all()) or float(s[-1]) <= 1e-12 * float(s[0]):
                raise ReparametrisationError(
                    f"expected an invertible matrix for {name!r}, got singular values from {float(s[0]):.2g} down to "
                    f"{float(s[-1]):.2g}"
                )

    def _matrix(self, name: str, weight: Tensor) -> Tensor:
        a = self._matrices[name].to(weight.device, weight.dtype)
        if len(a) != weight.numel():
            raise ArgumentError(
                f"expected a matrix of {weight.numel()} rows for {name!r} of shape {tuple(weight.shape)}, got {len(a)}"
            )
        return a

    def _to(self, name: str, weight: Tensor) -> Tensor:
        return (self._matrix(name, weight) @ weight.reshape(-1)).view_as(weight)

    def _from(self, name: str, weight: Tensor) -> Tensor:
        found: Tensor = torch.linalg.solve(self._matrix(name, weight), weight.reshape(-1))
        return found.view_as(weight)

    def _log_abs_det(self, weights: Weights) -> Tensor:
        known(self.names, weights)
        return torch.stack([torch.linalg.slogdet(a.double())[1] for a in self._matrices.values()]).sum()

    def __str__(self) -> str:
        return f"Linear({', '.join(self._matrices)})"


class OrbitAction(Reparametrisation):
    """``psi = g theta`` with a fixed element of the symmetry groups of some blocks, one after the other.

    The loss as a function of ``psi`` is the loss itself, so this is the case where a reparametrisation and a symmetry
    move look alike, and where a geometry that is invariant under the group needs no transport.

    Args:
        blocks: from `spiritlevel.find_symmetries`.
        seed: fixes the elements.
        strength: 0 is the identity, 1 mixes thoroughly.
        condition: instead of ``strength``, the condition number of what mixes.
    """

    def __init__(
        self, blocks: Sequence[Block], seed: int = 0, strength: float = 1.0, *, condition: float | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._moves = [(b, b.draw(generator, strength, condition)) for b in blocks]
        self._back = [(b, b.inverse(element)) for b, element in reversed(self._moves)]

    @staticmethod
    def _acted(moves: Sequence[tuple[Block, Tensor]], weights: Weights) -> dict[str, Tensor]:
        out = dict(weights)
        for block, element in moves:
            known(block.parameters, out)
            out |= block.act(out, element.to(next(iter(out.values())).device))
        return out

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        return self._acted(self._moves, weights)

    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        return self._acted(self._back, weights)

    def __str__(self) -> str:
        return f"OrbitAction({len(self._moves)} blocks)"
