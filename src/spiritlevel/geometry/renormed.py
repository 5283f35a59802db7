"""Other norms of horizontal vectors, for the ablations of Hide & Seek (App. G and H): not invariant, and not needed.

The curves are those of the metric; what changes is which of them are as long as ``rho``. A norm at ``(G, H)`` is given
by a linear map from orthonormal coordinates to tangent vectors of each factor, ``x = s(z)``, equal to its adjoint:

============== ============================== ======================================
norm           squared length                 ``s(z)``
============== ============================== ======================================
elementwise    ``sum |x / w|^2``              ``|w| z``; a weight that is 0 does not move
euclidean      ``sum |x|^2``                  ``z``
relaxed        ``Tr((G*G + eps 1)^-1 x* x)``  ``z (G*G + eps 1)^(1/2)``
============== ============================== ======================================

Only horizontal ``x`` count, so ``z`` runs over a subspace: those for which the vertical part of ``s(z)`` is 0. With
``C`` the map from ``z`` to that part, in whitened h x h cores, it is ``1 - C* (C C*)^+ C``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.core.blocks import Pair
from spiritlevel.core.shapes import Flat
from spiritlevel.core.tensors import adjoint
from spiritlevel.geometry.base import PullBack, Weights
from spiritlevel.geometry.metrics import Curve
from spiritlevel.geometry.pairs import Pairs

__all__ = ["Norm", "RenormedPairs"]

Norm = Literal["metric", "elementwise", "euclidean"]
_RANK = 1e-12  # ours: eigenvalues of C C* below this, relative to the largest, are rounding


class _Relaxed:
    """``s`` of the relaxed norm on one factor, and its inverse."""

    def __init__(self, factor: Tensor, relaxation: float) -> None:
        gram = adjoint(factor) @ factor
        values, vectors = torch.linalg.eigh(gram)
        roots = (values.clamp_min(0) + relaxation).sqrt().to(gram.dtype).unsqueeze(-2)
        self._root, self._back = (vectors * roots) @ adjoint(vectors), (vectors / roots) @ adjoint(vectors)
        self.moves = torch.ones_like(_reals(factor))

    def apply(self, z: Tensor) -> Tensor:
        tangent: Tensor = z @ self._root
        return tangent

    def invert(self, x: Tensor) -> Tensor:
        coordinates: Tensor = x @ self._back
        return coordinates


class _Entrywise:
    """``s`` of the norms that take each real number of a factor by itself."""

    def __init__(self, sizes: Tensor) -> None:
        self._sizes = sizes
        self._inverse = torch.where(sizes > 0, 1 / torch.where(sizes > 0, sizes, 1), 0)
        self.moves = (sizes > 0).to(sizes.dtype)

    def apply(self, z: Tensor) -> Tensor:
        return _times(self._sizes, z)

    def invert(self, x: Tensor) -> Tensor:
        return _times(self._inverse, x)


def _scale(factor: Tensor, norm: Norm, relaxation: float) -> _Relaxed | _Entrywise:
    if norm == "metric":
        return _Relaxed(factor, relaxation)
    sizes = _reals(factor).abs()
    return _Entrywise(sizes if norm == "elementwise" else torch.ones_like(sizes))


class RenormedPairs(Pairs):
    """Pairs whose horizontal vectors are measured by another norm at the weights as they are.

    Cost: about ``2 h^2`` readings of the factors when it is made, and ``4 h^4`` numbers kept for each head.
    """

    def __init__(
        self,
        weights: Weights,
        blocks: Sequence[Pair],
        metric: str,
        curve: Curve,
        dtype: torch.dtype,
        norm: Norm,
        relaxation: float,
    ) -> None:
        super().__init__(weights, blocks, metric, curve, dtype)
        wide = self._passage.left.dtype
        factors = [f.to(wide) for f in self._read(self._weights)]
        self._scales = [_scale(f, norm, relaxation) for f in factors]
        one = torch.eye(factors[0].shape[-1], dtype=wide, device=factors[0].device).expand_as(self._passage.left)
        self._white = self._metric.whiten(self._passage, one, one)  # whitening multiplies from the right
        self._bases = [w.to(wide) for w in (self.gauge.left, self.gauge.right)]
        self._inverse, ranks = self._pseudo_inverse()
        each = sum(s.moves.flatten(1).sum(1) for s in self._scales) - ranks
        self._dimensions = {b.name: int(d.sum()) for b, d in zip(blocks, each.split(self._heads), strict=True)}
        self.dimension = sum(self._dimensions.values())

    def _whitened(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened coordinates of the tangent vector with these."""
        pieces = zip(self._matrices(z), self._scales, self._white, strict=True)
        a, b = (scale.apply(m.to(white.dtype)) @ white for m, scale, white in pieces)
        return self.gauge.living(a), self.gauge.living(b)

    def _vertical(self, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """What is vertical of whitened cores: an orthogonal projection."""
        flat_alpha, flat_beta = self._metric._horizontal(self.gauge, alpha, beta)
        return alpha - flat_alpha, beta - flat_beta

    def _defect(self, z: Tensor) -> Tensor:
        """``C z``: (heads, 2 h^2), real."""
        cores = [adjoint(w) @ c for w, c in zip(self._bases, self._whitened(z), strict=True)]
        return _reals(torch.stack(self._vertical(*cores), dim=1)).flatten(1)

    def _defect_adjoint(self, c: Tensor) -> Tensor:
        """``C* c``."""
        h = self._left[-1]
        cores = _unreal(c, (len(c), 2, h, h), self._bases[0].is_complex())
        pieces = zip(self._bases, self._vertical(cores[:, 0], cores[:, 1]), self._white, self._scales, strict=True)
        a, b = (scale.apply(self.gauge.living(w @ x) @ adjoint(white)) for w, x, white, scale in pieces)
        return self._flat(a, b)

    def _pseudo_inverse(self) -> tuple[Tensor, Tensor]:
        """``(C C*)^+`` and its rank, head by head."""
        width = self._left[-1] ** 2 * (4 if self._bases[0].is_complex() else 2)
        unit = torch.eye(width, dtype=torch.float64, device=self._bases[0].device)
        columns = [self._defect(self._defect_adjoint(e.expand(self._left[0], -1))) for e in unit]
        values, vectors = torch.linalg.eigh(torch.stack(columns, dim=-1))
        kept = values > _RANK * values.amax(-1, keepdim=True)
        inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0).unsqueeze(-2)
        return (vectors * inverse) @ adjoint(vectors), kept.sum(-1)

    def project(self, z: Flat) -> Tensor:
        wide = z.to(torch.float64)
        moving = self._flat(*(_times(s.moves, m) for s, m in zip(self._scales, self._matrices(wide), strict=True)))
        correction = (self._inverse @ self._defect(moving).unsqueeze(-1)).squeeze(-1)
        return (moving - self._defect_adjoint(correction)).to(z.dtype)

    def _carried(self, z: Tensor) -> Tensor:
        """Coordinates of the metric itself; linear."""
        return self._flat(*self._whitened(self.project(z))).to(z.dtype)

    def write(self, z: Flat, into: dict[str, Tensor]) -> None:
        super().write(self._carried(z), into)

    def evaluate(self, z: Flat, into: dict[str, Tensor]) -> PullBack:
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            carried = self._carried(point)
        back = super().evaluate(carried.detach(), into)

        def pull_back(gradient: Weights, slot: Tensor) -> None:
            covector = torch.empty_like(carried)
            back(gradient, covector)
            slot.copy_(torch.autograd.grad(carried, point, covector, retain_graph=True)[0])

        return pull_back

    def coordinates(self, tangent: Weights) -> Tensor:
        flat: dict[str, Tensor] = {}
        super().tangent(super().project(super().coordinates(tangent)), flat)
        factors = (t.to(self._passage.left.dtype) for t in self._read(flat, tangent=True))
        found = self._flat(*(s.invert(x) for s, x in zip(self._scales, factors, strict=True)))
        return found.to(self.gauge.values.dtype)

    def stopped(self, z: Flat) -> int:
        return super().stopped(self._carried(z))

    def tangent(self, z: Flat, into: dict[str, Tensor]) -> None:
        pieces = zip(self._matrices(self.project(z).to(torch.float64)), self._scales, strict=True)
        left, right = (scale.apply(m) for m, scale in pieces)
        self._spread(left, right, into, tangent=True)


def _reals(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def _times(sizes: Tensor, x: Tensor) -> Tensor:
    """Each real number of ``x`` by its own."""
    return torch.view_as_complex(sizes * _reals(x)) if x.is_complex() else sizes * x


def _unreal(c: Tensor, shape: tuple[int, ...], is_complex: bool) -> Tensor:
    return torch.view_as_complex(c.reshape(*shape, 2)) if is_complex else c.reshape(shape)
