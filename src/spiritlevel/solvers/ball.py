"""The feasible set: a ball in orthonormal coordinates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from spiritlevel.core import spread
from spiritlevel.core.shapes import Flat
from spiritlevel.core.spread import dot, norm
from spiritlevel.errors import ArgumentError

__all__ = ["Ball", "L2Ball", "LinfBall"]


@dataclass(frozen=True)
class Ball(ABC):
    """All ``z`` with a norm of at most ``radius``."""

    radius: float

    def __post_init__(self) -> None:
        """Check the radius."""
        if not isinstance(self.radius, int | float) or not math.isfinite(self.radius) or self.radius <= 0:
            raise ArgumentError(f"expected a radius rho that is finite and above 0, got {self.radius!r}")

    @abstractmethod
    def norm(self, z: Flat) -> float:
        """The norm the ball is made of."""

    @abstractmethod
    def dual(self, g: Flat) -> float:
        """The dual norm: ``max <g, z>`` over the unit ball."""

    @abstractmethod
    def unit(self, g: Flat) -> Flat:
        """The point of the unit ball that goes furthest along ``g``; zero where ``g`` is."""

    @abstractmethod
    def project(self, z: Flat) -> Flat:
        """The nearest point of the ball."""

    def residual(self, z: Flat, g: Flat, size: float | None = None) -> float:
        """``1 - <z, g> / (radius |g|_dual)``: 0 at a first-order maximiser on the boundary.

        On the sphere it is ``1 - cos(z, g)``. Where the gradient is zero there is nothing to gain: 0 as well.
        ``size`` is ``dual(g)`` where it is known.
        """
        size = self.dual(g) if size is None else size
        return 0.0 if size == 0 else 1.0 - dot(z, g) / (self.radius * size)


class L2Ball(Ball):
    """The Euclidean ball.

    >>> ball = L2Ball(2.0)
    >>> ball.project(torch.tensor([3.0, 4.0]))
    tensor([1.2000, 1.6000])
    >>> ball.residual(torch.tensor([1.2, 1.6]), torch.tensor([3.0, 4.0]))
    0.0
    """

    def norm(self, z: Flat) -> float:
        return norm(z)

    def dual(self, g: Flat) -> float:
        return norm(g)

    def unit(self, g: Flat) -> Flat:
        size = norm(g)
        return g / size if size > 0 else torch.zeros_like(g)

    def project(self, z: Flat) -> Flat:
        size = norm(z)
        return z * (self.radius / size) if size > self.radius else z


class LinfBall(Ball):
    """The cube: every coordinate at most ``radius``.

    >>> LinfBall(2.0).project(torch.tensor([3.0, -1.0]))
    tensor([ 2., -1.])
    """

    def norm(self, z: Flat) -> float:
        return spread.most(float(z.abs().max()) if z.numel() else 0.0)

    def dual(self, g: Flat) -> float:
        return float(spread.total(np.array([float(torch.linalg.vector_norm(g, 1, dtype=torch.float64))]))[0])

    def unit(self, g: Flat) -> Flat:
        return g.sign()

    def project(self, z: Flat) -> Flat:
        return z.clamp(-self.radius, self.radius)
