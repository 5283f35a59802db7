"""Networks together give the numbers of each network by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from conftest import build_vit
from spiritlevel.errors import ArgumentError, DerivativeError, LossError, ModelError, NondeterminismError
from spiritlevel.geometry import Geometry
from spiritlevel.solvers import AutoPGD, L2Ball, LinfBall
from spiritlevel.solvers.together import maximise_together
from spiritlevel.study.ensemble import Ensemble, average_cases, gradient_norms, worst_cases
from spiritlevel.study.ensemble.chart import stacked_block

AGREE = 1e-6  # the issue's; float64 networks agree to 1e-12


class DiagonalNet(nn.Module):
    """``x . (u * v)``."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.u * self.v)


def squares(output: Tensor, batch: Any) -> Tensor:
    return (output - batch[1]).square().mean()


def regression(dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    x, y = torch.randn(20, 12, dtype=dtype), torch.randn(20, dtype=dtype)
    return [(x[:12], y[:12]), (x[12:], y[12:])]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double().eval()


def classes() -> list[tuple[Tensor, Tensor]]:
    x, y = torch.randn(20, 12, dtype=torch.float64), torch.randint(3, (20,))
    return [(x[:12], y[:12]), (x[12:], y[12:])]


Zoo = tuple[list[nn.Module], list[Any], Callable[..., Tensor] | None]


@pytest.fixture(params=["diagonal", "perceptron", "vit"])
def zoo(request: pytest.FixtureRequest) -> Zoo:
    if request.param == "diagonal":
        return [DiagonalNet().double() for _ in range(7)], regression(torch.float64), squares
    if request.param == "perceptron":
        models = [perceptron() for _ in range(5)]
        for i, model in enumerate(models):  # buffers differ too
            model[1].running_mean.fill_(0.1 * i)  # type: ignore[operator,union-attr]
        return models, classes(), None
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 1, 8, 8, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]))]
    return [build_vit(seed=s) for s in range(3)], batches * 2, None


def geometries(zoo: Zoo) -> list[Geometry]:
    found: list[Geometry] = [sl.Euclidean(), sl.Elementwise(), sl.Elementwise("geodesic")]
    return [*found, sl.Quotient()] if "ViT" in type(zoo[0][0]).__name__ else found


def test_losses_are_those_of_each_network(zoo: Zoo) -> None:
    """Kills: buffers or weights of the first network used for all."""
    models, batches, loss = zoo
    ensemble = Ensemble(models, batches, loss)
    found = torch.stack([ensemble.losses(b) for b in batches])
    for i, model in enumerate(models):
        problem = sl.Problem(model, batches, loss)
        expected = torch.tensor([problem.value(problem.weights, b) for b in batches], dtype=torch.float64)
        torch.testing.assert_close(found[:, i], expected, rtol=1e-12, atol=1e-12)


def test_measures_are_those_of_each_network(zoo: Zoo) -> None:
    """Gradient norm, average case at the same points, worst case by the same solver, batch by batch.

    Kills: coordinates of two networks mixed up; norms over all networks; noise of its own for each network.
    """
    models, batches, loss = zoo
    ensemble, solver = Ensemble(models, batches, loss), AutoPGD(steps=6)
    for geometry in geometries(zoo):
        norms = gradient_norms(ensemble, geometry)
        means = average_cases(ensemble, geometry, 0.05, samples=4, seed=3)
        curves = worst_cases(ensemble, geometry, [0.1, 0.03], solver)
        for i, model in enumerate(models):
            problem = sl.Problem(model, batches, loss)
            norm = sl.gradient_norm(problem, geometry)
            mean = sl.average_case(problem, geometry, 0.05, 4, seed=3)
            curve = sl.worst_case(problem, geometry, [0.1, 0.03], solver)
            pairs = [(norms[i], norm), (means[i], mean), *zip(curves[i], curve, strict=True)]
            for mine, alone in pairs:
                assert mine.per_batch == pytest.approx(alone.per_batch, rel=AGREE, abs=1e-9), (geometry, mine.name)
                assert mine.status == alone.status
                assert mine.stats["evaluations"] == alone.stats["evaluations"]
                assert mine.settings.items() <= alone.settings.items()
            assert [m.stats["residual"] for m in curves[i]] == pytest.approx(
                [m.stats["residual"] for m in curve], rel=1e-4, abs=1e-6
            )


