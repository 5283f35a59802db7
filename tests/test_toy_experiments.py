"""Scalar toy and diagonal networks: closed forms against definitions, the machinery and dense searches."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor

import spiritlevel as sl
from oracles import ball_maximum
from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError
from spiritlevel.experiments import EXPERIMENTS
from spiritlevel.experiments.diagonal_agreement import agreement, cases, hard_case, printed, quadratic_maximum
from spiritlevel.experiments.diagonal_forms import CURVES, Orthonormal
from spiritlevel.experiments.diagonal_measures import MEASURES, _farthest, average, cross_in_its_ball
from spiritlevel.experiments.diagonal_networks import PAPER, Plan, diagonal_networks, taus_of
from spiritlevel.experiments.diagonal_zoo import Setting, Zoo, train
from spiritlevel.experiments.products import ProductNet, pairs, problem_of
from spiritlevel.experiments.scalar_forms import FIELDS, eq26, sharpness
from spiritlevel.experiments.scalar_measured import SIX, fields_at
from spiritlevel.experiments.trust_region import diagonal_trust_region, trust_region

F64 = torch.float64


def random(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=F64)


# -------------------------------------------------------------------------------------------------------- trust region


TRUST = {
    "boundary": ([0.3, -0.2, 0.1], [2.0, -1.0, 0.5]),
    "interior": ([0.1, -0.05, 0.02], [-2.0, -1.0, -0.5]),
    "concave, but past the ball": ([3.0, -2.0, 1.0], [-2.0, -1.0, -0.5]),
    "hard": ([0.0, -0.2, 0.1], [2.0, -1.0, 0.5]),
    "hard with a double top": ([0.0, 0.0, 0.1], [2.0, 2.0, 0.5]),
    "top at g = 0, but not hard": ([0.0, -2.0, 1.0], [2.0, 1.9, 0.5]),
    "nearly hard": ([1e-9, -0.2, 0.1], [2.0, -1.0, 0.5]),
    "no gradient": ([0.0, 0.0, 0.0], [2.0, -1.0, 0.5]),
    "no gradient, concave": ([0.0, 0.0, 0.0], [-2.0, -1.0, -0.5]),
    "flat top": ([0.0, 0.1, 0.1], [0.0, -2.0, -2.0]),
}


@pytest.mark.parametrize("name", TRUST)
def test_the_trust_region_is_the_dense_maximum(name: str) -> None:
    """Kills: no part along the top eigenvector, a multiplier from 0 on, the boundary for an interior maximum."""
    g, a = (torch.tensor(v, dtype=F64) for v in TRUST[name])
    rho = 0.7
    dense = rho**2 * float(a.max()) / 2  # where there is no gradient the dense search has nowhere to start
    if bool(g.any()):
        dense = max(ball_maximum(lambda z: z @ g + z.square() @ a / 2, 3, rho, seed=s) for s in range(2))
    peak = diagonal_trust_region(g, a, rho)
    assert float(peak.value) == pytest.approx(max(dense, 0.0), rel=1e-7, abs=1e-12)
    assert float(peak.point.norm()) <= rho * (1 + 1e-12)
    assert float(g @ peak.point + a @ peak.point.square() / 2) == pytest.approx(float(peak.value), abs=1e-14)
    assert float(peak.multiplier) >= max(float(a.max()), 0.0)
    assert bool(peak.hard) == (name.startswith(("hard", "no gradient", "flat")) and "concave" not in name)
    turn = torch.linalg.qr(random(0)(3, 3))[0]
    turned = trust_region((turn @ g)[None], (turn @ torch.diag(a) @ turn.mT)[None], rho)
    assert float(turned.value[0]) == pytest.approx(float(peak.value), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(turned.point[0].norm(), peak.point.norm(), rtol=1e-6, atol=1e-9)


def test_problems_of_a_stack_do_not_meet() -> None:
    rows = [(torch.tensor(g, dtype=F64), torch.tensor(a, dtype=F64)) for g, a in TRUST.values()]
    together = diagonal_trust_region(*(torch.stack(t) for t in zip(*rows, strict=True)), 0.7)
    alone = torch.stack([diagonal_trust_region(g, a, 0.7).value for g, a in rows])
    torch.testing.assert_close(together.value, alone, rtol=1e-13, atol=0)


def test_a_radius_of_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected a radius above 0, got 0"):
        diagonal_trust_region(torch.ones(2), torch.ones(2), 0.0)


# -------------------------------------------------------------------------------------- closed forms, orthonormal data


def test_the_rise_is_the_loss_of_moved_weights() -> None:
    """By the definition: weights moved, the loss evaluated. Kills a lost square or factor in Eq. 11."""
    (case,) = cases(6, 1, 3, 0.3)
    b, w = 0.2 * random(1)(6), case.problem.weights
    batch = next(case.problem.batches())
    before = case.problem.value(w, batch)
    for name, stretch in (("geodesic", torch.exp(b)), ("straight", 1 + b)):
        after = case.problem.value({"u": w["u"] * stretch, "v": w["v"] * stretch}, batch)
        assert float(case.forms.rise(b, CURVES[name]).sum()) == pytest.approx(after - before, rel=1e-11)
    root = torch.sqrt(1 + 2 * b)  # the geodesic of the second metric
    after = case.problem.value({"u": w["u"] * root, "v": w["v"] * root}, batch)
    assert float(case.forms.rise(b, CURVES["cross"]).sum()) == pytest.approx(after - before, rel=1e-11)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("residual", [0.05, 0.4])
def test_the_exact_form_is_the_dense_maximum(curve: str, residual: float) -> None:
    draw = random(5)
    beta = draw(3)
    forms = Orthonormal(beta, beta + residual * draw(3))
    found = forms.maximum(0.4, CURVES[curve])
    dense = max(ball_maximum(lambda z: forms.rise(z, CURVES[curve]).sum(-1), 3, 0.4, 64, s) for s in range(2))
    assert found.value == pytest.approx(dense, rel=1e-9)
    assert found.bound >= found.value * (1 - 1e-12)
    assert float(found.point.norm()) <= 0.4 * (1 + 1e-12)


@pytest.mark.parametrize(("curve", "size"), [("geodesic", math.expm1(0.8)), ("straight", 1.4**2 - 1), ("cross", 0.8)])
def test_where_the_labels_are_fitted_one_coordinate_takes_all(curve: str, size: float) -> None:
    """Sums of convex functions of the squared shares: the maximum is at a vertex, ``max beta^2 (s(rho) - 1)^2``."""
    beta = random(5)(7)
    found = Orthonormal(beta, beta).maximum(0.4, CURVES[curve])
    assert found.value == pytest.approx(float(beta.abs().max()) ** 2 * size**2, rel=1e-9)
    assert found.bound == pytest.approx(found.value, rel=1e-9)


def test_every_closed_form_equals_the_machinery() -> None:
    """The contract's 1e-6, with networks off the minimum, at it, and in the hard case."""
    found = list(agreement(10, 2, 0.1, 0))
    assert len(found) == 8
    assert all(c.holds for c in found), [(c.what, c.here) for c in found]
    assert all(float(c.here) < 1e-6 for c in found[:-1])


