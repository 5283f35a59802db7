"""Closed forms of appendix D of Hide & Seek: two scalar weights, ``L = mean (G H x_k - y_k)^2``.

Right ones beside printed ones. ``p_k = G H x_k`` are the outputs. The paper uses two balls without saying so: ``|B| <=
rho`` in Eq. 23 and 24, and the Riemannian one of its Eq. 6, ``sqrt(2) |B| <= rho``, in Eq. 25 and 26. Here every radius
is Riemannian; that of Eq. 24 is ``sqrt(2)`` times the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["FIELDS", "eq26", "eq26_as_printed", "sharpness"]

Data = tuple[Tensor, Tensor]


def _loss(g: Tensor, h: Tensor, data: Data) -> Tensor:
    x, y = data
    return ((g * h).unsqueeze(-1) * x - y).square().mean(-1)


def _slope(g: Tensor, h: Tensor, data: Data) -> Tensor:
    """``dL / d(GH)``."""
    x, y = data
    return 2 * (((g * h).unsqueeze(-1) * x - y) * x).mean(-1)


def _euclidean_gradient(g: Tensor, h: Tensor, data: Data) -> Tensor:
    """``|dL/d(GH)| sqrt(G^2 + H^2)``."""
    return _slope(g, h, data).abs() * (g**2 + h**2).sqrt()


def _riemannian_gradient(g: Tensor, h: Tensor, data: Data) -> Tensor:
    """``sqrt(2) |GH dL/d(GH)|``; for one example ``2 sqrt(2) |p| |p - y|``."""
    return math.sqrt(2) * (g * h * _slope(g, h, data)).abs()


def _euclidean_trace(g: Tensor, h: Tensor, data: Data) -> Tensor:
    """``2 mean(x^2) (G^2 + H^2)``, everywhere and not at minima alone."""
    return 2 * data[0].square().mean() * (g**2 + h**2)


def _riemannian_trace(g: Tensor, h: Tensor, data: Data) -> Tensor:
    """``4 mean(p (2 p - y))``: the quotient has one dimension, and this is its second derivative along geodesics."""
    x, y = data
    p = (g * h).unsqueeze(-1) * x
    return 4 * (p * (2 * p - y)).mean(-1)


FIELDS: dict[str, Callable[[Tensor, Tensor, Data], Tensor]] = {
    "loss": _loss,
    "Euclidean gradient": _euclidean_gradient,
    "Riemannian gradient": _riemannian_gradient,
    "Euclidean trace": _euclidean_trace,
    "Riemannian trace": _riemannian_trace,
}


def sharpness(g: Tensor, h: Tensor, data: Data, rho: float) -> Tensor:
    """Eq. 25, and Eq. 24 for one example at ``rho = sqrt(2) rho_paper``: the larger of both ends of the geodesic.

    The loss is a convex function of ``GH`` and so has its maximum over an arc at an end of it.
    """
    ends = (_loss(g * math.exp(b), h * math.exp(b), data) for b in (rho / math.sqrt(2), -rho / math.sqrt(2)))
    first, second = ends
    return torch.maximum(first, second) - _loss(g, h, data)


def eq26(g: Tensor, h: Tensor, data: Data, rho: float) -> Tensor:
    """Eq. 25 to second order: ``2 sqrt(2) rho |mean p (p - y)| + 2 rho^2 mean p (2 p - y)``."""
    return rho * _riemannian_gradient(g, h, data) + rho**2 / 2 * _riemannian_trace(g, h, data)


def eq26_as_printed(g: Tensor, h: Tensor, data: Data, rho: float) -> Tensor:
    """With ``2 rho^2 mean p^2`` for the second term: right only where every residual is 0."""
    p = (g * h).unsqueeze(-1) * data[0]
    return rho * _riemannian_gradient(g, h, data) + 2 * rho**2 * p.square().mean(-1)