def test_the_largest_coordinate(zoo: Zoo) -> None:
    """The l-infinity ball too, with early stopping row by row."""
    models, batches, loss = zoo
    solver = AutoPGD(steps=8, tolerance=1e-3)
    curves = worst_cases(Ensemble(models, batches, loss), sl.Elementwise(), 0.01, solver, norm="linf")
    for curve, model in zip(curves, models, strict=True):
        alone = sl.worst_case(sl.Problem(model, batches, loss), sl.Elementwise(), 0.01, solver, norm="linf")
        assert curve[0].per_batch == pytest.approx(alone.per_batch, rel=AGREE)
        assert curve[0].stats["evaluations per batch"] == alone.stats["evaluations per batch"]


def test_micro_batches_add_up() -> None:
    """Kills: shares of unequal parts forgotten."""
    models, batches = [perceptron() for _ in range(3)], classes()
    whole, cut = Ensemble(models, batches), Ensemble(models, batches, micro_batch=5)
    for batch in batches:
        torch.testing.assert_close(whole.losses(batch), cut.losses(batch), rtol=1e-12, atol=0)
    a, b = (gradient_norms(e, sl.Euclidean()) for e in (whole, cut))
    assert [m.value for m in a] == pytest.approx([m.value for m in b], rel=1e-12)


def test_models_stay_as_they_are() -> None:
    models = [perceptron().train() for _ in range(2)]
    before = [{n: t.clone() for n, t in m.state_dict().items()} for m in models]
    gradient_norms(Ensemble(models, classes()), sl.Elementwise())
    for model, state in zip(models, before, strict=True):
        assert model.training
        assert all(p.grad is None for p in model.parameters())
        assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())


@pytest.mark.parametrize("ball", [L2Ball(1.0), LinfBall(0.5)])
@pytest.mark.parametrize("tolerance", [0.0, 1e-2])
def test_rows_are_searched_like_single_functions(ball: Any, tolerance: float) -> None:
    """Concave, convex and non-finite functions, some started elsewhere; every history is that of the search alone.

    Kills: one step size for all rows; halving where another row's best did not move; checkpoints not shifted by a
    start.
    """
    curvature = torch.tensor([[3.0, 1.0], [-4.0, -0.5], [2.0, -30.0], [1.0, 1.0]], dtype=torch.float64)
    slope = torch.tensor([[0.1, 1.0], [0.3, 0.2], [1.0, 5.0], [1.0, 0.0]], dtype=torch.float64)

    def functions(z: Tensor) -> tuple[Tensor, Tensor]:
        value = (slope * z + curvature * z**2 / 2).sum(1)
        value[3] = torch.where(z[3, 0] > 0.45, torch.nan, value[3])
        return value, slope + curvature * z

    starts = torch.tensor([[0.0, 0.0], [0.2, -0.1], [0.0, 0.0], [-0.3, 0.1]], dtype=torch.float64)
    solver = AutoPGD(steps=20, tolerance=tolerance)
    zero = torch.zeros_like(slope)
    for given in (None, starts):
        found = maximise_together(solver, functions, ball, *functions(zero), given)
        for i, mine in enumerate(found):

            def alone(z: Tensor, i: int = i) -> tuple[float, Tensor]:
                values, gradients = functions(z.expand(4, 2))
                return float(values[i]), gradients[i]

            start = None if given is None or not bool(given[i].any()) else given[i]
            expected = solver.maximise(alone, ball, alone(zero[i]), start=start)
            assert mine.history == pytest.approx(expected.history, rel=1e-12, nan_ok=True)
            assert (mine.status, mine.evaluations) == (expected.status, expected.evaluations)
            assert (mine.value, mine.residual) == pytest.approx(
                (expected.value, expected.residual), rel=1e-9, abs=1e-12
            )
            torch.testing.assert_close(mine.z, expected.z)


def test_what_cannot_be_stacked_is_refused() -> None:
    small, large = nn.Linear(2, 2), nn.Linear(3, 2)
    batches = [(torch.zeros(2, 2), torch.tensor([0, 1]))]
    with pytest.raises(ModelError, match="at least one network"):
        Ensemble([], batches)
    with pytest.raises(ModelError, match=r"number 1 has other parameters"):
        Ensemble([small, large], batches)
    with pytest.raises(ModelError, match="one class"):
        Ensemble([small, nn.Sequential(small)], batches)
    dropped = [nn.Sequential(nn.Dropout(p), nn.Linear(2, 2)) for p in (0.1, 0.5)]
    with pytest.raises(ModelError, match="other parameters or modules"):
        Ensemble(dropped, batches)
    with pytest.raises(LossError, match="scalar loss"):
        Ensemble([small], batches, lambda output, batch: output).losses(batches[0])
    with pytest.raises(ModelError, match="mapped over networks"):
        Ensemble([small], batches, lambda output, batch: torch.tensor(output.sum().item())).losses(batches[0])