def test_the_hard_case_is_hard_and_a_search_along_the_gradient_misses_it() -> None:
    case = hard_case(10, 0)
    peak = case.forms.case_c(0.1)
    assert bool(peak.hard)
    assert float(case.forms.r[0]) == 0
    assert abs(float(peak.point[0])) > 0.09
    # what the printed equations leave: no multiplier above 4 max D, so that the length is never reached
    beyond = 2 * case.forms.r / (4 * case.forms.curvature.max() * (1 + 1e-9) - 4 * case.forms.curvature)
    assert float(beyond.norm()) < 0.1
    alone = sl.solvers.SphereAscent(steps=300, tolerance=1e-14)
    along = quadratic_maximum(case.problem, case.quotient, math.sqrt(2) * 0.1, alone)
    assert along <= float(peak.value) * (1 + 1e-12)
    assert quadratic_maximum(case.problem, case.quotient, math.sqrt(2) * 0.1) == pytest.approx(float(peak.value), 1e-9)


def test_what_is_printed_wrongly_is_reported() -> None:
    found = list(printed(8, 0.1, 0))
    assert [c.holds for c in found] == [False] * 4
    assert float(found[1].here) == pytest.approx(0.1)
    assert float(found[2].here) == pytest.approx(4.0, rel=1e-9)
    assert 0 < float(found[3].here) < 0.9


