"""Norms of the paper's ablations against dense algebra in the user's gauge."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import oracles
import spiritlevel as sl
from conftest import build_vit
from spiritlevel import Problem, Quotient, gradient_norm, hessian_trace, move_along_orbit, worst_case
from spiritlevel.core.blocks import Pair
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Chart
from spiritlevel.optim import SAM, rules
from spiritlevel.reparam import Scaling, reparametrised
from spiritlevel.solvers import SphereAscent
from test_geometry import CASES, Case, normal
from test_pull_back import by_both

F64 = torch.float64
NORMS = {
    "elementwise": {"norm": "elementwise"},
    "euclidean": {"norm": "euclidean"},
    "relaxed": {"relaxation": 0.3},
}
norms = pytest.mark.parametrize("norm", NORMS)
cases = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
norms_and_metrics = pytest.mark.parametrize(  # nothing is inverted in cross_gram, so nothing can be relaxed there
    ("norm", "metric"),
    [(n, m) for n in NORMS for m in ("inverse_gram", "cross_gram") if (n, m) != ("relaxed", "cross_gram")],
)


def chart_of(case: Case, norm: str, metric: str = "inverse_gram", curve: str = "second_order") -> Chart:
    return Quotient(metric, curve, [case.block], **NORMS[norm]).chart(case.dictionary(case.points))


def norm_matrix(case: Case, norm: str, head: int) -> Tensor:
    """The squared length of a packed tangent vector, as a matrix, from the table in the paper's App. G and H."""
    p, shape = case.points[head], case.shape
    if norm == "euclidean":
        return torch.eye(shape.size, dtype=F64)
    if norm == "elementwise":
        return torch.diag(p**-2)
    g, h = shape.unpack(p)
    x_g, x_h = shape.unpack(torch.eye(shape.size, dtype=F64))
    one = 0.3 * torch.eye(shape.h, dtype=g.dtype)
    left, right = (torch.linalg.inv(f.mH @ f + one) for f in (g, h))
    return sum(torch.einsum("ab,irb,jra->ij", w, x.conj(), x).real for w, x in ((left, x_g), (right, x_h)))  # type: ignore[return-value]


@norms_and_metrics
@cases
def test_coordinates_measure_horizontal_vectors_by_the_norm(case: Case, norm: str, metric: str) -> None:
    # Kills: the whole tangent space instead of the horizontal one, a norm of the metric, a scale applied on one side.
    chart = chart_of(case, norm, metric)
    z = chart.project(normal(chart.size, seed=5))
    torch.testing.assert_close(chart.project(z), z, rtol=0, atol=1e-9)
    x = case.packed(chart.tangent(z))
    squared, dimension = 0.0, 0
    for i, p in enumerate(case.points):
        torch.testing.assert_close(oracles.horizontal_part(metric, case.shape, p, x[i]), x[i], rtol=0, atol=1e-8)
        squared += float(x[i] @ norm_matrix(case, norm, i) @ x[i])
        dimension += oracles.horizontal_basis(metric, case.shape, p).shape[1]
    assert squared == pytest.approx(float(z @ z), rel=1e-8)
    assert chart.dimension == dimension
    torch.testing.assert_close(chart.coordinates(chart.tangent(z)), z, rtol=0, atol=1e-8)


@norms_and_metrics
@cases
def test_the_gradient_is_the_largest_slope_over_the_ball(case: Case, norm: str, metric: str) -> None:
    # Kills: a projection that is not orthogonal in the norm. max <g, x> over horizontal x with |x| <= 1 in the norm.
    chart = chart_of(case, norm, metric)
    some = normal(*case.shape.product(case.points).shape, seed=8)

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return (some * case.shape.product(case.packed(weights)).real).sum()

    point = chart.zeros().requires_grad_()
    (found,) = torch.autograd.grad(loss(chart.weights(point)), point)
    packed = case.points.clone().requires_grad_()
    (g,) = torch.autograd.grad((some * case.shape.product(packed).real).sum(), packed)
    squared = 0.0
    for i, p in enumerate(case.points):
        basis = oracles.horizontal_basis(metric, case.shape, p)
        slope = basis.mT @ g[i]
        squared += float(slope @ torch.linalg.solve(basis.mT @ norm_matrix(case, norm, i) @ basis, slope))
    assert float(found @ found) == pytest.approx(squared, rel=1e-7)


