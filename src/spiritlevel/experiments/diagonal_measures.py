"""Sharpness of all networks of a zoo at once, in coordinates of their products.

With ``B`` the share by which both weights of a product move, ``beta`` goes to ``beta s(B)`` (see `CURVES`), and one
product of matrices gives the loss of all networks. Tests and reports hold these numbers against `worst_case` with
`Elementwise` and `Quotient`, which know nothing of it.

=================== ====================================================================================================
measure             what it is
=================== ====================================================================================================
average             adaptive average case, ``E L(w + rho |w| z) - L(w)``; exact
adaptive            adaptive worst case: ``s = (1 + B)^2``, ``sqrt(2) |B| <= rho``
geodesic            geodesic sharpness, inverse-Gram metric: ``s = exp(2 B)``, ``sqrt(2) |B| <= rho``
geodesic, Eq. 12    largest ``4 B.r + 4 B.M B`` over ``|B| <= rho`` with the true ``X^T X`` in M; exact
Eq. 12 as printed   the same with the paper's D, which takes ``X^T X = I`` and ``beta* = X^T y`` for granted; exact
cross, abs(B)       cross-Gram metric, ``s = 1 + 2 B``, in the ball ``|B| <= rho`` of the first one's forms; exact
cross               the same in its own ball, ``sqrt(2) |beta B| <= rho``, geodesics ending where a weight reaches 0
=================== ====================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spiritlevel.experiments.diagonal_forms import CURVES, Curve
from spiritlevel.experiments.diagonal_zoo import Zoo
from spiritlevel.experiments.trust_region import Peak, diagonal_trust_region, trust_region

__all__ = ["MEASURES", "average", "cross_in_its_ball", "in_shares", "shares_of"]

_STEPS = 400  # of an ascent: most are done after a tenth


def average(zoo: Zoo, rho: float) -> Tensor:
    """``sum_i |x_i|^2 beta_i^2 ((1 + rho^2)^2 - 1)``: both weights of a product move by independent shares.

    Exact, for products of independent Gaussians: the mean of the product does not move, its variance is
    ``beta^2 ((1 + rho^2)^2 - 1)``, and the loss is a square.
    """
    columns = zoo.x.square().sum(0)
    return (columns * zoo.beta.square()).sum(1) * ((1 + rho**2) ** 2 - 1)


def shares_of(zoo: Zoo, rho: float) -> Tensor:
    """The maximiser of the second-order model over ``sqrt(2) |B| <= rho``."""
    return _model(zoo, rho / math.sqrt(2)).point


def in_shares(zoo: Zoo, curve: Curve, rho: float) -> Tensor:
    """The largest rise along a curve over ``sqrt(2) |B| <= rho``: the best of two ascents.

    They start at the maximiser of the second-order model and opposite to it: where the labels are fitted the model is
    nearly even, and the exact maximum may lie on either side. Steps ``B <- P(g + tau B)``, which never fall once tau is
    large enough for ``f + tau |B|^2 / 2`` to be convex; tau is raised where one did.
    """
    radius = rho / math.sqrt(2)
    start = shares_of(zoo, rho)
    return torch.maximum(_ascend(zoo, curve, radius, start), _ascend(zoo, curve, radius, -start))


def _ascend(zoo: Zoo, curve: Curve, radius: float, b: Tensor) -> Tensor:
    def at(b: Tensor) -> tuple[Tensor, Tensor]:
        residual = (zoo.beta * curve.stretch(b)) @ zoo.x.T - zoo.y
        return residual.square().sum(1), 2 * (residual @ zoo.x) * zoo.beta * curve.slope(b)

    b = b * (radius / b.norm(dim=1, keepdim=True).clamp_min(torch.finfo(b.dtype).tiny))
    value, gradient = at(b)
    tau = torch.zeros_like(b[:, :1])
    for _ in range(_STEPS):
        trial = gradient + tau * b
        trial = trial * (radius / trial.norm(dim=1, keepdim=True).clamp_min(torch.finfo(b.dtype).tiny))
        new, slope = at(trial)
        rises = (new > value).unsqueeze(1)
        if not bool((new > value * (1 + 1e-13)).any()) and bool((tau > 0).any()):
            break
        size = gradient.norm(dim=1, keepdim=True) / radius
        tau = torch.where(rises, tau / 2, (2 * tau).clamp_min(size / 4))
        b, gradient = torch.where(rises, trial, b), torch.where(rises, slope, gradient)
        value = torch.maximum(value, new)
    return value - zoo.train_loss


def _gradient(zoo: Zoo) -> Tensor:
    """``X^T (X beta - y)``."""
    return (zoo.beta @ zoo.x.T - zoo.y) @ zoo.x


def _model(zoo: Zoo, radius: float) -> Peak:
    """Eq. 12 for any X: ``r = beta g`` and ``M = diag(beta g) + diag(beta) X^T X diag(beta)``."""
    r = zoo.beta * _gradient(zoo)
    scaled = zoo.x * zoo.beta.unsqueeze(1)
    return trust_region(4 * r, 8 * (torch.diag_embed(r) + scaled.mT @ scaled), radius)


def _as_printed(zoo: Zoo, rho: float) -> Tensor:
    best, beta = zoo.y @ zoo.x, zoo.beta
    return diagonal_trust_region(4 * beta * (beta - best), 8 * beta * (2 * beta - best), rho).value


def _cross_shares(zoo: Zoo, rho: float) -> Tensor:
    """``beta (1 + 2 B)`` is linear in B: a trust region, exactly, below the edge at ``|B| = 1/2``."""
    scaled = zoo.x * zoo.beta.unsqueeze(1)
    return trust_region(4 * zoo.beta * _gradient(zoo), 8 * scaled.mT @ scaled, rho).value


def cross_in_its_ball(zoo: Zoo, rho: float, steps: int = 400) -> Tensor:
    """The largest rise over ``|beta' - beta| <= sqrt(2) rho`` where no coordinate changes its sign.

    Geodesics of the cross-Gram metric are straight in beta, ``beta' = beta + sqrt(2) c`` with length ``|c|``, and end
    where a coordinate reaches 0. The loss is convex in beta, so that moving to the point of the set that is best for
    the gradient never falls. A local maximum, the best of three starts: along the gradient and along the top
    eigenvector of ``X^T X``, both ways.
    """
    beta, radius = zoo.beta, 2**0.5 * rho
    top = torch.linalg.svd(zoo.x, full_matrices=False)[2][0]
    best = torch.full_like(beta[:, 0], -torch.inf)
    for start in (_gradient(zoo), top.expand_as(beta), -top.expand_as(beta)):
        move = _farthest(start, beta, radius)
        for _ in range(steps):
            before = move
            move = _farthest(((beta + move) @ zoo.x.T - zoo.y) @ zoo.x, beta, radius)
            if bool((move - before).abs().max() <= 1e-13 * radius):
                break
        rise = ((beta + move) @ zoo.x.T - zoo.y).square().sum(1) - zoo.train_loss
        best = torch.maximum(best, rise)
    return best


def _farthest(direction: Tensor, beta: Tensor, radius: float) -> Tensor:
    """The move of at most this length, with ``beta (beta + move) >= 0``, that is largest along the direction.

    It is ``t direction``, cut off where beta reaches 0. Its length grows with t, and between two cut-offs in closed
    form.
    """
    sign = torch.where(beta < 0, -1.0, 1.0).to(beta)
    along, room = direction * sign, beta.abs()
    ends = torch.where(along < 0, room / along.abs().clamp_min(torch.finfo(beta.dtype).tiny), torch.inf)
    ends, order = ends.sort(dim=1)
    squares, rooms = along.square().gather(1, order), room.square().gather(1, order)
    free = squares.flip(1).cumsum(1).flip(1)  # of those not cut off before this end
    spent = rooms.cumsum(1) - rooms
    lengths = (spent + ends.square() * free).nan_to_num(nan=torch.inf)
    which = (lengths >= radius**2).double().argmax(1, keepdim=True)
    left = (radius**2 - spent.gather(1, which)).clamp_min(0.0)
    t = (left / free.gather(1, which).clamp_min(torch.finfo(beta.dtype).tiny)).sqrt()
    return torch.maximum(t * along, -room) * sign


MEASURES: Mapping[str, Callable[[Zoo, float], Tensor]] = {
    "average": average,
    "adaptive": lambda zoo, rho: in_shares(zoo, CURVES["straight"], rho),
    "geodesic": lambda zoo, rho: in_shares(zoo, CURVES["geodesic"], rho),
    "geodesic, Eq. 12": lambda zoo, rho: _model(zoo, rho).value,
    "Eq. 12 as printed": _as_printed,
    "cross, |B|": _cross_shares,
    "cross": cross_in_its_ball,
}
