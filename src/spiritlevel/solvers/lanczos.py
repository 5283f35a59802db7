"""Krylov methods for a symmetric matrix known by its products: extreme eigenpairs and Gauss quadrature.

Both keep a full basis and orthogonalise against all of it, twice where needed, with sums in short float32 runs that are
added in float64. Written here because kept libraries stop by a change of value or run a fixed number of steps: a stop
by the residual needs 2 to 3 times fewer products than ARPACK, and says how good the value is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core import spread
from spiritlevel.core.results import Status
from spiritlevel.core.shapes import Flat
from spiritlevel.core.spread import norm

__all__ = ["Apply", "Eigenpairs", "Quadrature", "Step", "Which", "extreme_eigenpairs", "quadrature"]

Apply = Callable[[Tensor], Tensor]
"""The product with one flat vector."""
Step = Callable[[str], None]
"""Called after each product, with the current estimate in words."""
Which = Literal["top", "bottom", "magnitude"]
Array = np.ndarray[Any, np.dtype[np.float64]]

_CHUNK = 1 << 16  # entries summed in the vectors' own precision before float64 takes over
_ROWS = 4  # vectors that memory is taken for at once
_TWICE = 0.7  # orthogonalise again where less than this share is left (Daniel et al. 1976: 1/sqrt 2)


class _Basis:
    """Orthonormal vectors, and what it takes to add one. Memory is taken for a few of them at a time."""

    def __init__(self, first: Tensor) -> None:
        self._pieces: list[Tensor] = []
        self.count = 0
        self.append(first / norm(first))

    def __getitem__(self, i: int) -> Tensor:
        return self._pieces[i // _ROWS][i % _ROWS]

    def _filled(self) -> Iterator[tuple[slice, Tensor]]:
        """Which vectors, and they."""
        for start, piece in zip(range(0, self.count, _ROWS), self._pieces, strict=False):
            stop = min(start + _ROWS, self.count)
            yield slice(start, stop), piece[: stop - start]

    def against(self, w: Tensor) -> Array:
        """Inner products with all vectors."""
        total = np.zeros(self.count)
        for at, rows in self._filled():
            for i in range(0, w.numel(), _CHUNK):
                total[at] += (rows[:, i : i + _CHUNK] @ w[i : i + _CHUNK]).double().cpu().numpy()
        return spread.total(total)

    def combine(self, coefficients: Array) -> Tensor:
        """Linear combinations of the vectors; ``(wanted, count)`` to ``(wanted, size)``."""
        c = torch.from_numpy(np.ascontiguousarray(coefficients)).to(self._pieces[0])
        total = c.new_zeros(len(c), self._pieces[0].shape[1])
        for at, rows in self._filled():
            total.addmm_(c[:, at], rows)
        return total

    def remove(self, w: Tensor) -> tuple[Array, float]:
        """Make ``w`` orthogonal to all vectors, in place; its coefficients, and the length that is left."""
        before, h = norm(w), self.against(w)
        w -= self.combine(h[None])[0]
        left = norm(w)
        if left < _TWICE * before:
            again = self.against(w)
            w -= self.combine(again[None])[0]
            h, left = h + again, norm(w)
        return h, left

    def append(self, w: Tensor) -> None:
        """Add a vector that is orthogonal and of length one already."""
        if self.count == _ROWS * len(self._pieces):
            self._pieces.append(w.new_empty((_ROWS, w.numel())))
        self.count += 1
        self[self.count - 1].copy_(w)

    def restart(self, coefficients: Array, following: Tensor) -> None:
        """Keep combinations of the vectors, then one more."""
        kept = self.combine(coefficients)
        self.count = 0
        for row in (*kept, following):
            self.append(row)


@dataclass(frozen=True)
class Eigenpairs:
    """Extreme eigenpairs.

    Attributes:
        values: those wanted, the most extreme first.
        vectors: one row for each.
        residuals: ``|A x - lambda x|``: an eigenvalue lies within that distance.
        errors: estimate of the error of each value (``residual^2 / gap`` where the gap is open, else the residual).
        products: how many were needed.
        status: converged, or why not.
    """

    values: Array
    vectors: Tensor
    residuals: Array
    errors: Array
    products: int
    status: Status


def extreme_eigenpairs(
    apply: Apply,
    start: Flat,
    k: int = 1,
    which: Which = "top",
    *,
    tolerance: float = 1e-3,
    products: int = 200,
    room: int | None = None,
    dimension: int | None = None,
    seconds: float | None = None,
    step: Step = lambda note: None,
) -> Eigenpairs:
    """Thick-restart Lanczos, stopped when every wanted value is known to ``tolerance`` relative to the largest.

    A value that occurs several times is found once: one Krylov space holds one vector of it.

    Args:
        apply: product with the matrix.
        start: where the Krylov space begins; it should have a part in every direction.
        k: how many pairs.
        which: largest (``top``), smallest (``bottom``) or largest in ``magnitude``.
        tolerance: estimated error of a value relative to the largest magnitude seen.
        products: most products.
        room: most vectors kept before a restart.
        dimension: of the space the matrix acts on, where ``start`` lies in a part of the coordinates.
        seconds: stop after this time with what there is.
        step: called after each product.
    """
    dimension = start.numel() if dimension is None else dimension
    room = min(dimension, max(2 * k + 20, 3 * k, 40) if room is None else max(room, k + 2))
    basis, small = _Basis(start), np.zeros((room, room))
    began, used, status = time.monotonic(), 0, Status.BUDGET
    chosen = _Ritz.none()
    try:
        while used < products and (not used or seconds is None or not spread.same(time.monotonic() - began >= seconds)):
            j = basis.count - 1
            w = apply(basis[j]).clone()
            used += 1
            h, left = basis.remove(w)
            small[: j + 1, j] = small[j, : j + 1] = h
            chosen = _Ritz.of(small[: j + 1, : j + 1], left, k, which)
            step(chosen.note())
            closed = left <= 4 * torch.finfo(w.dtype).eps * chosen.scale or j + 1 >= dimension
            if closed or chosen.reached(k, tolerance):
                status = Status.CONVERGED
                break
            w /= left
            if basis.count == room:
                kept = _Ritz.of(small, left, min(k + room // 4, room - 1), which)
                basis.restart(kept.coefficients, w)
                small[:] = 0
                np.fill_diagonal(small[: len(kept.values), : len(kept.values)], kept.values)
            else:
                basis.append(w)
    except KeyboardInterrupt:
        if not used:
            raise
        status = Status.STOPPED
    basis.count = min(basis.count, chosen.coefficients.shape[1])
    vectors = basis.combine(chosen.coefficients)
    return Eigenpairs(chosen.values, vectors, chosen.residuals, chosen.errors, used, status)


@dataclass(frozen=True)
class _Ritz:
    """The wanted eigenpairs of the small matrix, and how good they are for the large one."""

    values: Array
    coefficients: Array  # one row for each value
    residuals: Array
    errors: Array
    scale: float

    @classmethod
    def none(cls) -> _Ritz:
        empty = np.zeros(0)
        return cls(empty, np.zeros((0, 1)), empty, empty, 0.0)

    @classmethod
    def of(cls, small: Array, left: float, k: int, which: Which) -> _Ritz:
        values, vectors = np.linalg.eigh(small)
        key = {"top": -values, "bottom": values, "magnitude": -np.abs(values)}[which]
        order = np.argsort(key, kind="stable")[:k]
        residuals = np.abs(left * vectors[-1, order])
        errors = residuals.copy()
        for i, n in enumerate(order):
            others = np.delete(values, n)
            gap = float(np.min(np.abs(others - values[n]))) if len(others) else 0.0
            if gap > 2 * residuals[i]:
                errors[i] = residuals[i] ** 2 / (gap - residuals[i])
        return cls(values[order], vectors[:, order].T, residuals, errors, float(np.max(np.abs(values))))

    def reached(self, k: int, tolerance: float) -> bool:
        return len(self.values) == k and bool(np.all(self.errors <= tolerance * self.scale))

    def note(self) -> str:
        return f"{self.values[0]:.4g} ± {self.errors[0]:.1g}"


@dataclass(frozen=True)
class Quadrature:
    """Gauss quadrature of the spectrum, one row of nodes and weights for each probe.

    Attributes:
        nodes: Ritz values; each array is one probe.
        weights: of the nodes, adding up to 1 in each probe.
        dimension: of the space: the trace of the identity.
        products: how many were needed.
        status: exact where one probe saw a space of one dimension, else an estimate, or stopped.
    """

    nodes: tuple[Array, ...]
    weights: tuple[Array, ...]
    dimension: int
    products: int
    status: Status

    def traces(self, f: Callable[[Array], Array]) -> Array:
        """Each probe's estimate of ``tr f(A)``."""
        return np.array([self.dimension * float(w @ f(x)) for x, w in zip(self.nodes, self.weights, strict=True)])

    def trace(self, f: Callable[[Array], Array]) -> tuple[float, float | None]:
        """Estimate of ``tr f(A)`` and its standard error (None for one probe)."""
        each = self.traces(f)
        error = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else None
        return float(each.mean()), error

    @property
    def extremes(self) -> tuple[float, float]:
        """The smallest and largest node."""
        return min(float(x.min()) for x in self.nodes), max(float(x.max()) for x in self.nodes)

    def shortened(self) -> Quadrature:
        """The same after two thirds of the steps, to see how far a result has settled."""
        fewer = [_fewer(x, w) for x, w in zip(self.nodes, self.weights, strict=True)]
        return replace(self, nodes=tuple(x for x, _ in fewer), weights=tuple(w for _, w in fewer))


