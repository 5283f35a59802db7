"""Shapes in signatures: jaxtyping where it is installed (development), plain tensors where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

__all__ = ["Flat", "Matrices", "Values"]

if TYPE_CHECKING:
    Flat: TypeAlias = Tensor
    Matrices: TypeAlias = Tensor
    Values: TypeAlias = Tensor
else:
    try:
        from jaxtyping import Float, Inexact

        Flat = Float[Tensor, " n"]
        """A vector of coordinates, always real."""
        Matrices = Inexact[Tensor, "heads _ h"]
        """A batch of factors, real or complex, matrix axes last."""
        Values = Float[Tensor, "heads h"]
        """Singular values, one row per head."""
    except ImportError:
        Flat: Any = Tensor
        Matrices: Any = Tensor
        Values: Any = Tensor
