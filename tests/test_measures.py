"""Measures: closed forms on quadratics, curves, statistics, states, printing."""

import copy
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.errors import ArgumentError, LossError
from spiritlevel.measures import MEASURES, Options
from spiritlevel.solvers import AutoPGD, L2Ball, LinfBall

CURVATURE = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)


class Bowl(nn.Module):
    """Output and loss are ``sum c w^2 / 2 + g w``: everything is known in closed form."""

    def __init__(self, start: tuple[float, ...] = (0.0, 0.0, 0.0), slope: tuple[float, ...] = (0.0, 0.0, 0.0)) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.slope = torch.tensor(slope, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return ((CURVATURE * self.w**2).sum() / 2 + (self.slope * self.w).sum()) * x.mean()


def bowl(*args: Any, scales: tuple[float, ...] = (1.0,)) -> sl.Problem:
    batches = [(torch.full((2,), s, dtype=torch.float64), torch.zeros(2)) for s in scales]
    return sl.Problem(Bowl(*args), batches, loss=lambda out, batch: out)


def test_average_case_is_half_the_trace() -> None:
    """Kills: rho for rho^2, a missing half, dividing by the dimension (pairs leave only chi-square noise)."""
    result = sl.average_case(bowl(), sl.Euclidean(), rho=0.1, samples=4000)
    want = 0.01 * float(CURVATURE.sum()) / 2
    assert result.standard_error is not None
    assert abs(result.value - want) < 4 * result.standard_error
    spread = 0.01 * math.sqrt(float((CURVATURE**2).sum()) / 2)
    assert result.standard_error == pytest.approx(spread / math.sqrt(2000), rel=0.1)


def test_antithetic_pairs_cancel_the_slope() -> None:
    """Kills: pairs that are no pairs. With a steep slope the plain estimate is far noisier."""
    problem = bowl((0.0, 0.0, 0.0), (5.0, 5.0, 5.0))
    paired, plain = (sl.average_case(problem, sl.Euclidean(), 0.1, 200, antithetic=a) for a in (True, False))
    assert paired.standard_error is not None
    assert plain.standard_error is not None
    assert paired.standard_error < plain.standard_error / 20


def test_average_case_repeats_with_its_seed_only() -> None:
    values = [sl.average_case(bowl(), sl.Euclidean(), 0.1, 4, seed=s).value for s in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


def test_gradient_norm_in_three_geometries() -> None:
    """Kills: the Euclidean norm everywhere; 1/w for w."""
    start, slope = (2.0, 0.0, 1.0), (1.0, 1.0, 1.0)
    problem = bowl(start, slope)
    assert sl.gradient_norm(problem, sl.Euclidean()).status == sl.Status.EXACT
    gradient = CURVATURE * torch.tensor(start) + 1
    scaled = gradient * torch.tensor(start)
    assert sl.gradient_norm(problem, sl.Euclidean()).value == pytest.approx(float(gradient.norm()), rel=1e-12)
    assert sl.gradient_norm(problem, sl.Elementwise()).value == pytest.approx(float(scaled.norm()), rel=1e-12)
    metric = {"w": torch.tensor([4.0, 1.0, 0.25])}
    diagonal = gradient / metric["w"].sqrt()
    assert sl.gradient_norm(problem, sl.Diagonal(metric)).value == pytest.approx(float(diagonal.norm()), rel=1e-6)


def test_worst_case_of_a_bowl() -> None:
    """At slope g along the sharpest axis the maximum is g rho + c rho^2 / 2."""
    problem = bowl((0.0, 0.0, 0.0), (0.2, 0.0, 0.0))
    result = sl.worst_case(problem, sl.Euclidean(), 0.5)
    assert result.value == pytest.approx(0.2 * 0.5 + 3 * 0.25 / 2, rel=1e-6)
    assert result.status == sl.Status.CONVERGED
    assert result.stats["residual"] < 1e-5


def test_worst_case_in_the_cube() -> None:
    problem = bowl((1.0, 1.0, 1.0))
    result = sl.adaptive_sharpness(problem, 0.1, norm="linf")
    assert result.value == pytest.approx(float((CURVATURE * (1.1**2 - 1)).sum()) / 2, rel=1e-9)


def test_mean_over_batches_and_union() -> None:
    """Kills: the maximum of the mean for the mean of maxima; a standard error over too few."""
    problem = bowl((0.0, 0.0, 0.0), (0.2, 0.0, 0.0), scales=(1.0, 2.0, 4.0))
    one = 0.2 * 0.5 + 3 * 0.25 / 2
    result = sl.worst_case(problem, sl.Euclidean(), 0.5)
    assert result.per_batch == pytest.approx((one, 2 * one, 4 * one), rel=1e-6)
    assert result.value == pytest.approx(7 * one / 3, rel=1e-6)
    assert result.standard_error == pytest.approx(
        one * math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2 / 3), rel=1e-6
    )
    union = sl.worst_case(problem, sl.Euclidean(), 0.5, over="union")
    assert union.per_batch == pytest.approx((7 * one / 3,), rel=1e-6)
    assert union.standard_error is None


def two_layer() -> sl.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    g = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(16, 4, generator=g, dtype=torch.float64), torch.randint(3, (16,), generator=g)) for _ in range(2)
    ]
    return sl.Problem(model, batches)


