"""How geometric objects at a point move under a change of variables (paper, Sec. 2.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from torch import Tensor

from spiritlevel.errors import ArgumentError
from spiritlevel.reparam.flat import Layout, Weights
from spiritlevel.reparam.maps import Reparametrisation

__all__ = ["Transport"]

T = TypeVar("T")
Product = Callable[[Weights], Weights]
"""The product of a matrix with a vector of named tensors."""


class Transport:
    """Objects at ``theta``, as somebody with the parameters ``psi = phi(theta)`` writes them. ``J = d psi / d theta``.

    ====================  =========================  ===============================================
    object                rule                       what stays
    ====================  =========================  ===============================================
    function              ``h . phi^-1``             its values
    vector                ``J v``                    the direction
    covector              ``J^-T w``                 its value ``w.v`` on every vector
    metric, bilinear      ``J^-T B J^-1``            its value on every pair of vectors
    operator              ``J E J^-1``               its eigenvalues, trace and determinant
    density               ``q . phi^-1 |det J^-1|``  probabilities (its modes move: see `Density`)
    ====================  =========================  ===============================================

    Vectors and covectors are dicts of tensors, matrices are functions that multiply with them: nothing dense is formed.
    The dense versions are for small nets. The way back is ``Transport(change.inverted, psi)``.

    Args:
        change: ``theta -> psi``.
        weights: the point ``theta``.

    >>> import torch
    >>> from spiritlevel.reparam import Scaling
    >>> move = Transport(Scaling(3.0), {"w": torch.tensor([1.0])})
    >>> move.vector({"w": torch.tensor([1.0])})["w"], move.covector({"w": torch.tensor([3.0])})["w"]
    (tensor([3.]), tensor([1.]))
    """

    def __init__(self, change: Reparametrisation, weights: Weights) -> None:
        self.change = change
        self.theta = {n: w.detach() for n, w in weights.items()}

    @cached_property
    def psi(self) -> dict[str, Tensor]:
        """The point in the new parameters."""
        return {n: w.detach() for n, w in self.change.forward(self.theta).items()}

    def function(self, h: Callable[[Weights], T]) -> Callable[[Weights], T]:
        """``psi -> h(phi^-1(psi))``."""
        return lambda psi: h(self.change.inverse(psi))

    def vector(self, v: Weights) -> dict[str, Tensor]:
        """``J v``: a direction, such as a gradient vector or a step."""
        return self.change.jvp(self.theta, v)

    def covector(self, w: Weights) -> dict[str, Tensor]:
        """``J^-T w``: a differential, such as what autodiff calls a gradient."""
        return self.change.inverted.vjp(self.psi, w)

    def bilinear(self, product: Product) -> Product:
        """``J^-T B J^-1``: a metric or a Riemannian Hessian, which takes a vector to a covector."""
        return lambda v: self.covector(product(self.change.inverted.jvp(self.psi, v)))

    def metric(self, product: Product) -> Product:
        """A metric moves as any bilinear form."""
        return self.bilinear(product)

    def inverse_metric(self, solve: Product) -> Product:
        """``J G^-1 J^T``: takes a covector to a vector."""
        return lambda w: self.vector(solve(self.change.vjp(self.theta, w)))

    def operator(self, product: Product) -> Product:
        """``J E J^-1``: takes a vector to a vector."""
        return lambda v: self.vector(product(self.change.inverted.jvp(self.psi, v)))

    def density(self, log_density: Callable[[Weights], Tensor]) -> Callable[[Weights], Tensor]:
        """``log q(phi^-1(psi)) - log |det J|``: a density under the Lebesgue measure of its own coordinates."""

        def moved(psi: Weights) -> Tensor:
            theta = self.change.inverse(psi)
            return log_density(theta) - self.change.log_abs_det(theta)

        return moved

    @cached_property
    def jacobian(self) -> Tensor:
        """The dense ``J``."""
        return self.change.jacobian(self.theta)

    @cached_property
    def inverse_jacobian(self) -> Tensor:
        """The dense ``J^-1`` (for a redundant map, the derivative of the way back)."""
        return self.change.inverted.jacobian(self.psi)

    def bilinear_matrix(self, matrix: Tensor) -> Tensor:
        """``J^-T B J^-1``, dense."""
        self._check(matrix)
        return self.inverse_jacobian.mT @ matrix @ self.inverse_jacobian

    def operator_matrix(self, matrix: Tensor) -> Tensor:
        """``J E J^-1``, dense."""
        self._check(matrix)
        return self.jacobian @ matrix @ self.inverse_jacobian

    def _check(self, matrix: Tensor) -> None:
        size = Layout(self.theta).size
        if matrix.shape != (size, size):
            raise ArgumentError(f"expected a matrix of {size} rows and columns, got shape {tuple(matrix.shape)}")