@norms
def test_the_curve_is_the_papers(norm: str) -> None:
    # Kills: second order turned off with the norm, or the curve of another start. Eq. 7 and 16 at the user's weights.
    case = CASES["two heads 4x3x2"]
    chart = chart_of(case, norm)
    z = chart.project(normal(chart.size, seed=5)) * 0.05
    (g, h), (x_g, x_h) = case.shape.unpack(case.points), case.shape.unpack(case.packed(chart.tangent(z)))

    def moved(w: Tensor, x: Tensor) -> Tensor:
        p = torch.linalg.inv(w.mT @ w)
        return w + x - (-x @ p @ (x.mT @ w + w.mT @ x) + w @ p @ x.mT @ x) / 2

    torch.testing.assert_close(case.product(chart, z), moved(g, x_g) @ moved(h, x_h).mT, rtol=0, atol=1e-10)
    straight = chart_of(case, norm, curve="first_order")
    torch.testing.assert_close(case.product(straight, z), (g + x_g) @ (h + x_h).mT, rtol=0, atol=1e-10)


@pytest.mark.parametrize("metric", ["inverse_gram", "cross_gram"])
def test_a_first_order_curve_is_a_straight_move(metric: str) -> None:
    # Kills: a remainder of the curvature where it is turned off.
    case = CASES["two heads 4x3x2"]
    chart = case.chart(metric, "first_order")
    z = case.direction(metric, 0.3)
    (g, h), (x_g, x_h) = case.shape.unpack(case.points), case.shape.unpack(case.packed(chart.tangent(z)))
    torch.testing.assert_close(case.product(chart, z), (g + x_g) @ (h + x_h).mT, rtol=0, atol=1e-10)


@norms
@cases
def test_pull_back_is_the_gradient_through_the_weights(case: Case, norm: str) -> None:
    # Kills: the shortcut on the way back without the change of norm, or with it twice.
    chart = chart_of(case, norm)
    wanted, got = by_both_products(case, chart, chart.project(normal(chart.size, seed=3)) * 0.1)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(chart.project(got), got, rtol=1e-8, atol=1e-9)


def by_both_products(case: Case, chart: Chart, z: Tensor) -> tuple[Tensor, Tensor]:
    if not case.shape.is_complex:
        return by_both(chart, z)

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return (case.shape.product(case.packed(weights)).real ** 3).sum()

    point = z.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(chart.weights(point)), point)
    weights = {n: w.detach().requires_grad_() for n, w in chart.weights(z).items()}
    slopes = torch.autograd.grad(loss(weights), list(weights.values()))
    return wanted, chart.evaluate(z)[1](dict(zip(weights, slopes, strict=True)))


def vit_problem(model: torch.nn.Module) -> Problem:
    g = torch.Generator().manual_seed(1)
    return Problem(model, [(torch.randn(6, 1, 8, 8, generator=g, dtype=F64), torch.tensor([0, 1, 2, 0, 1, 2]))])