def quadrature(
    apply: Apply,
    probes: Iterator[Tensor],
    steps: int,
    dimension: int,
    *,
    seconds: float | None = None,
    step: Step = lambda note: None,
) -> Quadrature:
    """Stochastic Lanczos quadrature with full reorthogonalisation.

    ``tr f(A) = dimension * E u^T f(A) u`` over unit vectors ``u`` in a random direction, and ``u^T f(A) u`` is
    ``sum w_i f(x_i)`` over the eigenvalues of the Lanczos matrix, exact for polynomials of degree ``2 steps - 1``.

    Args:
        apply: product with the matrix.
        probes: random directions of the space, rotation-invariant.
        steps: Lanczos steps for each.
        dimension: of the space.
        seconds: stop after this time with what there is.
        step: called after each product.
    """
    nodes: list[Array] = []
    weights: list[Array] = []
    began, used = time.monotonic(), 0
    status, small = Status.ESTIMATE, _Small()

    def keep(found: _Small) -> None:
        x, w = found.nodes()
        nodes.append(x)
        weights.append(w)

    try:
        for probe in probes:
            if nodes and seconds is not None and spread.same(time.monotonic() - began > seconds):
                status = Status.BUDGET
                break
            small.clear()
            _tridiagonal(apply, probe, min(steps, dimension), small, lambda: step(_progress(small, nodes, weights)))
            used += small.count
            keep(small)
    except KeyboardInterrupt:
        used += small.count
        if not nodes:  # then an unfinished probe is better than nothing
            if not small.count:
                raise
            keep(small)
        status = Status.STOPPED
    return Quadrature(tuple(nodes), tuple(weights), dimension, used, status)


