"""The Riemannian Hessian away from minima, with its Christoffel term: dense, and as products.

``H_ij = d_i d_j L - Gamma^k_ij d_k L``,  ``Gamma^k_ij = G^kl (d_i G_lj + d_j G_li - d_l G_ij) / 2``.

The ordinary Hessian is a bilinear form at critical points only; anywhere else it depends on the coordinates. This one
moves by ``J^-T H J^-1`` everywhere (paper, Eqs. 6 to 8). In a chart of `Geometry.chart` it is the ordinary Hessian,
which is how the measures of this library get it without any of this; these functions are for a metric given as a
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jvp, vjp

from spiritlevel.errors import ReparametrisationError
from spiritlevel.reparam.flat import Layout
from spiritlevel.reparam.maps import Reparametrisation

__all__ = ["christoffel", "riemannian_hessian", "riemannian_hessian_product", "transported_field"]

Function = Callable[[Tensor], Tensor]
"""A scalar function of a flat point."""
Matrices = Callable[[Tensor], Tensor]
"""The dense metric at a flat point."""
Field = Callable[[Tensor, Tensor], Tensor]
"""``(point, v) -> G(point) v``, differentiable in both."""


def christoffel(metric: Matrices, point: Tensor) -> Tensor:
    """``Gamma[k, i, j]`` of a dense metric.

    Args:
        metric: the matrix at a flat point, differentiable.
        point: where.

    >>> polar = lambda p: torch.diag(torch.stack([torch.ones(()), p[0] ** 2]))  # dr^2 + r^2 da^2
    >>> float(christoffel(polar, torch.tensor([2.0, 0.3]))[0, 1, 1])  # -r
    -2.0
    """
    g = metric(point)
    d = jacfwd(metric)(point)  # d[i, j, l] = d_l G_ij
    lower = (d.permute(0, 2, 1) + d - d.permute(2, 0, 1)) / 2  # [l, i, j]
    _positive(g)
    found: Tensor = torch.linalg.solve(g, lower.reshape(len(g), -1)).view_as(lower)
    return found


def riemannian_hessian(function: Function, metric: Matrices, point: Tensor) -> Tensor:
    """The dense ``d_i d_j f - Gamma^k_ij d_k f``.

    Args:
        function: of a flat point.
        metric: the matrix there, differentiable.
        point: where.
    """
    second: Tensor = hessian(function)(point)
    return second - torch.einsum("kij,k->ij", christoffel(metric, point), grad(function)(point))


def riemannian_hessian_product(
    function: Function, metric: Field, solve: Function, point: Tensor, vector: Tensor
) -> Tensor:
    """``H v`` without any matrix.

    With ``u = G^-1 df`` the Christoffel term is ``(grad(u.Gv) + D_v(Gu) - D_u(Gv)) / 2``. Costs a Hessian product of
    the function, three differentiated products with the metric, and a solve.

    Args:
        function: of a flat point.
        metric: ``(point, v) -> G(point) v``.
        solve: ``w -> G^-1 w`` at the point.
        point: where.
        vector: ``v``.
    """
    found: Any = jvp(grad(function), (point,), (vector,))
    slope, bend = found
    u = solve(slope)
    along: Tensor = grad(lambda p: torch.dot(u, metric(p, vector)))(point)
    forth = jvp(lambda p: metric(p, u), (point,), (vector,))[1]
    back = jvp(lambda p: metric(p, vector), (point,), (u,))[1]
    product: Tensor = bend - (along + forth - back) / 2
    return product


def transported_field(change: Reparametrisation, metric: Field, old: Layout, new: Layout) -> Field:
    """The metric ``J^-T G J^-1`` as a differentiable function of the new point.

    Args:
        change: ``theta -> psi``.
        metric: in ``theta``.
        old: of ``theta``.
        new: of ``psi``.
    """

    def back(psi: Tensor) -> Tensor:
        return old.flat(change.inverse(new.named(psi)))

    def moved(psi: Tensor, v: Tensor) -> Tensor:
        found: Any = jvp(back, (psi,), (v,))
        theta, pushed = found
        pulled: Tensor = vjp(back, psi)[1](metric(theta, pushed))[0]
        return pulled

    return moved


def _positive(matrix: Tensor) -> None:
    try:
        low = float(torch.linalg.eigvalsh(matrix)[0])
        high = float(matrix.diagonal().max())
    except RuntimeError:  # inside a transform
        return
    if not low > 1e-14 * high:
        raise ReparametrisationError(
            f"expected a positive definite metric, got a smallest eigenvalue of {low:.3g}: there are no Christoffel "
            "symbols where it is singular; add damping"
        )
