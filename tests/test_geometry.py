"""Charts against the oracles, over every registered metric and geometry, real and complex.

Everything is compared in the user's gauge, through `Chart.coordinates` and `Chart.tangent`; curves by the product
``M = G H^*``, which is all that a quotient curve determines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import oracles
from oracles import Shape
from spiritlevel import Factor, Pair, Piece, find_symmetries, gradient_norm, move_along_orbit
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.geometry import GEOMETRIES, METRICS, Chart, Diagonal, Elementwise, Euclidean, Geometry, Quotient
from spiritlevel.problem import Problem

F64 = torch.float64
CURVES = ("exact", "second_order", "first_order")
CHEAP = {"inverse_gram": "exact", "cross_gram": "second_order"}  # a curve with the right second derivative, fast


# ---------------------------------------------------------------------------------------------------------------- cases


def normal(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=F64)


def one_pair(shape: Shape, heads: int = 1, left: str = "g", right: str = "h") -> Pair:
    """A pair whose factors are whole parameters (heads, rows, columns[, 2])."""
    pair = 3 if shape.is_complex else None
    tail = (2,) if shape.is_complex else ()

    def factor(name: str, rows: int) -> Factor:
        return Factor((Piece(name, (heads, rows, shape.h, *tail), batch=(0,), rows=(1,), column=2, pair=pair),))

    return Pair("pair", factor(left, shape.n), factor(right, shape.m))


@dataclass
class Case:
    """Heads of one shape at points packed as the oracles want them, (heads, size)."""

    shape: Shape
    points: Tensor

    @property
    def block(self) -> Pair:
        return one_pair(self.shape, len(self.points))

    def dictionary(self, packed: Tensor) -> dict[str, Tensor]:
        g, h = self.shape.unpack(packed)
        return {n: torch.view_as_real(x) if x.is_complex() else x.clone() for n, x in (("g", g), ("h", h))}

    def packed(self, weights: dict[str, Tensor]) -> Tensor:
        parts = (weights["g"], weights["h"])
        g, h = (torch.view_as_complex(x.contiguous()) if self.shape.is_complex else x for x in parts)
        return self.shape.pack(g, h)

    def chart(self, metric: str, curve: str = "exact") -> Chart:
        return Quotient(metric, curve=curve, blocks=[self.block]).chart(self.dictionary(self.points))

    def product(self, chart: Chart, z: Tensor) -> Tensor:
        return self.shape.product(self.packed(chart.weights(z)))

    def real_product(self, chart: Chart, z: Tensor) -> Tensor:
        m = self.product(chart, z)
        return (torch.view_as_real(m) if m.is_complex() else m).reshape(-1)

    def smallest(self) -> float:
        s = torch.linalg.svdvals(self.shape.product(self.points))
        return float(s[s > 1e-9 * s.max()].min())

    def direction(self, metric: str, relative: float, seed: int = 5) -> Tensor:
        """Coordinates of length ``relative`` (in cross_gram: times the smallest singular value)."""
        chart = self.chart(metric)
        z = chart.project(normal(chart.size, seed=seed))
        return z * (relative * (self.smallest() if metric == "cross_gram" else 1.0) / z.norm())


def full_rank(n: int, m: int, h: int, heads: int = 1, is_complex: bool = False, seed: int = 1) -> Case:
    shape = Shape(n, m, h, is_complex)
    return Case(shape, normal(heads, shape.size, seed=seed))


CASES = {
    "two heads 4x3x2": full_rank(4, 3, 2, heads=2),
    "h=1 3x5": full_rank(3, 5, 1),
    "square 3x3x3": full_rank(3, 3, 3, seed=2),
    "complex 3x2x2": full_rank(3, 2, 2, is_complex=True),
    "complex h=1 2x3": full_rank(2, 3, 1, heads=2, is_complex=True),
}


def deficient(kind: str) -> Case:
    """Points where ``M`` has rank 1, with the third head (where there are several) of full rank."""
    if kind == "n < h":
        return full_rank(1, 4, 2, seed=3)
    shape = Shape(4, 3, 2, kind.startswith("complex"))
    g, h = shape.unpack(normal(2, shape.size, seed=4))
    g, h = g.clone(), h.clone()
    if kind.endswith("left rank 1"):
        g[0] = g[0][:, :1] @ torch.tensor([[0.6, -1.7]], dtype=g.dtype)
    elif kind == "right rank 1":
        h[0] = h[0][:, :1] @ torch.tensor([[0.6, -1.7]], dtype=g.dtype)
    elif kind == "both rank 1":
        g[0] = g[0][:, :1] @ torch.tensor([[0.6, -1.7]], dtype=g.dtype)
        h[0] = h[0][:, :1] @ torch.tensor([[1.1, 0.4]], dtype=g.dtype)
    elif kind == "zero left head":
        g[0] = 0
    elif kind == "zero head":
        g[0], h[0] = 0, 0
    else:
        raise AssertionError(kind)
    return Case(shape, shape.pack(g, h))


DEFICIENT = (
    "left rank 1",
    "right rank 1",
    "both rank 1",
    "complex left rank 1",
    "zero left head",
    "zero head",
    "n < h",
)


def group_element(shape: Shape, condition: float, seed: int) -> Tensor:
    """A matrix of stated condition number (for h = 1: a number of size sqrt(condition), with a phase)."""
    dtype = torch.complex128 if shape.is_complex else F64
    draw = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(shape.h, shape.h, generator=draw, dtype=dtype))[0] for _ in range(2))
    sizes = (
        torch.logspace(-0.5, 0.5, shape.h, base=condition, dtype=F64) if shape.h > 1 else torch.tensor([condition**0.5])
    )
    return (u * sizes) @ v


def moved(case: Case, condition: float = 1e3) -> tuple[Case, list[Tensor]]:
    elements = [group_element(case.shape, condition, seed=10 + i) for i in range(len(case.points))]
    points = [oracles.act(case.shape, p, a) for p, a in zip(case.points, elements, strict=True)]
    return Case(case.shape, torch.stack(points)), elements


def smooth(product: Tensor) -> Tensor:
    """A test function of M with all its derivatives alive and no symmetry."""
    m = torch.view_as_real(product) if product.is_complex() else product
    weight = torch.linspace(0.3, 1.7, m.numel(), dtype=F64).reshape(m.shape)
    return torch.sin(weight * m).sum() + 0.3 * (m * weight.flip(-1)).sum() ** 2 / m.numel() + torch.exp(0.2 * m.sum())


metrics = pytest.mark.parametrize("metric", list(METRICS))
curves = pytest.mark.parametrize("curve", CURVES)
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
kinds = pytest.mark.parametrize("kind", DEFICIENT)


# ---------------------------------------------------------------------------------------------------- the oracles agree


@metrics
@cases
def test_oracle_integrators_agree(metric: str, case: Case) -> None:
    # DOP853 on Christoffel symbols from autodiff, against fixed steps of Hamilton's equations.
    p, shape = case.points[0], case.shape
    x = oracles.horizontal_basis(metric, shape, p).sum(-1)
    x = x * (0.4 * (case.smallest() if metric == "cross_gram" else 1.0) / oracles.length(metric, shape, p, x))
    torch.testing.assert_close(
        oracles.geodesic_steps(metric, shape, p, x, steps=80), oracles.geodesic(metric, shape, p, x), rtol=0, atol=1e-9
    )


@metrics
@cases
def test_oracle_metric_is_invariant_and_action_keeps_the_product(metric: str, case: Case) -> None:
    # Both oracle metrics must not see the group, and the vertical space must not move M.
    shape, p = case.shape, case.points[0]
    a = group_element(shape, 10.0, seed=3)
    x = normal(shape.size, seed=7)
    there = oracles.length(metric, shape, oracles.act(shape, p, a), oracles.act(shape, x, a))
    assert there == pytest.approx(oracles.length(metric, shape, p, x), rel=1e-11)
    for v in oracles.vertical_space(shape, p).mT:
        _, change = torch.func.jvp(shape.product, (p,), (v,))
        assert change.abs().max() < 1e-12


# ------------------------------------------------------------------------------------------------ contract of the chart


@metrics
@curves
@cases
def test_zero_is_the_same_function(metric: str, curve: str, case: Case) -> None:
    # Kills: U and V swapped, S applied twice or not at all, a dropped conjugate, heads in the wrong order.
    chart = case.chart(metric, curve)
    torch.testing.assert_close(case.product(chart, chart.zeros()), case.shape.product(case.points), rtol=0, atol=1e-13)


@metrics
@cases
def test_dimension_is_that_of_the_oracle(metric: str, case: Case) -> None:
    # Kills: r (n + m) - r, a forgotten factor 2 for complex blocks, one head counted instead of all.
    wanted = sum(oracles.horizontal_basis(metric, case.shape, p).shape[1] for p in case.points)
    chart = case.chart(metric)
    projector = torch.stack([chart.project(e) for e in torch.eye(chart.size, dtype=F64)])
    assert chart.dimension == wanted == int(torch.linalg.matrix_rank(projector, hermitian=True))


@metrics
@cases
def test_projection_is_orthogonal(metric: str, case: Case) -> None:
    # Kills: projection = identity (it must lose the group's dimension), and any projection that is not self-adjoint.
    chart = case.chart(metric)
    projector = torch.stack([chart.project(e) for e in torch.eye(chart.size, dtype=F64)], dim=1)
    torch.testing.assert_close(projector @ projector, projector, rtol=0, atol=1e-13)
    torch.testing.assert_close(projector, projector.mT, rtol=0, atol=1e-13)
    lost = sum(int(torch.linalg.matrix_rank(oracles.vertical_space(case.shape, p))) for p in case.points)
    assert float(projector.trace()) == pytest.approx(chart.size - lost, abs=1e-10)


@metrics
@cases
def test_coordinates_are_an_isometry_of_the_horizontal_space(metric: str, case: Case) -> None:
    # Kills: projection = identity, swapped Grams, S instead of 1/S in the whitening, a wrong sign in the projection.
    chart, shape = case.chart(metric), case.shape
    x = normal(*case.points.shape, seed=8)
    wanted = torch.stack([oracles.horizontal_part(metric, shape, p, v) for p, v in zip(case.points, x, strict=True)])
    squares = sum(oracles.length(metric, shape, p, v) ** 2 for p, v in zip(case.points, wanted, strict=True))
    z = chart.coordinates(case.dictionary(x))
    assert float(z.norm()) == pytest.approx(math.sqrt(squares), rel=1e-11)
    torch.testing.assert_close(case.packed(chart.tangent(z)), wanted, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(chart.project(z), z, rtol=1e-11, atol=1e-12)


@metrics
@cases
def test_tangent_is_the_horizontal_lift(metric: str, case: Case) -> None:
    # Kills: an unwhitening that is not the inverse of the whitening; a lift with a vertical part.
    chart, shape = case.chart(metric), case.shape
    z = normal(chart.size, seed=9)
    x = case.packed(chart.tangent(z))
    for p, v in zip(case.points, x, strict=True):
        mixed = oracles.vertical_space(shape, p).mT @ oracles.metric_matrix(metric, shape, p) @ v
        assert mixed.abs().max() < 1e-10
    torch.testing.assert_close(chart.coordinates(case.dictionary(x)), chart.project(z), rtol=0, atol=1e-11)


@metrics
@curves
@cases
def test_curve_starts_along_its_tangent(metric: str, curve: str, case: Case) -> None:
    # Kills: a factor 2 or a sign in the velocity of one factor, in any curve.
    chart = case.chart(metric, curve)
    z = normal(chart.size, seed=9)
    _, moving = torch.func.jvp(case.shape.product, (case.points,), (case.packed(chart.tangent(z)),))
    slope = torch.autograd.functional.jacobian(lambda y: case.real_product(chart, y), chart.zeros()) @ z
    wanted = (torch.view_as_real(moving) if moving.is_complex() else moving).reshape(-1)
    torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-10)


@metrics
@curves
@cases
def test_weights_ignore_vertical_coordinates(metric: str, curve: str, case: Case) -> None:
    # Kills: `weights` without the projection (f would not be constant along the redundant coordinates).
    chart, z = case.chart(metric, curve), normal(case.chart(metric).size, seed=9) * 0.1
    torch.testing.assert_close(case.product(chart, z), case.product(chart, chart.project(z)), rtol=0, atol=1e-11)


# --------------------------------------------------------------------------------------------------------------- curves


@metrics
@cases
@pytest.mark.parametrize("relative", [0.5, 1.0])
def test_exact_curve_is_the_oracle_geodesic(metric: str, case: Case, relative: float) -> None:
    # Kills: a dropped 1/2 or flipped sign in the skew part, exp(alpha) for exp(alpha*), swapped Grams, too few terms.
    # Lengths 0.5 and 1 in inverse_gram, 0.25 and 0.5 of the smallest singular value in cross_gram (all heads together).
    z = case.direction(metric, relative if metric == "inverse_gram" else relative / 2)
    chart, shape = case.chart(metric), case.shape
    velocities = case.packed(chart.tangent(z))
    ends = [oracles.geodesic(metric, shape, p, x) for p, x in zip(case.points, velocities, strict=True)]
    wanted = torch.stack([shape.product(e) for e in ends])
    torch.testing.assert_close(case.product(chart, z), wanted, rtol=1e-8, atol=1e-8)


def test_exact_inverse_gram_geodesic_is_right_at_large_length() -> None:
    # Kills: a Taylor plan with too few terms or pieces; length 4 needs several pieces.
    case = CASES["two heads 4x3x2"]
    z = case.direction("inverse_gram", 4.0)
    chart, shape = case.chart("inverse_gram"), case.shape
    velocities = case.packed(chart.tangent(z))
    ends = [oracles.geodesic("inverse_gram", shape, p, x) for p, x in zip(case.points, velocities, strict=True)]
    wanted = torch.stack([shape.product(e) for e in ends])
    torch.testing.assert_close(case.product(chart, z), wanted, rtol=1e-7, atol=1e-8)


@metrics
@cases
@pytest.mark.parametrize(("curve", "order"), [("second_order", 3), ("first_order", 2)])
def test_order_of_the_cheap_curves(metric: str, case: Case, curve: str, order: int) -> None:
    # Kills: a dropped 1/2 or a sign in Gamma (order 2 instead of 3), a power of s too much in the cross-Gram term.
    exact, cheap = case.chart(metric), case.chart(metric, curve)
    z = case.direction(metric, 0.04)
    errors = [float((case.product(cheap, z * t) - case.product(exact, z * t)).abs().max()) for t in (1.0, 0.5)]
    assert errors[1] > 1e-12, "too small to measure a slope"
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.2)


def radial(is_complex: bool, seed: int, s: float) -> tuple[Case, Chart, Tensor]:
    """One head with h = 1 and singular value ``s``, its chart, and the unit direction straight to the rank drop."""
    shape = Shape(2, 3, 1, is_complex)
    points = normal(1, shape.size, seed=seed)
    points = points * math.sqrt(s / float(torch.linalg.matrix_norm(shape.product(points))))
    case = Case(shape, points)
    chart = case.chart("cross_gram")
    inward = chart.coordinates(case.dictionary(-points))
    return case, chart, inward / inward.norm()


# Rounding of the start decides how closely an integrator comes to the drop: at these seeds the first version, which
# only watched its step size, slipped past and went on behind it.
@pytest.mark.parametrize(("is_complex", "seed"), [(False, 5), (True, 4)])
def test_cross_gram_stops_at_the_edge(is_complex: bool, seed: int) -> None:
    # Closed form for h = 1: the radial geodesic is M = s - sqrt(2) |z| and ends at |z| = s / sqrt(2).
    # Kills: stepping over the rank drop, stopping early, a wrong power of s (s = 0.7 is not 1), a dropped sqrt(2).
    s = 0.7
    case, chart, inward = radial(is_complex, seed, s)
    m, edge = case.shape.product(case.points), s / math.sqrt(2)
    for share in (0.3, 0.99):
        torch.testing.assert_close(case.product(chart, inward * share * edge), m * (1 - share), rtol=0, atol=1e-8)
    assert chart.stopped(inward * 0.99 * edge) == 0
    end = case.product(chart, inward * 1.01 * edge)
    assert chart.stopped(inward * 1.01 * edge) == 1
    assert float(torch.linalg.matrix_norm(end)) < 1e-3 * s
    outward = case.product(chart, -inward * 2 * s)
    torch.testing.assert_close(outward, m * (1 + 2 * math.sqrt(2)), rtol=0, atol=1e-8)
    assert chart.describe(0.35)["rho / s_min"] == pytest.approx(0.5)


def test_only_exact_cross_gram_geodesics_stop() -> None:
    case = CASES["h=1 3x5"]
    for metric, curve in (("inverse_gram", "exact"), ("cross_gram", "second_order"), ("cross_gram", "first_order")):
        chart = case.chart(metric, curve)
        assert chart.stopped(case.direction(metric, 100.0)) == 0


@pytest.mark.parametrize("is_complex", [False, True])
def test_random_points_are_the_same_on_the_orbit(is_complex: bool) -> None:
    # Kills: columns of U that may point either way, which turns one sample into another on the same orbit.
    case = full_rank(6, 5, 3, heads=2, is_complex=is_complex)
    ends = []
    for c in (case, moved(case)[0]):
        chart = c.chart("inverse_gram")
        ends.append(c.product(chart, chart.gaussian(torch.Generator().manual_seed(0))))
    assert torch.allclose(*ends, rtol=1e-9, atol=1e-10)


def test_inverse_gram_is_scale_free() -> None:
    # Kills: a stray power of s in inverse_gram: scaling M by c scales the whole geodesic by c, at equal z.
    case = CASES["h=1 3x5"]
    scaled = Case(case.shape, case.points * 7.0)
    z = case.direction("inverse_gram", 0.8)
    first, second = case.product(case.chart("inverse_gram"), z), scaled.product(scaled.chart("inverse_gram"), z)
    torch.testing.assert_close(second, 49.0 * first, rtol=1e-11, atol=1e-11)


# ----------------------------------------------------------------------------------------------------------- invariance


@metrics
@curves
@cases
def test_pushed_tangent_gives_the_same_function(metric: str, curve: str, case: Case) -> None:
    # The action moves x to (x_G A^-1, x_H A^*); charts at both points must send it to the same M. Condition 1e3.
    # Kills: A^* for A^-1 in the whitening, a metric of one gauge only, conj forgotten on complex blocks.
    there, elements = moved(case)
    x = case.packed(case.chart(metric).tangent(case.direction(metric, 0.3)))
    pushed = torch.stack([oracles.act(case.shape, v, a) for v, a in zip(x, elements, strict=True)])
    here_chart, there_chart = case.chart(metric, curve), there.chart(metric, curve)
    first = case.product(here_chart, here_chart.coordinates(case.dictionary(x)))
    second = there.product(there_chart, there_chart.coordinates(there.dictionary(pushed)))
    torch.testing.assert_close(second, first, rtol=0, atol=1e-9)


def gradient_and_spectrum(case: Case, metric: str, curve: str) -> tuple[float, Tensor]:
    chart = case.chart(metric, curve)

    def f(z: Tensor) -> Tensor:
        return smooth(case.product(chart, z))

    gradient = torch.autograd.functional.jacobian(f, chart.zeros())
    hessian = torch.autograd.functional.hessian(f, chart.zeros())
    return float(gradient.norm()), torch.linalg.eigvalsh(hessian)


@metrics
@cases
def test_gradient_and_hessian_are_the_same_on_the_orbit(metric: str, case: Case) -> None:
    # Kills: anything built at the user's point instead of the canonical one. Condition 1e3, relative accuracy 1e-9.
    here, there = (gradient_and_spectrum(c, metric, CHEAP[metric]) for c in (case, moved(case)[0]))
    assert there[0] == pytest.approx(here[0], rel=1e-9)
    torch.testing.assert_close(there[1], here[1], rtol=0, atol=1e-9 * float(here[1].abs().max()))


@metrics
def test_second_order_curve_has_the_hessian_of_the_exact_one(metric: str) -> None:
    # Kills: a wrong Gamma (away from a stationary point, where it matters), a wrong Hessian through the integrator.
    case = CASES["complex h=1 2x3"]
    exact, cheap = (gradient_and_spectrum(case, metric, c) for c in ("exact", "second_order"))
    assert cheap[0] == pytest.approx(exact[0], rel=1e-9)
    torch.testing.assert_close(cheap[1], exact[1], rtol=0, atol=1e-8 * float(exact[1].abs().max()))


@metrics
def test_vit_gradient_norm_on_the_orbit(
    metric: str, tiny_vit: torch.nn.Module, tiny_batch: tuple[Tensor, Tensor]
) -> None:
    # The whole way through a transformer of transformers, biases and rest included; adaptive geometry must NOT pass.
    blocks = find_symmetries(tiny_vit)
    assert len(blocks) == 2
    state = move_along_orbit(tiny_vit, blocks, seed=3, condition=1e3)
    before = [gradient_norm(Problem(tiny_vit, [tiny_batch]), g).value for g in (Quotient(metric), Elementwise())]
    tiny_vit.load_state_dict(state)
    after = [gradient_norm(Problem(tiny_vit, [tiny_batch]), g).value for g in (Quotient(metric), Elementwise())]
    assert after[0] == pytest.approx(before[0], rel=1e-8)
    assert abs(after[1] / before[1] - 1) > 0.05


def test_float32_weights_keep_single_precision() -> None:
    # Kills: factoring in float32 (the gauge is computed in float64), coordinates in the wrong precision.
    case = CASES["two heads 4x3x2"]
    weights = {n: w.float() for n, w in case.dictionary(moved(case, 100.0)[0].points).items()}
    for metric in METRICS:
        chart = Quotient(metric, blocks=[case.block]).chart(weights)
        at = chart.weights(chart.zeros())
        assert chart.zeros().dtype == at["g"].dtype == torch.float32
        product = at["g"] @ at["h"].mT
        torch.testing.assert_close(product, weights["g"] @ weights["h"].mT, rtol=0, atol=3e-5)


# ------------------------------------------------------------------------------------------------- rank-deficient heads


def minimal(shape: Shape, p: Tensor) -> tuple[Shape, Tensor] | None:
    """The same M by factors of full column rank r, in an arbitrary gauge; None where M = 0."""
    u, s, v = torch.linalg.svd(shape.product(p), full_matrices=False)
    r = int((s > 1e-10 * max(float(s[0]), 1e-300)).sum()) if float(s[0]) > 1e-12 else 0
    if r == 0:
        return None
    small = Shape(shape.n, shape.m, r, shape.is_complex)
    a = group_element(small, 3.0, seed=2)
    return small, oracles.act(small, small.pack(u[:, :r] * s[:r], v[:r].mH), a)


@metrics
@kinds
def test_rank_deficient_chart_is_the_one_of_the_minimal_factors(metric: str, kind: str) -> None:
    # A head of rank r < h must move as its factors of width r do: same dimension, same lengths, same geodesics.
    # Kills: a division by a zero singular value, directions without one that still move, 0/0 taken for anything but 0.
    case = deficient(kind)
    chart, z = case.chart(metric), case.direction(metric, 0.4)
    jacobian = torch.autograd.functional.jacobian(lambda y: case.real_product(chart, y), chart.zeros())
    velocity = (jacobian @ z).reshape(len(case.points), -1)
    ends, at, squares, dimension = case.product(chart, z), case.shape.product(case.points), 0.0, 0
    torch.testing.assert_close(case.product(chart, chart.zeros()), at, rtol=0, atol=1e-12)
    for p, dm, end in zip(case.points, velocity, ends, strict=True):
        found = minimal(case.shape, p)
        if found is None:
            assert end.abs().max() < 1e-14
            continue
        shape, q = found
        basis = oracles.horizontal_basis(metric, shape, q)
        dimension += basis.shape[1]

        def flat(y: Tensor, shape: Shape = shape) -> Tensor:
            m = shape.product(y)
            return (torch.view_as_real(m) if m.is_complex() else m).reshape(-1)

        lift = torch.linalg.lstsq(torch.func.jacrev(flat)(q) @ basis, dm.unsqueeze(-1)).solution.squeeze(-1)
        x = basis @ lift
        torch.testing.assert_close(torch.func.jvp(flat, (q,), (x,))[1], dm, rtol=1e-9, atol=1e-10)
        squares += float(lift @ lift)
        wanted = shape.product(oracles.geodesic(metric, shape, q, x))
        torch.testing.assert_close(end, wanted, rtol=1e-8, atol=1e-8)
    assert chart.dimension == dimension
    assert float(chart.project(z).norm()) == pytest.approx(math.sqrt(squares), rel=1e-9)


@metrics
@kinds
def test_rank_deficient_round_trip_and_finite_derivatives(metric: str, kind: str) -> None:
    # Kills: NaN from 0 * inf in forward or backward; inv for pinv; tangents that do not move M as the chart does.
    case = deficient(kind)
    for curve in CURVES:
        chart = case.chart(metric, curve)
        z = case.direction(metric, 0.3).requires_grad_()
        value = smooth(case.product(chart, z))
        (gradient,) = torch.autograd.grad(value, z, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), z)
        assert all(bool(torch.isfinite(t).all()) for t in (value, gradient, second))
    z = z.detach()
    x = chart.tangent(z)
    torch.testing.assert_close(chart.coordinates(x), chart.project(z), rtol=0, atol=1e-10)
    _, wanted = torch.func.jvp(case.shape.product, (case.points,), (case.packed(x),))
    slope = torch.autograd.functional.jacobian(lambda y: case.real_product(chart, y), chart.zeros()) @ z
    wanted = (torch.view_as_real(wanted) if wanted.is_complex() else wanted).reshape(-1)
    torch.testing.assert_close(slope, wanted, rtol=0, atol=1e-10)


@metrics
@kinds
def test_rank_deficient_measures_are_the_same_on_the_orbit(metric: str, kind: str) -> None:
    # Kills: a rank decided by the size of one factor instead of by M (A of condition 1e3 changes those).
    case = deficient(kind)
    there, _ = moved(case)
    assert there.chart(metric).dimension == case.chart(metric).dimension
    here, far = (gradient_and_spectrum(c, metric, CHEAP[metric]) for c in (case, there))
    assert far[0] == pytest.approx(here[0], rel=1e-9)
    torch.testing.assert_close(far[1], here[1], rtol=0, atol=1e-8 * float(here[1].abs().max()))


def test_null_directions_are_reported() -> None:
    chart = deficient("left rank 1").chart("inverse_gram")
    assert chart.describe(0.1) == {"null directions": 1}
    assert CASES["h=1 3x5"].chart("inverse_gram").describe(0.1) == {}


# -------------------------------------------------------------------------------------------- geometries entry by entry


def registered(name: str, weights: dict[str, Tensor]) -> Geometry:
    """Every registered geometry, with what it needs to be built."""
    if name == "diagonal":
        return Diagonal({n: torch.linspace(0.5, 2.0, w.numel(), dtype=F64).view_as(w) for n, w in weights.items()})
    if name == "quotient":
        return Quotient(blocks=[one_pair(Shape(4, 3, 2), 2)])
    return GEOMETRIES[name]()


def mixed_weights() -> dict[str, Tensor]:
    return CASES["two heads 4x3x2"].dictionary(CASES["two heads 4x3x2"].points) | {"rest": normal(3, 2, seed=6)}


@pytest.mark.parametrize("name", list(GEOMETRIES))
def test_contract_of_every_geometry(name: str) -> None:
    # Kills: coordinates that are not inverse to tangent, a gaussian off the horizontal space, wrong sizes.
    weights = mixed_weights()
    chart = registered(name, weights).chart(weights)
    z = chart.gaussian(torch.Generator().manual_seed(0))
    assert z.shape == (chart.size,)
    assert chart.dimension <= chart.size
    torch.testing.assert_close(chart.project(z), z, rtol=0, atol=1e-12)
    torch.testing.assert_close(chart.coordinates(chart.tangent(z)), z, rtol=0, atol=1e-11)
    at = chart.weights(chart.zeros())
    assert at.keys() == weights.keys()
    torch.testing.assert_close(at["rest"], weights["rest"], rtol=0, atol=0)
    torch.testing.assert_close(at["g"] @ at["h"].mT, weights["g"] @ weights["h"].mT, rtol=0, atol=1e-12)
    with pytest.raises(ArgumentError, match="in one flat vector"):
        chart.weights(torch.zeros(chart.size + 1, dtype=F64))
    assert registered(name, weights).settings()["geometry"]


@pytest.mark.parametrize("name", list(GEOMETRIES))
def test_no_geometry_touches_the_weights_it_is_given(name: str) -> None:
    # Kills: in-place writes into the user's parameters.
    weights = mixed_weights()
    before = {n: w.clone() for n, w in weights.items()}
    chart = registered(name, weights).chart(weights)
    z = chart.gaussian(torch.Generator().manual_seed(0))
    chart.evaluate(z)[1]({n: w.clone() for n, w in chart.weights(z).items()})
    chart.tangent(z)
    for n, w in weights.items():
        assert torch.equal(w, before[n])


@pytest.mark.parametrize("name", list(GEOMETRIES))
def test_gaussian_is_standard_on_the_horizontal_space(name: str) -> None:
    # Kills: a Gaussian that is not projected (its mean square would be chart.size), or is scaled.
    weights = mixed_weights()
    chart = registered(name, weights).chart(weights)
    draw = torch.Generator().manual_seed(0)
    squares = torch.tensor([float(chart.gaussian(draw).square().sum()) for _ in range(2000)], dtype=F64)
    error = 4 * math.sqrt(2 * chart.dimension / 2000)
    assert abs(float(squares.mean()) - chart.dimension) < error


W = {"w": torch.tensor([2.0, -3.0, 0.0, 0.5], dtype=F64)}
Z = torch.tensor([0.1, 0.2, 0.7, -0.4], dtype=F64)


def test_elementwise_straight_line() -> None:
    # Kills: w + w z (wrong sign for negative weights) and a zero weight that moves.
    chart = Elementwise().chart(W)
    wanted = torch.tensor([2.2, -2.4, 0.0, 0.3], dtype=F64)
    torch.testing.assert_close(chart.weights(Z)["w"], wanted)
    assert chart.dimension == 3
    assert chart.project(Z)[2] == 0
    assert torch.equal(chart.scales(), W["w"].abs())


def test_elementwise_geodesic_solves_its_own_equation() -> None:
    # Metric x^2/w^2: w'' = w'^2 / w, w'(0) = |w| z. Kills: exp(z) for exp(sign(w) z), weights that cross zero.
    chart = Elementwise("geodesic").chart(W)
    from scipy.integrate import solve_ivp

    w0, alive = W["w"][W["w"] != 0].numpy(), W["w"] != 0
    v0 = (W["w"].abs() * Z)[alive].numpy()

    def slope(_: float, y):
        w, v = y[:3], y[3:]
        return [*v, *(v * v / w)]

    end = solve_ivp(slope, (0, 1), [*w0, *v0], method="DOP853", rtol=1e-12, atol=1e-13).y[:3, -1]
    got = chart.weights(Z)["w"]
    torch.testing.assert_close(got[alive], torch.from_numpy(end), rtol=1e-10, atol=1e-11)
    assert got[2] == 0
    far = chart.weights(torch.full((4,), -50.0, dtype=F64))["w"]
    assert torch.equal(far.sign(), W["w"].sign())


def test_euclidean_moves_zeros_too() -> None:
    chart = Euclidean().chart(W)
    assert torch.equal(chart.weights(Z)["w"], W["w"] + Z)
    assert chart.dimension == 4


def test_diagonal_length_is_that_of_its_metric() -> None:
    # Kills: sqrt(g) for 1/sqrt(g).
    g = torch.tensor([4.0, 1.0, 0.25, 9.0], dtype=F64)
    chart = Diagonal({"w": g}).chart(W)
    x = chart.weights(Z)["w"] - W["w"]
    assert float((g * x * x).sum()) == pytest.approx(float(Z @ Z))
    torch.testing.assert_close(chart.coordinates({"w": x}), Z)


@pytest.mark.parametrize("bad", [torch.tensor([1.0, 0.0]), torch.tensor([1.0, -1.0]), torch.tensor([1.0, math.nan])])
def test_diagonal_refuses_metrics_that_are_not_positive(bad: Tensor) -> None:
    with pytest.raises(ArgumentError, match="expected a positive finite metric for 'w'"):
        Diagonal({"w": bad})


def test_diagonal_refuses_an_infinite_metric() -> None:
    with pytest.raises(ArgumentError, match="positive finite"):
        Diagonal({"w": torch.tensor([1.0, math.inf])})


def test_diagonal_needs_a_metric_for_every_parameter() -> None:
    with pytest.raises(ModelError, match="got none for 'w'"):
        Diagonal({"v": torch.ones(4)}).chart(W)


def test_diagonal_metric_must_broadcast() -> None:
    with pytest.raises(ModelError, match="broadcasts to 'w'"):
        Diagonal({"w": torch.ones(3)}).chart(W)


def test_settings_are_validated(unchecked: None) -> None:
    with pytest.raises(ArgumentError, match="expected metric out of"):
        Quotient("gram")
    with pytest.raises(ArgumentError, match="expected curve 'exact'"):
        Quotient(curve="third_order")
    with pytest.raises(ArgumentError, match="expected an elementwise geometry for the rest"):
        Quotient(rest=Quotient())
    with pytest.raises(ArgumentError, match="expected curve 'straight'"):
        Elementwise("bent")


def test_nothing_to_move_is_an_error() -> None:
    with pytest.raises(ModelError, match="at least one parameter"):
        Euclidean().chart({})
    with pytest.raises(ModelError, match="expected weights that can move"):
        Elementwise().chart({"w": torch.zeros(3)})


# --------------------------------------------------------------------------------------------- blocks inside parameters


def fused() -> tuple[dict[str, Tensor], Pair]:
    """A parameter of 3 x 6 whose first two rows of columns 0..3 are G (transposed); H is a parameter of its own."""
    shape = Shape(4, 3, 2)
    weights = {"w": normal(3, 6, seed=1), "h": normal(1, 3, 2, seed=2)}
    left = Factor(
        (Piece("w", (1, 3, 6), batch=(0,), rows=(2,), column=1, index=(slice(None), slice(0, 2), slice(0, 4))),)
    )
    right = one_pair(shape).right
    return weights, Pair("part", left, right)


@metrics
@pytest.mark.parametrize("rest", [Elementwise(), Elementwise("geodesic"), Euclidean()], ids=str)
def test_a_block_may_cover_part_of_a_parameter(metric: str, rest: Geometry) -> None:
    # Kills: a mask that is inverted or ignored: each entry must be moved by exactly one part.
    weights, block = fused()
    chart = Quotient(metric, blocks=[block], rest=rest).chart(weights)
    outside = torch.ones(3, 6, dtype=torch.bool)
    outside[:2, :4] = False
    assert chart.dimension == int(outside.sum()) + 2 * (4 + 3) - 4
    z = chart.gaussian(torch.Generator().manual_seed(1)) * 0.1
    got, alone = chart.weights(z), rest.chart({"w": weights["w"]})
    x = chart.tangent(z)["w"]
    elementwise = alone.weights(alone.coordinates({"w": torch.where(outside, x, 0)}))["w"]
    torch.testing.assert_close(got["w"][outside], elementwise[outside], rtol=1e-12, atol=1e-12)
    block_only = Quotient(metric, blocks=[one_pair(Shape(4, 3, 2))]).chart(
        {"g": weights["w"][:2, :4].mT.contiguous().unsqueeze(0), "h": weights["h"]}
    )
    pair = block_only.weights(block_only.coordinates({"g": x[:2, :4].mT.unsqueeze(0), "h": chart.tangent(z)["h"]}))
    torch.testing.assert_close(got["w"][:2, :4].mT @ got["h"][0].mT, pair["g"][0] @ pair["h"][0].mT)
    torch.testing.assert_close(chart.coordinates(chart.tangent(z)), z, rtol=0, atol=1e-11)
    assert float(chart.project(torch.ones(chart.size, dtype=F64))[:18].view(3, 6)[:2, :4].abs().max()) == 0


def test_blocks_must_not_overlap() -> None:
    # Kills: silent double moves of shared weights.
    shape = Shape(4, 3, 2)
    weights = {"g": normal(1, 4, 2, seed=1), "h": normal(1, 3, 2, seed=2), "k": normal(1, 3, 2, seed=3)}
    with pytest.raises(ModelError, match="share no weights, but an entry of 'g'"):
        Quotient(blocks=[one_pair(shape), one_pair(shape, right="k")]).chart(weights)


def test_blocks_must_be_measured() -> None:
    with pytest.raises(ModelError, match=r"missing \['h'\]"):
        Quotient(blocks=[one_pair(Shape(4, 3, 2))]).chart({"g": normal(1, 4, 2, seed=1)})


@metrics
def test_blocks_of_several_shapes_are_independent(metric: str) -> None:
    # Kills: coordinates handed to the wrong group of heads.
    weights = {"g": normal(2, 4, 2, seed=1), "h": normal(2, 3, 2, seed=2), "k": normal(1, 3, 1, seed=3)}
    weights |= {"l": normal(1, 5, 1, seed=4)}
    one, two = one_pair(Shape(4, 3, 2), 2), one_pair(Shape(3, 5, 1), left="k", right="l")
    both = Quotient(metric, blocks=[two, one]).chart(weights)
    z = both.gaussian(torch.Generator().manual_seed(1)) * 0.05
    got, x = both.weights(z), both.tangent(z)
    for block, (a, b) in ((one, ("g", "h")), (two, ("k", "l"))):
        chart = Quotient(metric, blocks=[block]).chart({n: weights[n] for n in (a, b)})
        wanted = chart.weights(chart.coordinates({n: x[n] for n in (a, b)}))
        torch.testing.assert_close(got[a] @ got[b].mT, wanted[a] @ wanted[b].mT, rtol=1e-9, atol=1e-10)