# ------------------------------------------------------------------------------------------------------------ networks


SMALL = Setting(width=5, nonzero=2, networks=4, examples=3, init=(0.3, 1.0), rates=(0.02, 0.04), steps=40_000)


@pytest.fixture(scope="module")
def zoo() -> Zoo:
    return train(SMALL, 0)


def test_networks_stop_at_the_stated_loss(zoo: Zoo) -> None:
    assert zoo.lost == 0
    assert bool((zoo.train_loss <= 1e-5).all())
    assert bool((zoo.train_loss > 0.9e-5).all())  # and not later
    assert int((zoo.truth != 0).sum()) == 2
    problem = problem_of(zoo.u[1], zoo.v[1], zoo.x, zoo.y)
    assert problem.value(problem.weights, next(problem.batches())) == pytest.approx(float(zoo.train_loss[1]))


def test_training_is_gradient_descent(zoo: Zoo) -> None:
    """One network once more by autograd, from the same start. Kills a lost factor 2 and a stale factor."""
    lonely = replace(SMALL, networks=2, rates=(0.03, 0.03), steps=1, loss=1e-30)
    with pytest.raises(ArgumentError, match=r"expected networks to reach a loss of 1e-30 in 1 steps"):
        train(lonely, 0)
    slow = train(replace(SMALL, rates=(0.03, 0.03)), 0)
    model = ProductNet(slow.u[0] * 0 + 1, slow.v[0] * 0 + 1)  # only to be overwritten
    generator = torch.Generator().manual_seed(0)
    torch.randn(3, 5, generator=generator, dtype=F64), torch.randn(2, generator=generator, dtype=F64)
    torch.randperm(5, generator=generator), torch.randn(3, generator=generator, dtype=F64)
    torch.rand(4, 1, generator=generator, dtype=F64), torch.rand(4, 1, generator=generator, dtype=F64)
    first = torch.randn(2, 4, 5, generator=generator, dtype=F64) * slow.init[:, None]
    model.load_state_dict({"u": first[0, 0], "v": first[1, 0]})
    for _ in range(int(slow.steps[0])):
        model.zero_grad()
        (model(slow.x) - slow.y).square().sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.03 * p.grad
    torch.testing.assert_close(model.u.detach(), slow.u[0], rtol=1e-8, atol=1e-10)


def test_a_seed_fixes_the_networks(zoo: Zoo) -> None:
    again, other = train(SMALL, 0), train(SMALL, 1)
    assert torch.equal(again.u, zoo.u)
    assert torch.equal(again.y, zoo.y)
    assert not torch.equal(other.u, zoo.u)


def test_the_test_loss_is_the_expected_square(zoo: Zoo) -> None:
    x = random(9)(200_000, 5)
    sampled = (x @ (zoo.beta - zoo.truth).mT).square().mean(0)
    torch.testing.assert_close(sampled, zoo.test_loss, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"nonzero": 6}, "expected 0 < nonzero <= width"), ({"networks": 1}, "two networks"),
     ({"init": (0.0, 1.0)}, "expected init to be two numbers above 0"),
     ({"rates": (0.2, 0.1)}, "expected rates to be two numbers above 0 in order")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        replace(SMALL, **change)


def test_networks_that_cannot_be_trained_are_counted_or_refused() -> None:
    some = train(replace(SMALL, steps=600), 0)
    whole = train(SMALL, 0)
    assert some.lost == int((whole.steps > 600).sum())
    assert 0 < some.lost < 4
    assert len(some.u) == 4 - some.lost
    with pytest.raises(ArgumentError, match="allow more steps"):
        train(replace(SMALL, steps=5), 0)


# ------------------------------------------------------------------------------------------------------------ measures


