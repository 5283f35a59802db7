"""The two invariant metrics on a GL(h) pair, in whitened coordinates of the canonical gauge ``(U, V S)``.

============== ============================================================= ==================== ================
metric         <x, y>                                                        coordinates          horizontal
============== ============================================================= ==================== ================
inverse_gram   ``Tr((G*G)^-1 x_G* y_G + (H*H)^-1 x_H* y_H)`` (paper, Eq. 15) a = x_G, b = x_H/S   alpha* S = S beta
cross_gram     ``Tr(H*H x_G* y_G + G*G x_H* y_H)`` (paper, Eq. 34)           a = x_G S, b = x_H   alpha = beta*
============== ============================================================= ==================== ================

with the cores ``alpha = U* a`` and ``beta = V* b``. In both, the squared length is ``|a|^2 + |b|^2``.

Directions without a singular value (``Gauge.alive`` = 0) have their columns of ``a`` and ``b`` set to 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.core.registry import Registry
from spiritlevel.core.shapes import Matrices
from spiritlevel.core.tensors import adjoint
from spiritlevel.geometry.cross_geodesic import cross_geodesic
from spiritlevel.geometry.gauge import Gauge

__all__ = ["METRICS", "CrossGram", "Curve", "InverseGram", "PairMetric"]

Curve = Literal["exact", "second_order", "first_order"]


class PairMetric(ABC):
    """A metric on pairs that the group leaves alone, and its curves."""

    @staticmethod
    @abstractmethod
    def project(gauge: Gauge, a: Matrices, b: Matrices) -> tuple[Tensor, Tensor]:
        """Orthogonal projection of whitened coordinates onto the horizontal space."""

    @staticmethod
    @abstractmethod
    def move(gauge: Gauge, a: Matrices, b: Matrices, curve: Curve) -> tuple[Tensor, Tensor]:
        """The factors ``(G, H)`` at the end of the curve with horizontal start ``(a, b)``."""

    @staticmethod
    @abstractmethod
    def whiten(gauge: Gauge, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of a tangent vector ``(x_G, x_H)`` given at the user's point of the orbit."""

    @staticmethod
    @abstractmethod
    def unwhiten(gauge: Gauge, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The tangent vector at the user's point with coordinates ``(a, b)``."""


METRICS: Registry[type[PairMetric]] = Registry("metric")


@METRICS.register("inverse_gram")
class InverseGram(PairMetric):
    """Scale-free and complete: geodesics exist for all lengths, in closed form."""

    @staticmethod
    def project(gauge: Gauge, a: Matrices, b: Matrices) -> tuple[Tensor, Tensor]:
        # c_ij = (conj(alpha_ji) s_i + beta_ij s_j) / (s_i^2 + s_j^2); alpha_ji <- s_i conj(c_ij), beta_ij <- s_j c_ij
        s = gauge.values / gauge.values.amax(-1, keepdim=True).clamp_min(torch.finfo(gauge.values.dtype).tiny)
        row, column = s.unsqueeze(-1), s.unsqueeze(-2)
        alpha, beta = adjoint(gauge.left) @ a, adjoint(gauge.right) @ b
        weight = row**2 + column**2
        inverse = torch.where(weight > 0, 1 / torch.where(weight > 0, weight, 1), 0)
        c = (adjoint(alpha) * row + beta * column) * inverse
        a = a + gauge.left @ (adjoint(c * row) - alpha)
        b = b + gauge.right @ (c * column - beta)
        return a * gauge.alive, b * gauge.alive

    @staticmethod
    def move(gauge: Gauge, a: Matrices, b: Matrices, curve: Curve) -> tuple[Tensor, Tensor]:
        step = {"exact": _exact, "second_order": _second_order, "first_order": _first_order}[curve]
        return step(gauge.left, a), step(gauge.right, b) * gauge.values.unsqueeze(-2)

    @staticmethod
    def whiten(gauge: Gauge, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ torch.linalg.pinv(gauge.to_left), y @ torch.linalg.pinv(gauge.to_right)

    @staticmethod
    def unwhiten(gauge: Gauge, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ gauge.to_left, b @ gauge.to_right


@METRICS.register("cross_gram")
class CrossGram(PairMetric):
    """Measures absolute change of ``M``; has a scale (the singular values) and an edge (rank drops).

    Its geodesics are integrated to a stated tolerance and end where the rank drops.
    """

    @staticmethod
    def project(gauge: Gauge, a: Matrices, b: Matrices) -> tuple[Tensor, Tensor]:
        alive = gauge.alive
        both = adjoint(alive) * alive
        alpha, beta = adjoint(gauge.left) @ a, adjoint(gauge.right) @ b
        change = (adjoint(beta) - alpha) / 2 * both
        a = a + gauge.left @ change
        b = b - gauge.right @ adjoint(change)
        return a * alive, b * alive

    @staticmethod
    def move(gauge: Gauge, a: Matrices, b: Matrices, curve: Curve) -> tuple[Tensor, Tensor]:
        s = gauge.values.unsqueeze(-2)
        inverse = torch.where(s > 0, 1 / torch.where(s > 0, s, 1), 0)
        x_g, x_h = a * inverse, b
        if curve == "exact":
            left, right, _ = cross_geodesic(gauge, a, b)
            return left, right
        left, right = gauge.left + x_g, gauge.right * s + x_h
        if curve == "second_order":
            # Gamma_G = [x_G (x_H* H + H* x_H) - G x_H* x_H] (H*H)^-1, Gamma_H the same with G and H exchanged
            alpha, beta = adjoint(gauge.left) @ x_g, adjoint(gauge.right) @ x_h
            change_h = adjoint(beta) * s + beta * adjoint(s)  # x_H* H + H* x_H with H = V S
            left = left - (x_g @ change_h - gauge.left @ (adjoint(x_h) @ x_h)) * inverse**2 / 2
            bend = x_h @ (adjoint(alpha) + alpha) - (gauge.right * s) @ (adjoint(x_g) @ x_g)
            right = right - bend / 2 * gauge.alive
        return left, right

    @staticmethod
    def whiten(gauge: Gauge, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ adjoint(gauge.to_right), y @ adjoint(gauge.to_left)

    @staticmethod
    def unwhiten(gauge: Gauge, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ torch.linalg.pinv(adjoint(gauge.to_right)), b @ torch.linalg.pinv(adjoint(gauge.to_left))


def _first_order(w: Matrices, x: Matrices) -> Tensor:
    """The straight line ``W + x``."""
    return w + x


def _second_order(w: Matrices, x: Matrices) -> Tensor:
    """``W + x - Gamma/2`` with ``Gamma = -x (x* W + W* x) + W x* x`` at orthonormal W (paper, Eq. 7 and 16)."""
    core = adjoint(w) @ x
    return w + x + (x @ (core + adjoint(core)) - w @ (adjoint(x) @ x)) / 2


def _exact(w: Matrices, x: Matrices) -> Tensor:
    """The geodesic ``exp(X - X*) W exp(x* W)``, ``X = x W*``, at orthonormal W, by h x h work only.

    With the core ``alpha = W* x``, ``k = x - W alpha`` and ``c = k* k``, the first product is
    ``[W, k] exp([[alpha - alpha*, -c], [1, 0]]) [1; 0]``: a short Taylor series of an action, cheap to differentiate.
    """
    core = adjoint(w) @ x
    k = x - w @ core
    gram, skew = adjoint(k) @ k, core - adjoint(core)
    pieces, terms = _taylor_plan(x)
    top = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device).expand_as(core)
    low, last = torch.zeros_like(core), top
    skew, gram, unit, turn = skew / pieces, gram / pieces, 1.0 / pieces, adjoint(core) / pieces
    for _ in range(pieces):
        (t, q), e = (top, low), last
        for j in range(1, terms + 1):
            t, q = (skew @ t - gram @ q) / j, t * (unit / j)
            top, low = top + t, low + q
            e = e @ turn / j
            last = last + e
    return w @ (top @ last) + k @ (low @ last)


def _taylor_plan(x: Tensor) -> tuple[int, int]:
    """How many pieces to cut a step into, and how many Taylor terms each takes, for full working precision."""
    length = float(torch.linalg.matrix_norm(x.detach()).max()) if x.numel() else 0.0
    if not math.isfinite(length):
        return 1, 1
    pieces = max(1, math.ceil(length))
    size, eps = 2 * length / pieces, torch.finfo(x.dtype).eps / 4  # the block matrix is no longer than 2 |x|
    terms, bound = 1, size
    while bound > eps:
        terms += 1
        bound *= size / terms
    return pieces, terms
