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
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.core.registry import Registry
from spiritlevel.core.shapes import Matrices
from spiritlevel.core.tensors import adjoint
from spiritlevel.geometry.cross_geodesic import cross_geodesic
from spiritlevel.geometry.gauge import Gauge, Passage

__all__ = ["METRICS", "CrossGram", "Curve", "InverseGram", "PairMetric"]

Curve = Literal["exact", "second_order", "first_order"]


@dataclass(frozen=True)
class _Side:
    """A horizontal velocity on one factor: ``x = W core + k`` with ``k`` orthogonal to W, known by ``gram = k* k``."""

    core: Matrices
    gram: Matrices


Ends = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(P, Q)`` for each factor, h x h: the curve ends at ``W P + k Q``."""


class PairMetric(ABC):
    """A metric on pairs that the group leaves alone, and its curves.

    A subclass works on h x h cores alone; the tall matrices are touched here, four products for each factor.
    """

    @staticmethod
    @abstractmethod
    def _horizontal(gauge: Gauge, alpha: Matrices, beta: Matrices) -> tuple[Tensor, Tensor]:
        """The cores of the orthogonal projection onto the horizontal space."""

    @staticmethod
    @abstractmethod
    def _ends(gauge: Gauge, a: _Side, b: _Side, curve: Curve) -> Ends:
        """Where the curve with this horizontal start ends, in terms of W and k."""

    @staticmethod
    @abstractmethod
    def whiten(passage: Passage, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of a tangent vector ``(x_G, x_H)`` given at the user's point of the orbit."""

    @staticmethod
    @abstractmethod
    def unwhiten(passage: Passage, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The tangent vector at the user's point with coordinates ``(a, b)``."""

    @classmethod
    def project(cls, gauge: Gauge, a: Matrices, b: Matrices) -> tuple[Tensor, Tensor]:
        """Orthogonal projection of whitened coordinates onto the horizontal space."""
        a, b = gauge.living(a), gauge.living(b)
        alpha, beta = adjoint(gauge.left) @ a, adjoint(gauge.right) @ b
        flat_alpha, flat_beta = cls._horizontal(gauge, alpha, beta)
        return a + gauge.left @ (flat_alpha - alpha), b + gauge.right @ (flat_beta - beta)

    @classmethod
    def move(cls, gauge: Gauge, a: Matrices, b: Matrices, curve: Curve) -> tuple[Tensor, Tensor]:
        """The factors ``(G, H)`` at the end of the curve that starts along the horizontal part of ``(a, b)``."""
        a, b = gauge.living(a), gauge.living(b)
        p, q, u, w = cls._coefficients(gauge, *_small(gauge, a, b), curve)
        return gauge.left @ p + a @ q, gauge.right @ u + b @ w

    @classmethod
    def pull_back(
        cls, gauge: Gauge, a: Matrices, b: Matrices, curve: Curve, left: Matrices, right: Matrices
    ) -> tuple[Tensor, Tensor]:
        """The gradients in ``a`` and ``b``, given those in the factors at the end of the curve.

        What `move` is under autograd, with autograd on the h x h matrices alone.
        """
        a, b = gauge.living(a), gauge.living(b)
        with torch.enable_grad():
            alpha, beta, gram_a, gram_b = small = [x.requires_grad_() for x in _small(gauge, a, b)]
            ends = cls._coefficients(gauge, alpha, beta, gram_a, gram_b, curve)
        sides = zip(ends, (gauge.left, a, gauge.right, b), (left, left, right, right), strict=True)
        moved = [(end, adjoint(x) @ c) for end, x, c in sides if end.requires_grad]  # some curves keep some fixed
        alpha, beta, gram_a, gram_b = torch.autograd.grad(
            [end for end, _ in moved], small, [covector for _, covector in moved], materialize_grads=True
        )
        pulled_a = left @ adjoint(ends[1].detach()) + gauge.left @ alpha + a @ (gram_a + adjoint(gram_a))
        pulled_b = right @ adjoint(ends[3].detach()) + gauge.right @ beta + b @ (gram_b + adjoint(gram_b))
        return gauge.living(pulled_a), gauge.living(pulled_b)

    @classmethod
    def stopped(cls, gauge: Gauge, a: Matrices, b: Matrices) -> Tensor:
        """Which heads' exact geodesics end before they are as long as asked."""
        del a, b
        return torch.zeros(gauge.values.shape[0], dtype=torch.bool, device=gauge.values.device)

    @classmethod
    def _sides(cls, gauge: Gauge, alpha: Tensor, beta: Tensor, gram_a: Tensor, gram_b: Tensor) -> tuple[_Side, _Side]:
        """The horizontal velocities, from the cores ``W* x`` and the Gram matrices ``x* x`` of any others."""
        flat_alpha, flat_beta = cls._horizontal(gauge, alpha, beta)
        return (
            _Side(flat_alpha, gram_a - adjoint(alpha) @ alpha),
            _Side(flat_beta, gram_b - adjoint(beta) @ beta),
        )

    @classmethod
    def _coefficients(
        cls, gauge: Gauge, alpha: Tensor, beta: Tensor, gram_a: Tensor, gram_b: Tensor, curve: Curve
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The h x h matrices with which the curve ends at ``U p + a q`` and ``V u + b w``."""
        (p, q), (u, w) = cls._ends(gauge, *cls._sides(gauge, alpha, beta, gram_a, gram_b), curve)
        return p - alpha @ q, q, u - beta @ w, w


def _small(gauge: Gauge, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cores and Gram matrices of both coordinates."""
    return adjoint(gauge.left) @ a, adjoint(gauge.right) @ b, adjoint(a) @ a, adjoint(b) @ b


METRICS: Registry[type[PairMetric]] = Registry("metric")


@METRICS.register("inverse_gram")
class InverseGram(PairMetric):
    """Scale-free and complete: geodesics exist for all lengths, in closed form."""

    @staticmethod
    def _horizontal(gauge: Gauge, alpha: Matrices, beta: Matrices) -> tuple[Tensor, Tensor]:
        # c_ij = (conj(alpha_ji) s_i + beta_ij s_j) / (s_i^2 + s_j^2); alpha_ji <- s_i conj(c_ij), beta_ij <- s_j c_ij
        s = gauge.values / gauge.values.amax(-1, keepdim=True).clamp_min(torch.finfo(gauge.values.dtype).tiny)
        row, column = s.unsqueeze(-1), s.unsqueeze(-2)
        weight = row**2 + column**2
        inverse = torch.where(weight > 0, 1 / torch.where(weight > 0, weight, 1), 0)
        c = (adjoint(alpha) * row + beta * column) * inverse
        return gauge.living(adjoint(c * row)), gauge.living(c * column)

    @staticmethod
    def _ends(gauge: Gauge, a: _Side, b: _Side, curve: Curve) -> Ends:
        end = {"exact": _turned, "second_order": _second_order, "first_order": _first_order}[curve]
        (p, q), (u, w), s = end(a), end(b), gauge.values.unsqueeze(-2)
        if curve == "exact":
            # The geodesics are exp(X - X*) U exp(alpha*) and exp(Y - Y*) V exp(beta*) S. Horizontal is beta = alpha* up
            # to S, so exp(alpha*) S exp(beta) = exp(2 alpha*) S: all of it on the left, another point of the orbit.
            turn = _exponential(2 * adjoint(a.core))
            p, q = p @ turn, q @ turn
        return (p, q), (u * s, w * s)  # Exp_{V S}(y S) = Exp_V(y) S

    @staticmethod
    def whiten(passage: Passage, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ torch.linalg.pinv(passage.left), y @ torch.linalg.pinv(passage.right)

    @staticmethod
    def unwhiten(passage: Passage, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ passage.left, b @ passage.right


@METRICS.register("cross_gram")
class CrossGram(PairMetric):
    """Measures absolute change of ``M``; has a scale (the singular values) and an edge (rank drops).

    Its geodesics are integrated to a stated tolerance and end where the rank drops.
    """

    @staticmethod
    def _horizontal(gauge: Gauge, alpha: Matrices, beta: Matrices) -> tuple[Tensor, Tensor]:
        change = (adjoint(beta) - alpha) / 2 * (adjoint(gauge.alive) * gauge.alive)
        return alpha + change, beta - adjoint(change)

    @staticmethod
    def _ends(gauge: Gauge, a: _Side, b: _Side, curve: Curve) -> Ends:
        if curve == "exact":
            (p, q), (u, w), _ = cross_geodesic(gauge, a.core, b.core, a.gram, b.gram)
            return (p, q), (u, w)
        s, one = gauge.values.unsqueeze(-2), _identity(a.core)
        inverse = torch.where(s > 0, 1 / torch.where(s > 0, s, 1), 0)
        # x_G = (U alpha + k) / S and x_H = V beta + l
        alpha, beta, q = a.core * inverse, b.core, one * inverse
        p, u, w = one + alpha, one * s + beta, one
        if curve == "second_order":
            # Gamma_G = [x_G (x_H* H + H* x_H) - G x_H* x_H] (H*H)^-1, Gamma_H the same with G and H exchanged
            speed_g = adjoint(alpha) @ alpha + a.gram * inverse * adjoint(inverse)
            speed_h = adjoint(beta) @ beta + b.gram
            change_g, change_h = adjoint(alpha) + alpha, adjoint(beta) * s + beta * adjoint(s)
            p = p - (alpha @ change_h - speed_h) * inverse**2 / 2
            q = q - q @ change_h * inverse**2 / 2
            u = u - (beta @ change_g - adjoint(s) * speed_g) / 2
            w = w - change_g / 2
        return (p, q), (gauge.living(u), gauge.living(w))

    @classmethod
    def stopped(cls, gauge: Gauge, a: Matrices, b: Matrices) -> Tensor:
        side_a, side_b = cls._sides(gauge, *_small(gauge, gauge.living(a), gauge.living(b)))
        return cross_geodesic(gauge, side_a.core, side_b.core, side_a.gram, side_b.gram)[2]

    @staticmethod
    def whiten(passage: Passage, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ adjoint(passage.right), y @ adjoint(passage.left)

    @staticmethod
    def unwhiten(passage: Passage, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ torch.linalg.pinv(adjoint(passage.right)), b @ torch.linalg.pinv(adjoint(passage.left))


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand_as(like)


def _first_order(x: _Side) -> tuple[Tensor, Tensor]:
    """The straight line ``W + x``."""
    one = _identity(x.core)
    return one + x.core, one


def _second_order(x: _Side) -> tuple[Tensor, Tensor]:
    """``W + x - Gamma/2`` with ``Gamma = -x (x* W + W* x) + W x* x`` at orthonormal W (paper, Eq. 7 and 16)."""
    one, change = _identity(x.core), (x.core + adjoint(x.core)) / 2
    speed = adjoint(x.core) @ x.core + x.gram
    return one + x.core + x.core @ change - speed / 2, one + change


def _turned(x: _Side) -> tuple[Tensor, Tensor]:
    """``exp(X - X*) W`` with ``X = x W*``, at orthonormal W, by h x h work only.

    With the core ``alpha = W* x`` and ``c = k* k`` it is ``[W, k] exp([[alpha - alpha*, -c], [1, 0]]) [1; 0]``: a short
    Taylor series of an action, cheap to differentiate.
    """
    skew, gram, one = x.core - adjoint(x.core), x.gram, _identity(x.core)
    stretch = gram.detach().diagonal(dim1=-2, dim2=-1).real.sum(-1).clamp_min(0).sqrt()
    pieces, terms = _taylor_plan(torch.linalg.matrix_norm(skew.detach()) + stretch)
    skew, gram = skew / pieces, gram / pieces
    top, low, t, q = one + skew, one / pieces, skew, one / pieces  # the first term from [1; 0] takes no product
    for piece in range(pieces):
        if piece:
            t, q = (skew @ top - gram @ low), top / pieces
            top, low = top + t, low + q
        for j in range(2, terms + 1):
            t, q = (skew @ t - gram @ q) / j, t / (j * pieces)
            top, low = top + t, low + q
    return top, low


def _exponential(x: Tensor) -> Tensor:
    """The matrix exponential by its Taylor series: autodiff through it is cheap, through ``torch.matrix_exp`` dear."""
    pieces, terms = _taylor_plan(torch.linalg.matrix_norm(x.detach()))
    x = x / pieces
    total, term = _identity(x) + x, x
    for piece in range(pieces):
        if piece:
            term = total @ x
            total = total + term
        for j in range(2, terms + 1):
            term = term @ x / j
            total = total + term
    return total


def _taylor_plan(lengths: Tensor) -> tuple[int, int]:
    """How many pieces to cut a step into, and how many Taylor terms each takes, for full working precision."""
    length = float(lengths.max()) if lengths.numel() else 0.0
    if not math.isfinite(length):
        return 1, 1
    pieces, eps = max(1, math.ceil(length)), torch.finfo(lengths.dtype).eps / 2
    terms = 1
    bound = size = length / pieces
    while bound > eps:
        terms += 1
        bound *= size / terms
    return pieces, max(terms + 1, 3)  # one more for the gradient; three give the Hessian at 0 exactly
