"""Top eigenvalues of ``G^-1 H`` by Lanczos in the inner product of ``G``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.core.tensors import dot

__all__ = ["extreme_pencil_eigenvalues"]

Apply = Callable[[Tensor], Tensor]
Array = np.ndarray[Any, np.dtype[np.float64]]


def extreme_pencil_eigenvalues(
    h: Apply, g: Apply, solve: Apply, start: Tensor, k: int = 1, *, tolerance: float = 1e-3, products: int = 200
) -> tuple[list[float], Status, int]:
    """The ``k`` largest eigenvalues of ``H x = lambda G x``; with full reorthogonalisation, stopped by the residual.

    ``G^-1 H`` is symmetric in the inner product ``x^T G y``, so Lanczos runs there: each step takes a product with each
    matrix and a solve. (ARPACK's general mode needs the same and more steps, and has no torch tensors.)

    Args:
        h: product with a symmetric matrix.
        g: product with a positive definite one.
        solve: its inverse.
        start: with a part in every direction.
        k: how many.
        tolerance: wanted error relative to the largest magnitude (``residual^2 / gap`` where the gap is open).
        products: most products with ``H``.

    Returns:
        The values, largest first; how it ended; how many products it took.
    """
    room = min(products, start.numel())
    image = g(start)
    length = dot(start, image) ** 0.5
    basis, images = [start / length], [image / length]
    diagonal: list[float] = []
    beside: list[float] = []
    values = np.zeros(0)
    status = Status.BUDGET
    for j in range(room):
        w = solve(h(basis[j]))
        diagonal.append(dot(w, images[j]))
        for _ in range(2):
            overlaps = torch.stack(images) @ w
            w = w - overlaps @ torch.stack(basis)
        image = g(w)
        left = max(dot(w, image), 0.0) ** 0.5
        tridiagonal = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        values, vectors = np.linalg.eigh(tridiagonal)
        values, residuals = values[::-1], left * np.abs(vectors[-1, ::-1])
        scale = float(np.abs(values).max())
        closed = left <= 4 * torch.finfo(w.dtype).eps * max(scale, 1e-300) or j + 1 == start.numel()
        if closed or (len(values) > k and bool((_errors(values, residuals, k) <= tolerance * scale).all())):
            status = Status.CONVERGED
            break
        beside.append(left)
        basis.append(w / left)
        images.append(image / left)
    return [float(v) for v in values[:k]], status, len(diagonal)


def _errors(values: Array, residuals: Array, k: int) -> Array:
    """``residual^2 / gap`` to the next value below, where that is smaller than the residual."""
    gaps = np.maximum(values[:k] - values[1 : k + 1], 1e-300)
    errors: Array = np.minimum(residuals[:k], residuals[:k] ** 2 / gaps)
    return errors
