"""The canonical point of an orbit: where every quotient computation happens.

A pair enters the network only through ``M = G H^*``. With QR of both factors and the small singular value decomposition
``R_G R_H^* = u diag(s) v^*``, put ``U = Q_G u`` and ``V = Q_H v``. Then ``M = U diag(s) V^*``, and ``(U, V diag(s))``
is a point of the same orbit in which both factors have orthogonal columns. No Gram matrix is formed or inverted, so
nearly singular heads need no relaxation parameter.

Singular values below the rounding of the stored weights are 0, and their directions do not move: the measure is then
the one on the matrices of that rank, it depends on ``M`` alone, and it is the same on the whole orbit. (The
elementwise metric treats weights that are exactly 0 in the same way.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.shapes import Matrices, Values
from spiritlevel.core.tensors import adjoint

__all__ = ["Gauge", "Passage", "canonical_gauge"]

_ROUNDING = 4.0  # ours: multiples of eps |G| |H| below which a singular value is rounding (worst seen in tests: 0.6)


@dataclass(frozen=True)
class Passage:
    """The h x h matrices between a point of an orbit and its canonical one.

    Attributes:
        left: with ``G = U left``.
        right: with ``H = V right``; ``left right^* = diag(s)``.
    """

    left: Matrices
    right: Matrices


@dataclass(frozen=True)
class Gauge:
    """The canonical point, all heads at once.

    Attributes:
        left: U, orthonormal columns.
        right: V, orthonormal columns.
        values: s, descending, exactly 0 where the head has no rank.
        full: whether no singular value is 0.
    """

    left: Matrices
    right: Matrices
    values: Values
    full: bool

    @property
    def alive(self) -> Tensor:
        """1.0 for directions with a singular value, 0.0 for those without; (heads, 1, h)."""
        return (self.values > 0).to(self.values.dtype).unsqueeze(-2)

    def living(self, x: Matrices) -> Tensor:
        """``x`` with the columns of dead directions set to 0."""
        return x if self.full else x * self.alive

    def passage(self, left: Matrices, right: Matrices) -> Passage:
        """From another point ``(G, H)`` of the orbit to this one, in float64."""
        wide = torch.complex128 if left.is_complex() else torch.float64
        return Passage(*(adjoint(w.to(wide)) @ x.to(wide) for w, x in ((self.left, left), (self.right, right))))

    @property
    def smallest(self) -> float:
        """The smallest singular value that is not 0, over all heads."""
        alive = self.values[self.values > 0]
        return float(alive.min()) if alive.numel() else float("inf")

    @property
    def rank(self) -> Tensor:
        """Of each head."""
        return (self.values > 0).sum(-1)


def canonical_gauge(left: Matrices, right: Matrices, dtype: torch.dtype) -> Gauge:
    """Factor ``G`` and ``H`` in float64, once, and round the result to ``dtype``.

    Args:
        left: G, (heads, n, h).
        right: H, (heads, m, h).
        dtype: of the result; the rank is judged by the rounding of the factors as they are stored.
    """
    eps = max(torch.finfo(left.dtype).eps, torch.finfo(right.dtype).eps)
    eps = min(eps, torch.finfo(torch.float32).eps)  # a half-precision weight is taken as the exact number it is
    wide = torch.complex128 if left.is_complex() else torch.float64
    g, h = left.detach().to(wide), right.detach().to(wide)
    q_g, r_g = _orthogonal(g)
    q_h, r_h = _orthogonal(h)
    u, s, v_adjoint = torch.linalg.svd(r_g @ adjoint(r_h), full_matrices=False)
    size = torch.linalg.matrix_norm(g) * torch.linalg.matrix_norm(h)
    s = torch.where(s > _ROUNDING * eps * size.unsqueeze(-1), s, torch.zeros_like(s))
    narrow = _complex(dtype) if left.is_complex() else dtype
    u, v = q_g @ u, q_h @ adjoint(v_adjoint)
    # Columns of U and V may turn together. For width 1 only positive scales are symmetries of a ReLU: U points along G,
    # not against it. Otherwise the largest entry of each column of U is positive, so that a random point is the same
    # one on the whole orbit.
    along = adjoint(u) @ g if g.shape[-1] == 1 else u.gather(-2, u.abs().argmax(-2, keepdim=True)).conj()
    turn = torch.where(along == 0, torch.ones_like(along), along / along.abs())
    u, v = u * turn, v * turn
    return Gauge(
        left=u.to(narrow),
        right=v.to(narrow),
        values=s.to(dtype),
        full=bool((s > 0).all()),
    )


def _orthogonal(x: Tensor) -> tuple[Tensor, Tensor]:
    """QR with h columns, also where there are fewer rows than columns: then some columns of Q are 0."""
    q, r = torch.linalg.qr(x)
    missing = x.shape[-1] - q.shape[-1]
    if missing:
        q = torch.nn.functional.pad(q, (0, missing))
        r = torch.nn.functional.pad(r, (0, 0, 0, missing))
    return q, r


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype == torch.float64 else torch.complex64
