"""Layers with second derivatives in few operations, against autograd through their formulas written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.core import fused

F64 = torch.float64


def written_out(x: Tensor, w: Tensor, b: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * w + b


def test_gelu_and_its_derivatives() -> None:
    # Kills: 1 - x^2 for 2 - x^2, a density without its constant, a curvature that forgets the upstream gradient.
    x = (2 * torch.randn(7, 5, dtype=F64)).requires_grad_()
    torch.testing.assert_close(fused.gelu(x), F.gelu(x))
    assert torch.autograd.gradcheck(fused.gelu, x)
    assert torch.autograd.gradgradcheck(fused.gelu, x)


def test_layer_norm_and_its_derivatives() -> None:
    # Kills: any lost term of the three second derivatives; eps taken for 0.
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(2, 3, 4, generator=g, dtype=F64) * 0.3).requires_grad_()
    w, b = (torch.randn(4, generator=g, dtype=F64).requires_grad_() for _ in range(2))
    inputs = (x, w, b)

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return fused.layer_norm(x, (4,), w, b, 1e-2)

    torch.testing.assert_close(norm(*inputs), written_out(*inputs, 1e-2))
    assert torch.autograd.gradcheck(norm, inputs)
    assert torch.autograd.gradgradcheck(norm, inputs)

    def curvature(f: object) -> list[Tensor]:
        """A Hessian product of something nonlinear, twice on one graph."""
        gradient = torch.autograd.grad(f(*inputs).sin().pow(2).sum(), inputs, create_graph=True)  # type: ignore[operator]
        g = torch.Generator().manual_seed(1)
        return [
            h
            for _ in range(2)
            for h in torch.autograd.grad(
                gradient, inputs, [torch.randn(p.shape, generator=g, dtype=F64) for p in inputs], retain_graph=True
            )
        ]

    for ours, theirs in zip(curvature(norm), curvature(lambda *i: written_out(*i, 1e-2)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_other_layer_norms_go_the_usual_way() -> None:
    x = torch.randn(3, 2, 4)
    torch.testing.assert_close(fused.layer_norm(x, (2, 4)), F.layer_norm(x, (2, 4)))
    torch.testing.assert_close(fused.layer_norm(x, (4,), torch.ones(4)), F.layer_norm(x, (4,)))


def test_a_third_derivative_is_an_error() -> None:
    x = torch.randn(3, dtype=F64, requires_grad=True)
    (first,) = torch.autograd.grad(fused.gelu(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        torch.autograd.grad(second.sum(), x)


def test_products_through_the_kept_slope_are_those_of_torch() -> None:
    # Kills: the slope of GELU left out where a product goes back through the forward pass.
    torch.manual_seed(0)
    x, a, b = (torch.randn(s, dtype=torch.float64) for s in ((5, 3), (3, 4), (4, 1)))
    a.requires_grad_()
    found = []
    for f in (fused.gelu, torch.nn.functional.gelu):
        loss = (f(f(x @ a) @ b) ** 2).sum()
        (gradient,) = torch.autograd.grad(loss, a, create_graph=True)
        vectors = [torch.ones_like(a), torch.arange(12, dtype=torch.float64).reshape(3, 4)]
        found.append([torch.autograd.grad(gradient, a, v, retain_graph=True)[0] for v in vectors])
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)
