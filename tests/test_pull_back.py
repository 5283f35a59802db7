"""Derivatives through charts: `Chart.pull_back` against autograd, second derivatives against a Riemannian Hessian."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import oracles
from oracles import Shape
from spiritlevel import Elementwise, Euclidean, Problem, Quotient, find_symmetries
from spiritlevel.geometry import GEOMETRIES, METRICS, Chart, Geometry
from spiritlevel.problem import Objective
from test_geometry import CASES, CURVES, Case, deficient, fused, mixed_weights, normal, one_pair, registered, smooth

F64 = torch.float64

metrics = pytest.mark.parametrize("metric", list(METRICS))
curves = pytest.mark.parametrize("curve", CURVES)


def loss(weights: dict[str, Tensor]) -> Tensor:
    """A smooth function of all weights: of M where there are pairs, of the rest entry by entry."""
    g, h = weights["g"], weights["h"]
    total = smooth(g @ h.mT)
    return total + sum((torch.sin(0.7 * w) * w).sum() for n, w in weights.items() if n not in ("g", "h"))


def by_both(chart: Chart, z: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient by autograd through `weights`, and by `pull_back` from the one with respect to the weights."""
    point = z.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(chart.weights(point)), point)
    weights = {n: w.detach().requires_grad_() for n, w in chart.weights(z).items()}
    names = list(weights)
    gradient = dict(zip(names, torch.autograd.grad(loss(weights), [weights[n] for n in names]), strict=True))
    return wanted, chart.evaluate(z)[1](gradient)


@metrics
@curves
@pytest.mark.parametrize("rest", [Elementwise(), Elementwise("geodesic"), Euclidean()], ids=str)
def test_pull_back_is_the_gradient_through_the_weights(metric: str, curve: str, rest: Geometry) -> None:
    # Kills: covectors handed to the wrong factor, the projection forgotten on the way back, a scale applied twice.
    weights = mixed_weights()
    chart = Quotient(metric, curve=curve, blocks=[one_pair(Shape(4, 3, 2), 2)], rest=rest).chart(weights)
    for length in (0.0, 0.1):
        z = chart.gaussian(torch.Generator().manual_seed(3)) * length
        wanted, got = by_both(chart, z)
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(chart.project(got), got, rtol=1e-10, atol=1e-11)  # f is constant off the space


@pytest.mark.parametrize("name", list(GEOMETRIES))
def test_pull_back_of_every_registered_geometry(name: str) -> None:
    # Kills: a geometry whose pull_back shortcut is not the derivative of its weights.
    weights = mixed_weights()
    weights["rest"][0, 0] = 0
    chart = registered(name, weights).chart(weights)
    wanted, got = by_both(chart, chart.gaussian(torch.Generator().manual_seed(3)) * 0.1)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rest", [Elementwise(), Elementwise("geodesic"), Euclidean()], ids=str)
def test_pull_back_where_a_block_covers_part_of_a_parameter(rest: Geometry) -> None:
    # Kills: the rest's gradient leaking into entries of the block, or the block's into the rest.
    weights, block = fused()
    chart = Quotient(blocks=[block], rest=rest).chart(weights)
    z = chart.gaussian(torch.Generator().manual_seed(3)) * 0.2
    weight = torch.linspace(-1, 1, 18, dtype=F64).view(3, 6)

    def f(w: dict[str, Tensor]) -> Tensor:
        return torch.sin(w["w"] * weight).sum() * w["h"].square().sum()

    point = z.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(f(chart.weights(point)), point)
    at = {n: w.detach().requires_grad_() for n, w in chart.weights(z).items()}
    gradient = dict(zip(at, torch.autograd.grad(f(at), list(at.values())), strict=True))
    torch.testing.assert_close(chart.evaluate(z)[1](gradient), wanted, rtol=1e-11, atol=1e-12)


@metrics
@pytest.mark.parametrize("kind", ["left rank 1", "zero left head", "n < h"])
def test_pull_back_of_rank_deficient_heads(metric: str, kind: str) -> None:
    # Kills: NaN or stray gradients along directions without a singular value.
    case = deficient(kind)
    chart, z = case.chart(metric), case.direction(metric, 0.3)
    wanted, got = by_both(chart, z)
    assert bool(torch.isfinite(got).all())
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@metrics
@pytest.mark.parametrize("name", ["two heads 4x3x2", "h=1 3x5", "complex 3x2x2"])
def test_gradient_is_that_of_the_oracle(metric: str, name: str) -> None:
    # <grad f, x> must be df(x) for every horizontal x. Kills: gradients off by the metric (G for G^-1).
    case = CASES[name]
    chart = case.chart(metric)
    z = chart.zeros().requires_grad_()
    (gradient,) = torch.autograd.grad(smooth(case.product(chart, z)), z)
    along = case.points.clone().requires_grad_()
    (covector,) = torch.autograd.grad(smooth(case.shape.product(along)), along)
    square = 0.0
    for p, c in zip(case.points, covector, strict=True):
        square += float(c @ torch.linalg.solve(oracles.metric_matrix(metric, case.shape, p), c))
    assert float(gradient.norm()) ** 2 == pytest.approx(square, rel=1e-10)