@pytest.mark.parametrize("name", ["adaptive", "geodesic"])
def test_ascents_in_shares_find_the_dense_maximum(zoo: Zoo, name: str) -> None:
    """Over all 2 d coordinates of the definition, not over d shares. Kills a ball of sqrt(2) times the size."""
    rho = 0.3
    for i in range(4):

        def rise(z: Tensor, i: int = i) -> Tensor:
            p, q = z[..., :5], z[..., 5:]
            if name == "geodesic":
                mean = (p + q) / 2  # only the horizontal part counts
                factor = torch.exp(2 * mean)
            else:
                factor = (1 + p) * (1 + q)
            return ((zoo.beta[i] * factor) @ zoo.x.T - zoo.y).square().sum(-1) - zoo.train_loss[i]

        dense = max(ball_maximum(rise, 10, rho, 32, s) for s in range(2))
        assert float(MEASURES[name](zoo, rho)[i]) == pytest.approx(dense, rel=1e-7)


def test_ascents_in_shares_equal_the_machinery(zoo: Zoo) -> None:
    solver = sl.solvers.SphereAscent(steps=200, tolerance=1e-13, restarts=6)
    for name, geometry in (("adaptive", sl.Elementwise()), ("geodesic", sl.Quotient(blocks=pairs(5)))):
        found = MEASURES[name](zoo, 0.1)
        for i in range(4):
            problem = problem_of(zoo.u[i], zoo.v[i], zoo.x, zoo.y)
            assert sl.worst_case(problem, geometry, 0.1, solver).value == pytest.approx(float(found[i]), rel=1e-6)


def test_second_order_measures_are_those_of_the_machinery(zoo: Zoo) -> None:
    """Gradient and Hessian of the machinery. In the second metric ``|B| <= rho`` is no ball: weights scale it."""
    found = MEASURES["geodesic, Eq. 12"](zoo, 0.1)
    for i in range(4):
        problem = problem_of(zoo.u[i], zoo.v[i], zoo.x, zoo.y)
        measured = quadratic_maximum(problem, sl.Quotient(blocks=pairs(5)), math.sqrt(2) * 0.1)
        assert measured == pytest.approx(float(found[i]), rel=1e-6)

        def rise(b: Tensor, i: int = i) -> Tensor:
            return ((zoo.beta[i] * (1 + 2 * b)) @ zoo.x.T - zoo.y).square().sum(-1) - zoo.train_loss[i]

        dense = max(ball_maximum(rise, 5, 0.1, 32, s) for s in range(2))
        assert float(MEASURES["cross, |B|"](zoo, 0.1)[i]) == pytest.approx(dense, rel=1e-8)


@pytest.mark.slow  # the machinery integrates its geodesics, some hundred times
def test_the_second_metric_in_its_own_ball(zoo: Zoo) -> None:
    """Below the edge the machinery with its integrated geodesics; past it a dense search that keeps all signs."""
    solver = sl.solvers.SphereAscent(steps=60, tolerance=1e-12, restarts=3)
    for i in range(2):
        problem = problem_of(zoo.u[i], zoo.v[i], zoo.x, zoo.y)
        rho = 0.4 * float(zoo.beta[i].abs().min())
        measured = sl.worst_case(problem, sl.Quotient("cross_gram", blocks=pairs(5)), rho, solver).value
        one = Zoo(zoo.x, zoo.y, zoo.truth, zoo.u[i : i + 1], zoo.v[i : i + 1], zoo.init[:1], zoo.steps[:1], 0)
        assert float(cross_in_its_ball(one, rho)) == pytest.approx(measured, rel=1e-6)

        def rise(c: Tensor, i: int = i) -> Tensor:
            beta, sign = zoo.beta[i], zoo.beta[i].sign()
            moved = sign * (sign * (beta + math.sqrt(2) * c)).clamp_min(0.0)
            return (moved @ zoo.x.T - zoo.y).square().sum(-1) - zoo.train_loss[i]

        past = 2 * float(zoo.beta[i].abs().max())
        dense = max(ball_maximum(rise, 5, past, 64, s) for s in range(3))
        found = float(cross_in_its_ball(one, past))
        assert found <= dense * (1 + 1e-9)  # both are lower bounds, the dense one of the maximum itself
        assert found > 0.8 * dense