def test_without_relaxation_it_is_the_exact_number_and_with_it_the_orbit_shows() -> None:
    # Kills: a relaxation that is not used, one that is left where it is 0, one that stays invariant.
    model = build_vit()
    problem = vit_problem(model)
    solver = SphereAscent(steps=100, tolerance=1e-11)
    exact = worst_case(problem, Quotient(), 0.1, solver, show_progress=False).value
    errors = [
        abs(worst_case(problem, Quotient(relaxation=e), 0.1, solver, show_progress=False).value / exact - 1)
        for e in (1e-1, 1e-3, 1e-5, 1e-9)
    ]
    assert errors[0] > 0.01
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6
    other = build_vit()
    other.load_state_dict(move_along_orbit(model, problem.symmetries, condition=100.0))
    there = vit_problem(other)
    for geometry, kept in (
        (Quotient(), True),
        (Quotient(relaxation=0.1), False),
        (Quotient(norm="elementwise"), False),
    ):
        ratio = gradient_norm(there, geometry).value / gradient_norm(problem, geometry).value
        assert (abs(ratio - 1) < 1e-8) is kept


def test_curvature_takes_the_norm_too() -> None:
    # Kills: `osculating` that forgets the norm.
    problem = vit_problem(build_vit())
    values = [
        hessian_trace(problem, g, samples=4, tolerance=0.0, show_progress=False).value
        for g in (Quotient(), Quotient(norm="euclidean"), Quotient(relaxation=0.5))
    ]
    assert len({f"{v:.6g}" for v in values}) == 3


def test_kinds_of_blocks_are_asked_of_the_model() -> None:
    # Kills: kinds that are not passed on; blocks found once for all geometries.
    problem = vit_problem(build_vit())
    few, many = problem.chart(Quotient()).dimension, problem.chart(Quotient(kinds=("attention", "norm"))).dimension
    assert problem.chart(Quotient(kinds="attention")).dimension == few
    assert many < few
    blocks = problem.blocks_of(Quotient(kinds=("attention", "norm")))
    assert many == problem.chart(Quotient(blocks=blocks)).dimension
    assert problem.blocks_of(Quotient(blocks=blocks)) is blocks
    assert any(not isinstance(b, Pair) for b in blocks)
    change = Scaling(dict.fromkeys(problem.weights, 2.0))  # parameters twice as large: the blocks are the original's
    there = gradient_norm(reparametrised(problem, change), Quotient(kinds=("attention", "norm")).transported(change))
    own = gradient_norm(problem, Quotient(kinds=("attention", "norm")))
    assert there.settings["dimension"] == own.settings["dimension"] == many
    assert there.value == pytest.approx(own.value, rel=1e-9)


def test_words_and_refusals() -> None:
    assert str(Quotient()) == "Quotient(metric='inverse_gram', curve='exact', rest=Elementwise(curve='straight'))"
    assert "relaxation=0.1" in str(Quotient(relaxation=0.1))
    assert "kinds='all', norm='euclidean'" in str(Quotient(kinds="all", norm="euclidean"))
    with pytest.raises(ArgumentError, match="expected norm 'metric'"):
        Quotient(norm="l1")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected a relaxation from 0 on"):
        Quotient(relaxation=-1.0)
    with pytest.raises(ArgumentError, match="expected relaxation with the norm of inverse_gram only"):
        Quotient("cross_gram", relaxation=0.1)
    with pytest.raises(ArgumentError, match="expected either blocks or kinds"):
        Quotient(blocks=[], kinds="all")


def test_a_sam_step_takes_the_kinds_of_its_geometry() -> None:
    # Kills: the default blocks where others were asked for.
    model = build_vit()
    images, labels = torch.randn(6, 1, 8, 8, dtype=F64), torch.tensor([0, 1, 2, 0, 1, 2])

    def step(geometry: Quotient) -> Tensor:
        twin = build_vit()
        sam = SAM(torch.optim.SGD(twin.parameters(), 0.1), rules.GeodesicSAM(0.1, geometry), model=twin)
        sam.step(lambda: torch.nn.functional.cross_entropy(twin(images).logits, labels))
        return torch.cat([p.detach().reshape(-1) for p in twin.parameters()])

    blocks = sl.find_symmetries(model, kinds="translation")
    assert torch.equal(step(Quotient(kinds="translation")), step(Quotient(blocks=blocks)))
    assert not torch.equal(step(Quotient(kinds="translation")), step(Quotient()))
