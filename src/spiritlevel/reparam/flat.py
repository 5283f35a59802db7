"""Named tensors as one flat vector and back, for matrices and Krylov methods."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spiritlevel.errors import ArgumentError

__all__ = ["Layout", "Weights"]

Weights = Mapping[str, Tensor]


class Layout:
    """Where each named tensor lies in a flat vector.

    >>> layout = Layout({"a": torch.zeros(2), "b": torch.zeros(1, 1)})
    >>> layout.size, layout.flat({"b": torch.ones(1, 1), "a": torch.zeros(2)})
    (3, tensor([0., 0., 1.]))
    """

    def __init__(self, weights: Weights) -> None:
        self.shapes = {n: w.shape for n, w in weights.items()}
        self.size = sum(w.numel() for w in weights.values())

    def flat(self, weights: Weights) -> Tensor:
        """One vector, in the order of the names."""
        return torch.cat([weights[n].reshape(-1) for n in self.shapes])

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors again, as views."""
        if flat.shape != (self.size,):
            raise ArgumentError(f"expected a flat vector of {self.size} entries, got shape {tuple(flat.shape)}")
        pieces = flat.split([shape.numel() for shape in self.shapes.values()])
        return {n: piece.view(shape) for (n, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def slices(self) -> dict[str, slice]:
        """The stretch of each name."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = slice(start, start + shape.numel())
            start += shape.numel()
        return found