@dataclass
class _Small:
    """The Lanczos matrix as far as it has come."""

    diagonal: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.diagonal)

    def clear(self) -> None:
        self.diagonal, self.beside = [], []

    def nodes(self) -> tuple[Array, Array]:
        """Gauss nodes and weights."""
        off = self.beside[: self.count - 1]
        x, s = np.linalg.eigh(np.diag(self.diagonal) + np.diag(off, 1) + np.diag(off, -1))
        return x, s[0] ** 2


def _progress(small: _Small, nodes: list[Array], weights: list[Array]) -> str:
    """The mean eigenvalue so far with its error over probes, and the range of the probe at hand."""
    x, w = small.nodes()
    means = np.array([float(v @ y) for y, v in zip([*nodes, x], [*weights, w], strict=True)])
    error = f" ± {means.std(ddof=1) / math.sqrt(len(means)):.2g}" if len(means) > 1 else ""
    return f"mean {means.mean():.4g}{error}, from {x[0]:.4g} to {x[-1]:.4g}"


def _tridiagonal(apply: Apply, start: Tensor, steps: int, small: _Small, step: Callable[[], None]) -> None:
    """Fill in the Lanczos matrix; fewer steps where the Krylov space closes."""
    basis = _Basis(start)
    largest = 0.0
    for j in range(steps):
        w = apply(basis[j]).clone()
        h, left = basis.remove(w)
        small.diagonal.append(float(h[j]))
        largest = max(largest, abs(float(h[j])), left)
        step()
        if j + 1 == steps or left <= 4 * torch.finfo(w.dtype).eps * largest:
            return
        small.beside.append(left)
        basis.append(w / left)


def _fewer(nodes: Array, weights: Array) -> tuple[Array, Array]:
    """Lanczos on the diagonal matrix of the nodes, from the root weights, stopped earlier."""
    steps = max(1, 2 * len(nodes) // 3)
    basis, v, diagonal, beside = [], np.sqrt(weights / weights.sum()), [], []
    for j in range(steps):
        basis.append(v)
        w = nodes * v
        diagonal.append(float(v @ w))
        for _ in range(2):
            w = w - sum((u @ w) * u for u in basis)
        left = float(np.linalg.norm(w))
        if j + 1 == steps or left <= 1e-14 * float(np.abs(nodes).max()):
            break
        beside.append(left)
        v = w / left
    x, s = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return x, s[0] ** 2