def test_a_curve_rises_and_agrees_with_single_radii() -> None:
    """Kills: warm starts that lose the best point; results in the wrong order."""
    radii = [0.4, 0.1, 0.2, 0.8]
    curve = sl.adaptive_sharpness(two_layer(), radii)
    assert [m.settings["rho"] for m in curve] == radii
    assert sorted(curve.values) == [curve.values[i] for i in (1, 2, 0, 3)]
    for m in curve:
        single = sl.adaptive_sharpness(two_layer(), m.settings["rho"])
        assert m.value == pytest.approx(single.value, rel=1e-3)


def test_a_curve_takes_fewer_evaluations_than_its_points() -> None:
    radii = [0.1, 0.15, 0.2]
    curve = sl.adaptive_sharpness(two_layer(), radii)
    singles = [sl.adaptive_sharpness(two_layer(), r) for r in radii]
    assert sum(m.stats["evaluations"] for m in curve) <= sum(m.stats["evaluations"] for m in singles)


def test_seed_fixes_the_result() -> None:
    solver = AutoPGD(steps=5, restarts=2)
    values = [sl.worst_case(two_layer(), sl.Elementwise(), 0.5, solver, seed=3).value for _ in range(2)]
    assert values[0] == values[1]


def test_gradients_are_counted_as_the_loss_saw_them() -> None:
    calls = 0

    def counted(out: Tensor, batch: Any) -> Tensor:
        nonlocal calls
        calls += out.requires_grad
        return nn.functional.cross_entropy(out, batch[1])

    problem = two_layer()
    problem.loss = counted
    result = sl.adaptive_sharpness(problem, 0.5)
    assert calls == result.stats["evaluations"] + len(result.per_batch)  # one more for each centre


