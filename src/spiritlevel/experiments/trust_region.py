"""The largest value of a quadratic function in a ball, exactly, its hard case included.

    max  g.b + b.A b / 2   over  |b| <= rho

At a maximiser ``(lam - A) b = g`` with ``lam >= max(0, largest eigenvalue of A)``, and ``lam = 0`` or ``|b| = rho``
(More and Sorensen 1983). In the *hard case* g has no part along the top eigenvectors and ``(lam - A)^-1 g`` is shorter
than rho for all ``lam`` above the largest eigenvalue: the rest of the length then goes along a top eigenvector, in
either direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.errors import ArgumentError

__all__ = ["Peak", "diagonal_trust_region", "trust_region"]

_HALVINGS = 200  # of an interval in logarithms: more than float64 can tell apart


@dataclass(frozen=True)
class Peak:
    """The maximum, one for each problem of a stack.

    Attributes:
        value: at the maximiser.
        point: a maximiser.
        multiplier: the Lagrange multiplier ``lam``.
        hard: whether it was the hard case, with more than one maximiser.
    """

    value: Tensor
    point: Tensor
    multiplier: Tensor
    hard: Tensor


def diagonal_trust_region(linear: Tensor, curvature: Tensor, radius: float) -> Peak:
    """For a diagonal ``A``: a secular equation in one unknown for each problem.

    Args:
        linear: g, (..., d).
        curvature: the diagonal of A, (..., d).
        radius: rho.

    >>> peak = diagonal_trust_region(torch.tensor([0.0, 0.1]), torch.tensor([3.0, 1.0]), 1.0)  # the hard case
    >>> float(peak.value), bool(peak.hard), [round(abs(float(b)), 3) for b in peak.point]
    (1.5025, True, [0.999, 0.05])
    """
    if not radius > 0:
        raise ArgumentError(f"expected a radius above 0, got {radius}")
    top = curvature.amax(-1, keepdim=True)
    floor = top.clamp_min(0.0)
    gap = floor - curvature  # >= 0; lam = floor + mu
    leading = gap == 0
    along = torch.where(leading, linear, 0.0).norm(dim=-1, keepdim=True)
    rest = torch.where(leading, 0.0, linear / torch.where(leading, 1.0, gap))  # the point at mu = 0
    length = rest.norm(dim=-1, keepdim=True)
    short = (along == 0) & (length <= radius)
    inside = short & (top < 0)
    hard = short & ~inside
    mu = torch.where(short, 0.0, _secular(linear, gap, along, radius))
    point = torch.where(short, rest, linear / (mu + gap).clamp_min(torch.finfo(gap.dtype).tiny))
    first = torch.zeros_like(point).scatter_(-1, curvature.argmax(-1, keepdim=True), 1.0)
    point = point + torch.where(hard, (radius**2 - length**2).clamp_min(0.0).sqrt() * first, 0.0)
    value = (linear * point + curvature * point.square() / 2).sum(-1)
    return Peak(value, point, (floor + mu).squeeze(-1), hard.squeeze(-1))


def _secular(linear: Tensor, gap: Tensor, along: Tensor, radius: float) -> Tensor:
    """The ``mu > 0`` with ``|linear / (mu + gap)| = radius``, by halving in logarithms; finite where there is none."""
    tiny = torch.finfo(gap.dtype).tiny
    high = (linear.norm(dim=-1, keepdim=True) / radius).clamp_min(2 * tiny).log()
    low = (along / radius).clamp_min(tiny).log()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        longer = (linear / (middle.exp() + gap)).norm(dim=-1, keepdim=True) > radius
        low, high = torch.where(longer, middle, low), torch.where(longer, high, middle)
    root: Tensor = high.exp()
    return root


def trust_region(linear: Tensor, matrix: Tensor, radius: float) -> Peak:
    """For any symmetric ``A``, in the basis of its eigenvectors; the part of g that is rounding there counts as 0.

    Args:
        linear: g, (..., d).
        matrix: A, (..., d, d).
        radius: rho.
    """
    values, vectors = torch.linalg.eigh(matrix)
    turned = (vectors.mT @ linear.unsqueeze(-1)).squeeze(-1)
    rounding = 4 * torch.finfo(linear.dtype).eps * linear.norm(dim=-1, keepdim=True)
    peak = diagonal_trust_region(torch.where(turned.abs() > rounding, turned, 0.0), values, radius)
    point = (vectors @ peak.point.unsqueeze(-1)).squeeze(-1)
    return Peak(peak.value, point, peak.multiplier, peak.hard)