def test_the_farthest_move_keeps_signs_and_length() -> None:
    """Kills a cut-off in the wrong direction and a move that does not use its length."""
    draw = random(4)
    beta, direction = draw(6, 8), draw(6, 8)
    for radius in (0.05, 1.0, 4.0):
        move = _farthest(direction, beta, radius)
        assert bool(((beta + move) * beta > -1e-12).all())
        torch.testing.assert_close(move.norm(dim=1), torch.full((6,), radius, dtype=F64))
        others = draw(4000, 6, 8)
        others = radius * others / others.norm(dim=-1, keepdim=True)
        others = torch.maximum(others * beta.sign(), -beta.abs()) * beta.sign()
        assert bool(((others * direction).sum(-1) <= (move * direction).sum(-1) + 1e-12).all())
        steps = move - _farthest(move + 1e-6 * direction, beta, radius)  # no neighbour is better
        assert bool(((steps * direction).sum(-1) > -1e-4).all())


def test_the_average_case_is_exact(zoo: Zoo) -> None:
    for i in range(2):
        measured = sl.average_case(problem_of(zoo.u[i], zoo.v[i], zoo.x, zoo.y), sl.Elementwise(), 0.3, samples=2000)
        assert measured.standard_error is not None
        assert abs(float(average(zoo, 0.3)[i]) - measured.value) < 4 * measured.standard_error


def test_measures_do_not_change_along_orbits(zoo: Zoo) -> None:
    moved = replace(zoo, u=zoo.u * 7, v=zoo.v / 7)
    for name, measure in MEASURES.items():
        torch.testing.assert_close(measure(moved, 0.1), measure(zoo, 0.1), rtol=1e-9, atol=0, msg=name)


def test_taus_are_kendalls_and_say_what_is_left() -> None:
    zoo = train(replace(SMALL, networks=12, width=8, examples=5), 2)
    values = {name: measure(zoo, 0.1) for name, measure in MEASURES.items()}
    taus = taus_of(zoo, values)
    for name in values:
        assert taus[name] == pytest.approx(kendalltau(values[name], zoo.test_loss)[0])
    t = {n: kendalltau(*pair)[0] for n, pair in {"xy": (values["adaptive"], zoo.test_loss),
         "xz": (values["adaptive"], zoo.init), "yz": (zoo.test_loss, zoo.init)}.items()}  # fmt: skip
    left = (t["xy"] - t["xz"] * t["yz"]) / math.sqrt((1 - t["xz"] ** 2) * (1 - t["yz"] ** 2))
    assert taus["adaptive given init"] == pytest.approx(left)
    assert "adaptive given init" not in taus_of(replace(zoo, init=torch.ones(len(zoo.u), dtype=F64)), values)


# ------------------------------------------------------------------------------------------------------------- reports


TINY = Plan(base=replace(SMALL, networks=10, width=8, examples=5), draws=3, variants=("label noise 0.2",),
            variant_draws=2, radii=(0.01,), checked=1, width=6)  # fmt: skip


def test_a_seed_fixes_the_report_and_all_of_it_is_written(tmp_path: Path) -> None:
    first, again, other = (diagonal_networks(True, seed, TINY) for seed in (0, 0, 1))
    assert first.to_dict() == again.to_dict()
    assert first.to_dict()["data"] != other.to_dict()["data"]
    written = first.write(tmp_path)
    assert {p.suffix for p in written} == {".json", ".csv", ".md", ".png", ".svg"}
    assert len(first.figures) == 3
    data = json.loads((tmp_path / "diagonal-networks.json").read_text())
    assert len(data["data"]["taus of each draw"]) == 3
    assert set(data["data"]["variants"]) == {"rho 0.01", "label noise 0.2"}
    assert data["settings"]["examples (chosen)"] == 5
    whats = [c.what for c in first.claims]
    assert sum(w.startswith("tau with the test loss") for w in whats) == len(PAPER)
    assert {c.holds for c in first.claims[:8]} == {True}
    assert [c.holds for c in first.claims[8:12]] == [False] * 4
    machinery = next(c for c in first.claims if "general machinery" in c.what)
    assert float(machinery.here) < 1e-6


