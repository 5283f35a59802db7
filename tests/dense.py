"""Dense curvature from definitions, for comparison: forward over reverse on written-out layers, nothing of the library.

``torch.func.hessian`` differentiates forward over reverse, while the library goes reverse over reverse. torch 2.13 gets
that nesting wrong at fused normalisation layers, and both at fused weight norm, so the layers are written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

import oracles
from test_geodesic_sharpness import Tiny, blocks_by_hand


def _layer_norm(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    return centred / (centred.pow(2).mean(axes, keepdim=True) + eps).sqrt() * weight + bias


class WrittenOut(TorchFunctionMode):
    def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if f is nn.functional.layer_norm:
            return _layer_norm(*args, **(kwargs or {}))
        if f is torch._weight_norm:
            v, g = args[:2]
            return g * v / v.flatten(1).norm(dim=1).view(-1, *[1] * (v.dim() - 1))
        return f(*args, **(kwargs or {}))


def dense_hessian(f: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH), WrittenOut():
        return hessian(f)(at)


def flat(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([w.detach().reshape(-1) for w in weights.values()])


def loss_of(
    model: nn.Module, weights: Mapping[str, Tensor], loss: Callable[[Any], Tensor]
) -> Callable[[Tensor], Tensor]:
    """``loss`` of what ``functional_call`` gives, as a function of the flat measured weights."""
    sizes = [w.numel() for w in weights.values()]
    others = {n: p.detach() for n, p in model.named_parameters() if n not in weights}

    def f(w: Tensor) -> Tensor:
        parts = others | {n: p.view_as(v) for (n, v), p in zip(weights.items(), w.split(sizes), strict=True)}
        return loss(lambda *args, **kwargs: functional_call(model, parts, args, kwargs, tie_weights=True))

    return f


def riemannian_spectrum(model: Tiny, batch: tuple[Tensor, Tensor], metric: str) -> Tensor:
    """Eigenvalues of ``d_i d_j L - Gamma^k_ij d_k L`` in a horizontal orthonormal basis, in the user's gauge.

    Pairs by hand with Christoffel symbols from the dense metric; other weights move along straight relative lines.
    """
    pairs = blocks_by_hand(model, "attention", model.attention.num_heads)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    inside = {n for block in pairs for n in block.write(block.points)}
    rest = {n: w for n, w in weights.items() if n not in inside}
    points = torch.cat([block.points.reshape(-1) for block in pairs] + [flat(rest)])
    sizes = [block.points.numel() for block in pairs] + [w.numel() for w in rest.values()]

    def loss(p: Tensor) -> Tensor:
        pieces, moved = p.split(sizes), {}
        for block, piece in zip(pairs, pieces, strict=False):
            moved |= block.write(piece.view_as(block.points))
        moved |= {n: piece.view_as(w) for (n, w), piece in zip(rest.items(), pieces[len(pairs) :], strict=True)}
        return nn.functional.cross_entropy(functional_call(model, moved, (batch[0],)), batch[1])

    second, slope = hessian(loss)(points), torch.func.grad(loss)(points)
    columns, start = [], 0
    for block in pairs:
        for point in block.points:
            stop = start + block.shape.size
            symbols = oracles.christoffel(metric, block.shape, point)
            second[start:stop, start:stop] -= torch.einsum("kij,k->ij", symbols, slope[start:stop])
            basis = oracles.horizontal_basis(metric, block.shape, point)
            columns.append(torch.nn.functional.pad(basis, (0, 0, start, len(points) - stop)))
            start = stop
    columns.append(torch.diag(torch.cat([torch.zeros(start), flat(rest).abs()]).double())[:, start:])
    basis = torch.cat(columns, dim=1)
    return torch.linalg.eigvalsh(basis.mT @ second @ basis)