def test_numbers_that_are_not_finite() -> None:
    models = [nn.Linear(2, 2) for _ in range(3)]
    batches = [(torch.ones(2, 2), torch.tensor([0, 1]))]
    nn.init.constant_(models[1].weight, torch.nan)
    with pytest.raises(LossError, match="number 1"):
        gradient_norms(Ensemble(models, batches), sl.Euclidean())
    nn.init.zeros_(models[1].weight)

    def root(output: Tensor, batch: Any) -> Tensor:
        return output.abs().sqrt().sum() + 0 * batch[0].sum()

    nn.init.zeros_(models[1].bias)
    with pytest.raises(DerivativeError, match="every network's own weights"):
        gradient_norms(Ensemble(models, batches, root), sl.Euclidean())
    cliff = Ensemble(models, batches, lambda o, b: torch.where(o.abs().max() > 1e3, torch.nan, o.mean()))
    with pytest.raises(LossError, match="some of 2 random points"):
        average_cases(cliff, sl.Euclidean(), 1e6, samples=2)


def test_batches_that_change_are_refused() -> None:
    class Shuffled:
        def __iter__(self) -> Any:
            yield torch.randn(2, 2), torch.tensor([0, 1])

    with pytest.raises(NondeterminismError, match="turn off shuffling"):
        gradient_norms(Ensemble([nn.Linear(2, 2)], Shuffled()), sl.Euclidean())


def test_what_measures_refuse() -> None:
    batches = [(torch.zeros(2, 2), torch.tensor([0, 1]))]
    ensemble = Ensemble([nn.Linear(2, 2), nn.Linear(2, 2)], batches)
    with pytest.raises(ArgumentError, match="even number"):
        average_cases(ensemble, sl.Euclidean(), samples=3)
    with pytest.raises(ArgumentError, match="norm 'l2' or 'linf'"):
        worst_cases(ensemble, sl.Euclidean(), norm="l1")
    with pytest.raises(ArgumentError, match="Auto-PGD"):
        worst_cases(ensemble, sl.Euclidean(), solver=sl.solvers.SphereAscent())  # type: ignore[arg-type]
    for solver in (AutoPGD.epfl(), AutoPGD(restarts=1)):
        with pytest.raises(ArgumentError, match="without restarts"):
            worst_cases(ensemble, sl.Euclidean(), solver=solver)


def test_quotients_that_differ_between_networks_are_refused() -> None:
    """Facts such as rho / s_min belong to one network; other blocks than pairs have no stack."""
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 1, 8, 8, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]))]
    vits = Ensemble([build_vit(seed=s) for s in range(2)], batches)
    with pytest.raises(ArgumentError, match="rho / s_min"):
        gradient_norms(vits, sl.Quotient("cross_gram"))
    with pytest.raises(ArgumentError, match="basis"):
        worst_cases(vits, sl.Quotient(), norm="linf")
    found = sl.find_symmetries(vits.models[0], kinds="all", batch=batches[0])
    other = next(b for b in found if not isinstance(b, sl.Pair))
    with pytest.raises(ArgumentError, match="pairs of factors only"):
        stacked_block(other, 2)


def test_fifty_networks_together_take_a_fifth_of_the_time() -> None:
    """CPU time, interleaved, the best of three rounds; the bench has the numbers themselves (15 and more)."""
    models = [DiagonalNet() for _ in range(50)]
    batches = regression()

    def alone() -> list[float]:
        return [sl.average_case(sl.Problem(m, batches, squares), sl.Elementwise(), 0.1, 10).value for m in models]

    def together() -> list[float]:
        return [m.value for m in average_cases(Ensemble(models, batches, squares), sl.Elementwise(), 0.1, 10)]

    times: dict[str, list[float]] = {"alone": [], "together": []}
    for _ in range(3):
        for name, work in (("alone", alone), ("together", together)):
            began = time.process_time()
            values = work()
            times[name].append(time.process_time() - began)
            if name == "alone":
                expected = values
    assert values == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert min(times["alone"]) > 5 * min(times["together"]), times


def test_stacking_changes_no_settings_of_a_block() -> None:
    pair = sl.find_symmetries(build_vit())[0]
    assert isinstance(pair, sl.Pair)
    assert stacked_block(pair, 3).heads == 3 * pair.heads
    assert replace(stacked_block(pair, 3), left=pair.left, right=pair.right) == pair