def test_scalar_fields_are_measured() -> None:
    """Derivatives by autograd of the loss itself, at a point off the minimum."""
    g, h, x, y = 0.9, 0.6, 1.5, 1.2
    data = (torch.tensor([x], dtype=F64), torch.tensor([y], dtype=F64))
    found = fields_at(g, h, data)

    def loss(w: Tensor) -> Tensor:
        return (w[0] * w[1] * x - y) ** 2

    def along(b: Tensor) -> Tensor:  # unit speed along the geodesic: b / sqrt(2) in the logarithm of each weight
        return (g * h * torch.exp(math.sqrt(2) * b) * x - y) ** 2

    w, zero = torch.tensor([g, h], dtype=F64), torch.zeros((), dtype=F64)
    expected = {
        "loss": loss(w), "Euclidean gradient": torch.func.grad(loss)(w).norm(),
        "Riemannian gradient": torch.func.grad(along)(zero).abs(),
        "Euclidean trace": torch.func.hessian(loss)(w).trace(), "Riemannian trace": torch.func.hessian(along)(zero),
    }  # fmt: skip
    for name in FIELDS:
        assert found[name] == pytest.approx(float(expected[name]), rel=1e-10), name


def test_eq26_is_the_taylor_series_of_eq25() -> None:
    data = (torch.tensor([1.5, -0.7], dtype=F64), torch.tensor([1.2, 0.4], dtype=F64))
    g, h = (torch.tensor(w, dtype=F64) for w in SIX[1])
    errors = [float((eq26(g, h, data, r) - sharpness(g, h, data, r)).abs()) for r in (1e-2, 1e-3)]
    assert errors[0] / errors[1] == pytest.approx(1000, rel=0.1)


def test_the_scalar_toy_says_what_holds_and_what_does_not(tmp_path: Path) -> None:
    found = EXPERIMENTS["scalar-toy"].run(True, 0)
    verdicts = {c.what: c.holds for c in found.claims}
    good = [
        w for w in verdicts if "closed form" in w or w.startswith(("Eq. 24", "Eq. 25", "first order", "ours: second"))
    ]
    assert len(good) == 9
    assert all(verdicts[w] for w in good)
    bad = ("second order of Eq. 26", "what Eq. 26 leaves out falls like rho^3, as printed", "at a minimum",
           "these geodesics", "the trace of the Riemannian Hessian is 0",
           "the trace of the Euclidean Hessian is highest")  # fmt: skip
    wrong = [w for w in verdicts if w.startswith(bad)]
    assert len(wrong) == 8
    assert not any(verdicts[w] for w in wrong)
    numbers = {c.what: c.here for c in found.claims}
    assert numbers["at a minimum the trace of the Euclidean Hessian is G^2 + H^2 (App. D)"] == pytest.approx(4.5)
    assert numbers["the trace of the Riemannian Hessian is 0 at the minimum (Fig. 7 c)"] == pytest.approx(5.76)
    assert {p.suffix for p in found.write(tmp_path)} == {".json", ".csv", ".md", ".png", ".svg"}
    assert EXPERIMENTS["scalar-toy"].run(True, 0).to_dict() == found.to_dict()


def test_both_are_listed_and_weights_of_different_lengths_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    text = capsys.readouterr().out
    assert "scalar-toy" in text
    assert "diagonal-networks" in text
    with pytest.raises(ArgumentError, match="expected two vectors of one length"):
        ProductNet(torch.ones(2), torch.ones(3))


def test_the_symmetry_of_the_networks_holds() -> None:
    draw = random(0)
    model, batch = ProductNet(draw(4), draw(4)), (draw(6, 4), draw(6))
    drifts = sl.verify_symmetries(model, batch, pairs(4))
    assert max(drifts.values()) < 1e-12


@pytest.mark.slow  # the size that CI runs: half a minute
def test_the_quick_run_takes_less_than_a_minute() -> None:
    began = time.process_time()
    found = EXPERIMENTS["diagonal-networks"].run(True, 0)
    assert time.process_time() - began < 60
    assert found.claims[12].here == "200 of 200"
