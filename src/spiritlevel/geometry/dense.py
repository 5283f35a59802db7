"""Any metric as one matrix over all measured weights, for small networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiritlevel.core.blocks import Block
from spiritlevel.core.shapes import Flat
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.geometry.base import Geometry, Part, Weights

__all__ = ["Dense"]


class _Mixed(Part):
    """All weights together along ``w + L^-T z``, where ``G = L L^T``."""

    def __init__(self, weights: Weights, factor: Tensor) -> None:
        self._weights = dict(weights)
        self.names = tuple(weights)
        self._sizes = [w.numel() for w in weights.values()]
        self.size = self.dimension = sum(self._sizes)
        first = next(iter(weights.values()))
        self._factor = factor.to(first.device, first.dtype)

    def _pieces(self, x: Tensor) -> list[tuple[str, Tensor]]:
        pieces = zip(self._weights.items(), x.split(self._sizes), strict=True)
        return [(n, piece.view_as(w)) for (n, w), piece in pieces]

    def _lifted(self, z: Tensor) -> Tensor:
        x: Tensor = torch.linalg.solve_triangular(self._factor.mT, z.to(self._factor.dtype)[:, None], upper=True)
        return x[:, 0]

    def write(self, z: Flat, into: dict[str, Tensor]) -> None:
        for name, piece in self._pieces(self._lifted(z)):
            into[name] = self._weights[name] + piece

    def tangent(self, z: Flat, into: dict[str, Tensor]) -> None:
        into |= dict(self._pieces(self._lifted(z)))

    def coordinates(self, tangent: Weights) -> Tensor:
        return self._factor.mT @ torch.cat([tangent[n].reshape(-1).to(self._factor.dtype) for n in self.names])


@dataclass(frozen=True, eq=False)
class Dense(Geometry):
    """Any metric ``x^T G x``, moved along straight lines ``w + G^(-1/2) z``: for small networks.

    Args:
        matrix: symmetric and positive definite, over all measured parameters in their order, flattened.

    >>> chart = Dense(torch.tensor([[4.0, 0.0], [0.0, 1.0]])).chart({"w": torch.tensor([1.0, 0.0])})
    >>> chart.weights(torch.tensor([1.0, 1.0]))["w"]
    tensor([1.5000, 1.0000])
    """

    matrix: Tensor
    _factor: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Factor the metric, which must be positive definite."""
        g = self.matrix
        if g.dim() != 2 or g.shape[0] != g.shape[1]:
            raise ArgumentError(f"expected a square matrix for a metric, got shape {tuple(g.shape)}")
        wide = g.detach().double()
        if not bool(torch.isfinite(wide).all()) or float((wide - wide.mT).abs().max()) > 1e-5 * float(wide.abs().max()):
            raise ArgumentError("expected a finite symmetric matrix for a metric: take (G + G.mT) / 2")
        values = torch.linalg.eigvalsh(wide)
        if not float(values[0]) > 1e-15 * float(values[-1]):
            raise ArgumentError(
                f"expected a positive definite metric, got eigenvalues from {float(values[0]):.3g} to "
                f"{float(values[-1]):.3g}: add damping"
            )
        object.__setattr__(self, "_factor", torch.linalg.cholesky((wide + wide.mT) / 2))

    def _parts(self, weights: Weights, blocks: Sequence[Block], dtype: torch.dtype) -> list[Part]:
        del blocks, dtype
        size = sum(w.numel() for w in weights.values())
        if size != len(self.matrix):
            raise ModelError(f"expected a metric of {size} rows for the measured parameters, got {len(self.matrix)}")
        return [_Mixed(weights, self._factor)]

    def __str__(self) -> str:
        return f"Dense({len(self.matrix)} x {len(self.matrix)})"