@metrics
@pytest.mark.parametrize("curve", ["exact", "second_order"])
@pytest.mark.parametrize("name", ["h=1 3x5", "complex h=1 2x3", "two heads 4x3x2"])
def test_hessian_at_zero_is_riemannian(metric: str, curve: str, name: str) -> None:
    # d_i d_j f - Gamma^k_ij d_k f, Christoffel symbols by autodiff of the dense metric, away from a stationary point.
    # Kills: a dropped 1/2 or flipped sign in Gamma, a series cut off for the value alone (at 0 that is one term, and
    # its second derivative is wrong), a pull-back that cannot be differentiated twice, a first-order curve.
    case = Case(CASES[name].shape, CASES[name].points[:1])
    chart, shape, p = case.chart(metric, curve), case.shape, case.points[0]
    hessian = torch.autograd.functional.hessian(lambda z: smooth(case.product(chart, z)), chart.zeros())
    wanted = oracles.riemannian_hessian(metric, shape, p, lambda q: smooth(shape.product(q).unsqueeze(0)))
    lift = torch.stack([case.packed(chart.tangent(e))[0] for e in torch.eye(chart.size, dtype=F64)], dim=1)
    torch.testing.assert_close(hessian, lift.mT @ wanted @ lift, rtol=1e-8, atol=1e-8)


def test_first_order_curve_does_not_have_the_riemannian_hessian() -> None:
    # The comparison above can fail: straight lines give another Hessian.
    case = CASES["h=1 3x5"]
    hessians = []
    for curve in ("exact", "first_order"):
        chart = case.chart("inverse_gram", curve)
        hessians.append(torch.autograd.functional.hessian(lambda z, c=chart: smooth(case.product(c, z)), chart.zeros()))
    assert (hessians[0] - hessians[1]).abs().max() > 1e-2


@metrics
def test_hessian_along_oracle_geodesics(metric: str) -> None:
    # The same second derivative by differences of f along geodesics of the ODE solver. Kills a shared misuse of Gamma.
    case = CASES["h=1 3x5"]
    chart, shape, p = case.chart(metric), case.shape, case.points[0]
    z = case.direction(metric, 1.0)
    hessian = torch.autograd.functional.hessian(lambda y: smooth(case.product(chart, y)), chart.zeros())
    x, step = case.packed(chart.tangent(z))[0], 0.02
    values = [
        float(smooth(shape.product(oracles.geodesic(metric, shape, p, x * (k * step))).unsqueeze(0)))
        if k
        else float(smooth(shape.product(p).unsqueeze(0)))
        for k in (-2, -1, 0, 1, 2)
    ]
    weights = (-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12)  # fourth-order central difference
    difference = sum(w * v for w, v in zip(weights, values, strict=True)) / step**2
    assert float(z @ hessian @ z) == pytest.approx(difference, rel=2e-5)


@pytest.mark.parametrize("geometry", [Quotient(), Quotient("cross_gram"), Elementwise(), Euclidean()], ids=str)
def test_objective_gradient_of_a_transformer(
    geometry: Geometry, tiny_vit_deep: torch.nn.Module, tiny_batch: tuple[Tensor, Tensor]
) -> None:
    # The analytic gradient of the whole chain against a difference of values. Kills: gradients left out of some part.
    batch = (tiny_batch[0][..., :4, :4], tiny_batch[1])
    problem = Problem(tiny_vit_deep, [batch])
    assert len(find_symmetries(tiny_vit_deep)) == 4
    chart = problem.chart(geometry)
    objective = Objective(problem, chart, batch)
    z = chart.gaussian(torch.Generator().manual_seed(2))
    z = z * (0.01 / z.norm())
    direction = chart.project(normal(chart.size, seed=4))
    direction = direction / direction.norm()
    _, gradient = objective(z)
    step = 1e-4
    difference = (objective.value(z + step * direction) - objective.value(z - step * direction)) / (2 * step)
    assert float(gradient @ direction) == pytest.approx(difference, rel=1e-5, abs=1e-8)