class Cliff(nn.Module):
    """Finite near its weights, NaN beyond."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.log(2.2 - self.w.sum()) * x.mean()


def test_loss_that_is_not_finite_somewhere_is_a_status() -> None:
    """Kills: NaN in the value; a crash; the state unreported."""
    data = [(torch.ones(2, dtype=torch.float64), torch.zeros(2))]
    problem = sl.Problem(Cliff(), data, loss=lambda out, batch: out)
    result = sl.worst_case(problem, sl.Euclidean(), 0.5)
    assert result.status == sl.Status.NONFINITE
    assert math.isfinite(result.value)
    assert result.value > 0
    average = sl.average_case(problem, sl.Euclidean(), 0.5, 20)
    assert average.status == sl.Status.NONFINITE
    assert math.isfinite(average.value)


def test_average_needs_some_finite_sample() -> None:
    class Thin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.where((self.w - 1).abs().max() > 1e-9, float("nan") * self.w.sum(), self.w.sum()) * x.mean()

    data = [(torch.ones(2, dtype=torch.float64), torch.zeros(2))]
    problem = sl.Problem(Thin(), data, loss=lambda out, batch: out)
    with pytest.raises(LossError, match="take rho below"):
        sl.average_case(problem, sl.Euclidean(), 0.1, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: sl.average_case(p, sl.Euclidean(), samples=1), "at least 2 samples"),
        (lambda p: sl.average_case(p, sl.Euclidean(), samples=3), "even number"),
        (lambda p: sl.worst_case(p, sl.Euclidean(), over="all"), "over='batches' or over='union'"),
        (lambda p: sl.worst_case(p, sl.Euclidean(), norm="l1"), "norm 'l2' or 'linf'"),
        (lambda p: sl.worst_case(p, sl.Quotient(), norm="linf"), "choice of basis"),
        (lambda p: sl.Quotient(metric="other"), "expected metric out of"),
        (lambda p: sl.Quotient(curve="bent"), "expected curve"),
        (lambda p: sl.Quotient(rest=sl.Quotient()), "another Quotient"),
        (lambda p: sl.Elementwise(curve="bent"), "expected curve"),
        (lambda p: AutoPGD(steps=0), "steps >= 1"),
        (lambda p: AutoPGD(momentum=2.0), "momentum"),
        (lambda p: L2Ball(-1.0), "radius"),
        (lambda p: LinfBall(float("nan")), "radius"),
    ],
)
def test_bad_settings(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call(two_layer())


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_by_name_prints_and_goes_to_json(name: str) -> None:
    """The contract of a registered measure: one result for each radius, finite, plain data, readable."""
    found = MEASURES[name].run(two_layer(), Options(rho=(0.01, 0.02) if MEASURES[name].radii else (), samples=2))
    assert len(found) == (2 if MEASURES[name].radii else 1)
    for m in found:
        assert math.isfinite(m.value)
        assert m.value == pytest.approx(sum(m.per_batch) / len(m.per_batch))
        assert json.loads(json.dumps(m.to_dict(), allow_nan=False))["value"] == m.value
        assert m.name in str(m)
        assert "<pre" in m._repr_html_()
        assert float(m) == m.value
        assert {"dimension", "model", "loss", "precision", "geometry"} <= set(m.settings)


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_has_usable_default_radii(name: str) -> None:
    assert all(math.isfinite(m.value) for m in MEASURES[name].run(two_layer(), Options(samples=2)))


def test_epfl_preset_finds_less_than_ours_and_is_not_invariant() -> None:
    """The public baseline's defects, reproduced: a diagonal rescale of a linear pair changes its value, not ours."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    other = copy.deepcopy(model)
    scale = torch.exp(torch.linspace(-2, 2, 8, dtype=torch.float64))
    with torch.no_grad():
        other[0].weight *= scale[:, None]
        other[0].bias *= scale
        other[2].weight /= scale
    data = list(two_layer().batches())
    ours, theirs = (
        [sl.adaptive_sharpness(sl.Problem(m, data), 0.5, solver=solver).value for m in (model, other)]
        for solver in (None, AutoPGD.epfl())
    )
    assert ours[0] == pytest.approx(ours[1], rel=1e-6)
    assert theirs[0] < ours[0]
    assert theirs[1] < 0.95 * theirs[0]


def test_autopgd_follows_the_published_schedule() -> None:
    """A hand-written run of Algorithm 1 of Croce & Hein on a function of two variables. Kills: momentum on the first
    step, EPFL's sign of momentum, a step that is not normalised, no rewind to the best point."""

    def f(z: Tensor) -> tuple[float, Tensor]:
        value = torch.sin(3 * z[0]) + 0.5 * torch.cos(5 * z[1]) + z[0] * z[1]
        gradient = torch.stack([3 * torch.cos(3 * z[0]) + z[1], -2.5 * torch.sin(5 * z[1]) + z[0]])
        return float(value), gradient

    def project(z: Tensor) -> Tensor:
        return z * min(1.0, 1.5 / float(z.norm()))

    n, eta, alpha = 20, 3.0, 0.75
    xs = [torch.zeros(2, dtype=torch.float64)]
    fs = [f(xs[0])[0]]
    history: list[float] = []
    x, x_before, value = xs[0], xs[0], fs[0]
    best_x, best_f, kept, rises, last = x, value, (eta, value), 0, 0
    for k in range(1, n + 1):
        g = f(x)[1]
        y = project(x + eta * g / g.norm())
        new = y if k == 1 else project(x + alpha * (y - x) + (1 - alpha) * (x - x_before))
        x_before, x = x, new
        v = f(x)[0]
        history.append(v)
        rises += v > value
        value = v
        if v > best_f:
            best_x, best_f = x, v
        if k in (5, 9, 12, 14, 16, 18, 19, 20):
            now = (eta, best_f)  # the step of this iteration, before it is halved
            if rises < 0.75 * (k - last) or kept == now:
                eta, x, x_before, value = eta / 2, best_x, best_x, best_f
            kept, rises, last = now, 0, k
    found = AutoPGD().maximise(f, L2Ball(1.5), f(torch.zeros(2, dtype=torch.float64)))
    assert found.history == pytest.approx(history, rel=1e-12)
    assert found.value == pytest.approx(best_f, rel=1e-12)
    assert found.evaluations == 20
