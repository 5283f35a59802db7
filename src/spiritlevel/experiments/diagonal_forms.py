"""Closed forms of section 5.1 and appendix E of Hide & Seek, for diagonal networks on orthonormal data.

With ``X^T X = I``, ``beta = u v`` and ``beta* = X^T y`` the loss is ``|beta - beta*|^2`` but for a constant. Moving
along ``B`` takes coordinate i to ``beta_i s(B_i)``, so that the rise is a sum of functions of one coordinate each:

    sum_i (beta_i s(B_i) - beta*_i)^2 - (beta_i - beta*_i)^2

========  ===============  ============================================================  =========================
curve     ``s(b)``         whose                                                         Riemannian length of B
========  ===============  ============================================================  =========================
geodesic  ``exp(2 b)``     geodesics of the inverse-Gram metric (Eq. 10)                 ``sqrt(2) |B|``
straight  ``(1 + b)^2``    adaptive sharpness (Eq. 33): both factors move by a share b   ``sqrt(2) |B|``
cross     ``1 + 2 b``      geodesics of the cross-Gram metric, up to ``b = -1/2``        ``sqrt(2) |beta B|``
========  ===============  ============================================================  =========================

The ball of the paper's closed forms is ``|B| <= rho`` (printed once as rho, three times as its square).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.experiments.trust_region import Peak, diagonal_trust_region
from spiritlevel.solvers import L2Ball, SphereAscent

__all__ = ["CURVES", "Bracket", "Curve", "Orthonormal"]

_GRID = 101  # points of one coordinate at which the dual bound looks before it narrows down
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Curve:
    """How a product moves: ``beta s(b)``.

    Attributes:
        stretch: s.
        slope: its derivative.
    """

    stretch: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


CURVES = {
    "geodesic": Curve(lambda b: torch.exp(2 * b), lambda b: 2 * torch.exp(2 * b)),
    "straight": Curve(lambda b: (1 + b) ** 2, lambda b: 2 * (1 + b)),
    "cross": Curve(lambda b: 1 + 2 * b, lambda b: torch.full_like(b, 2.0)),
}


@dataclass(frozen=True)
class Bracket:
    """A maximum between two numbers.

    Attributes:
        value: of the best point found, a lower bound.
        bound: the Lagrange dual, an upper bound.
        point: the best point found.
    """

    value: float
    bound: float
    point: Tensor


@dataclass(frozen=True)
class Orthonormal:
    """A diagonal network on data with ``X^T X = I``.

    Args:
        beta: ``u v`` of the network, (d,).
        best: ``beta* = X^T y``.
    """

    beta: Tensor
    best: Tensor

    @property
    def r(self) -> Tensor:
        """``beta (beta - beta*)``."""
        return self.beta * (self.beta - self.best)

    @property
    def curvature(self) -> Tensor:
        """The diagonal of D: ``beta (2 beta - beta*)``."""
        return self.beta * (2 * self.beta - self.best)

    def case_a(self, rho: float) -> float:
        """First order: ``4 rho |r|``."""
        return 4 * rho * float(self.r.norm())

    def case_b(self, rho: float) -> float:
        """Second order where r = 0: ``4 rho^2 max D`` (the printed form has lost the 4)."""
        return 4 * rho**2 * max(float(self.curvature.max()), 0.0)

    def case_c(self, rho: float) -> Peak:
        """Both orders: the largest ``4 B.r + 4 B.D B``, its hard case included."""
        return diagonal_trust_region(4 * self.r, 8 * self.curvature, rho)

    def rise(self, b: Tensor, curve: Curve) -> Tensor:
        """The rise of each coordinate."""
        before, after = self.beta - self.best, self.beta * curve.stretch(b) - self.best
        return after.square() - before.square()

    def eq11_as_printed(self, b: Tensor) -> Tensor:
        """``sum (beta^2 (g g - 1)) - 2 (beta g - 1).beta*`` with ``g = exp(2 B)``: not 0 where nothing moved."""
        g = torch.exp(2 * b)
        return (self.beta**2 * (g * g - 1)).sum() - 2 * (self.beta * g - 1) @ self.best

    def maximum(self, rho: float, curve: Curve = CURVES["geodesic"]) -> Bracket:
        """The largest rise over ``|B| <= rho``: the exact form of Eq. 11, without a Taylor series.

        The dual ``mu rho^2 + sum_i max_b (h_i(b) - mu b^2)`` bounds it from above for every ``mu >= 0`` and is convex;
        the best point of the smallest bound starts an ascent, whose end bounds it from below. Where both agree, the
        maximum is known to be global.
        """
        low, high = 0.0, 1.0
        while self._dual(high, rho, curve)[1].norm() > rho:
            high *= 4
        for _ in range(45):
            middle = (low + high) / 2
            longer = bool(self._dual(middle, rho, curve)[1].norm() > rho)
            low, high = (middle, high) if longer else (low, middle)
        bound, b = self._dual(high, rho, curve)
        beyond = self._dual(low, rho, curve)[1]
        starts = [x for x in (b, beyond, self.case_c(rho).point) if bool(x.any())]
        found = [self._ascend(x, rho, curve) for x in starts]
        value, point = max(found, key=lambda f: f[0])
        return Bracket(value, bound, point)

    def _dual(self, mu: float, rho: float, curve: Curve) -> tuple[float, Tensor]:
        """The bound, and the point that attains its inner maximum."""

        def inner(b: Tensor) -> Tensor:
            return self.rise(b, curve) - mu * b.square()

        grid = torch.linspace(-rho, rho, _GRID, dtype=self.beta.dtype).unsqueeze(1)
        best = grid.squeeze(1)[inner(grid).argmax(0)]
        step = 2 * rho / (_GRID - 1)
        low, high = (best - step).clamp_min(-rho), (best + step).clamp_max(rho)
        for _ in range(30):  # a parabola to rounding
            left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
            up = inner(right) > inner(left)
            low, high = torch.where(up, left, low), torch.where(up, high, right)
        b = (low + high) / 2
        b = torch.where(inner(best) > inner(b), best, b)
        return mu * rho**2 + float(inner(b).sum()), b

    def _ascend(self, start: Tensor, rho: float, curve: Curve) -> tuple[float, Tensor]:
        def function(b: Tensor) -> tuple[float, Tensor]:
            gradient = 2 * (self.beta * curve.stretch(b) - self.best) * self.beta * curve.slope(b)
            return float(self.rise(b, curve).sum()), gradient

        solver = SphereAscent(steps=300, tolerance=1e-15)
        solution = solver.maximise(function, L2Ball(rho), function(torch.zeros_like(start)), start=start)
        return solution.value, solution.z
