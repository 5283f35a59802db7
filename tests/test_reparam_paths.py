"""Flows, optimisers, densities, evidence and kernels: the paper's claims 4, 5, 7, 8 and 11, on networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp
from torch import Tensor, nn
from torch.func import hessian, jacrev
from torch.nn.utils import parametrizations

import spiritlevel as sl
from spiritlevel.core.results import Status
from spiritlevel.errors import ArgumentError, DerivativeError, LossError
from spiritlevel.reparam import (
    SCHEMES,
    Bijection,
    Density,
    Flow,
    Layout,
    Log,
    Monotone,
    Polar,
    Reparametrisation,
    Scaling,
    TransportedOptimizer,
    WeightNorm,
    carried,
    empirical_ntk,
    jeffreys,
    laplace_evidence,
    loss_gradient,
    mode,
    posterior,
    reparametrise,
    reparametrised,
)
from test_reparam_operators import at_minimum, classifier, positive, smooth

F64 = torch.float64


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def regression(seed: int = 0, width: int = 4, examples: int = 30) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)).double()
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(examples, 1, generator=g, dtype=F64) * 4
    return model, (x, torch.sin(x) + 0.3 * torch.randn(examples, 1, generator=g, dtype=F64))


# --------------------------------------------------------------------------------------------------------- C4: flows


def curved(theta: dict[str, Tensor], w: dict[str, Tensor]) -> dict[str, Tensor]:
    """A metric that changes from point to point, inverted."""
    return {n: g / (1 + theta[n] ** 2) for n, g in w.items()}


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("metric", [None, curved], ids=["identity", "curved"])
def test_the_flow_takes_the_same_path_in_any_coordinates(
    metric: Callable[..., dict[str, Tensor]] | None, seed: int
) -> None:
    # Kills: the metric left behind, J^T for J, the preconditioner taken at psi.
    model, batch = classifier(seed % 5)
    problem = sl.Problem(model, [batch])
    change = smooth(Layout(problem.weights), seed)
    new = reparametrised(problem, change)
    old, gradient = Flow(None, metric), loss_gradient(problem)
    wanted = problem.weights
    images = change.forward(wanted)
    for _ in range(3):
        wanted = old.step(wanted, gradient, 0.2)
        images = Flow(change, metric).image(images, loss_gradient(new), 0.2)
    assert distance(change.inverse(images), wanted) < 1e-8
    velocity = Flow(change, metric).velocity(new.weights, loss_gradient(new)(new.weights))
    pushed = change.jvp(problem.weights, old.velocity(problem.weights, gradient(problem.weights)))
    assert distance(velocity, pushed) < 1e-8
    naive = Flow(None, metric).velocity(new.weights, loss_gradient(new)(new.weights))
    assert distance(naive, pushed) > 1e-3


@pytest.mark.parametrize(("name", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_the_error_of_a_path_falls_with_the_order_of_its_scheme(name: str, order: int) -> None:
    # Remark 4, measured: a path in psi leaves the one in theta by O(h^order). Kills: a wrong tableau.
    model, batch = classifier(3)
    problem = sl.Problem(model, [batch])
    change = smooth(Layout(problem.weights), 4)
    new = reparametrised(problem, change)
    sizes, errors = [0.4, 0.2, 0.1], []
    for h in sizes:
        steps = round(1.2 / h)
        there = Flow(None).path(problem.weights, loss_gradient(problem), h, steps, SCHEMES[name])[-1]
        here = Flow(change).path(new.weights, loss_gradient(new), h, steps, SCHEMES[name])[-1]
        errors.append(distance(change.inverse(here), there))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.35, (slope, errors)


def test_rk4_solves_the_flow() -> None:
    # Kills: a flow that climbs, a step of half the size.
    model, batch = classifier(2)
    problem = sl.Problem(model, [batch])
    layout, gradient = Layout(problem.weights), loss_gradient(problem)

    def slope(_: float, x: np.ndarray) -> np.ndarray:
        return -layout.flat(gradient(layout.named(torch.from_numpy(x.copy())))).numpy()

    wanted = solve_ivp(slope, (0, 1), layout.flat(problem.weights).numpy(), rtol=1e-10, atol=1e-12).y[:, -1]
    found = Flow().path(problem.weights, gradient, 0.1, 10, SCHEMES["rk4"])[-1]
    np.testing.assert_allclose(layout.flat(found).numpy(), wanted, rtol=1e-5, atol=1e-7)
    assert distance(Flow().image(problem.weights, gradient, 0.1), Flow().step(problem.weights, gradient, 0.1)) == 0


def test_weight_norm_takes_the_same_path_though_it_has_more_parameters() -> None:
    model, batch = regression()
    problem = sl.Problem(model, [batch], nn.MSELoss())
    change = WeightNorm(["0.weight", "2.weight"])
    new = reparametrised(problem, change)
    there = Flow().path(problem.weights, loss_gradient(problem), 0.01, 20)[-1]
    here = Flow(change).path(new.weights, loss_gradient(new), 0.01, 20)[-1]
    naive = Flow().path(new.weights, loss_gradient(new), 0.01, 20)[-1]
    assert distance(change.inverse(here), there) < 2e-3
    assert distance(change.inverse(naive), there) > 5e-2


def test_flows_refuse_bad_steps() -> None:
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    with pytest.raises(ArgumentError, match="step size above 0"):
        Flow().step(problem.weights, loss_gradient(problem), 0.0)
    with pytest.raises(ArgumentError, match="steps to be a whole number"):
        Flow().path(problem.weights, loss_gradient(problem), 0.1, 0)
    with pytest.raises(LossError, match=r"finite step, got NaN or infinity in '0\.weight'"):
        Flow().step(problem.weights, lambda w: {n: x / 0 for n, x in w.items()}, 0.1)


OPTIMISERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("name", list(OPTIMISERS))
@pytest.mark.parametrize("map_name", ["carried weight norm", "polar", "shears"])
def test_any_optimiser_takes_the_same_path_in_any_coordinates(name: str, map_name: str) -> None:
    # Kills: state kept in psi, weight decay on psi, a schedule that turns another knob, gradients not pulled back.
    model, (x, y) = regression()
    plain, new = copy.deepcopy(model), copy.deepcopy(model)
    if map_name == "carried weight norm":
        parametrizations.weight_norm(new[0])
        parametrizations.weight_norm(new[2])
        change: Reparametrisation = carried(new)
    else:
        weights = dict(model.named_parameters())
        change = smooth(Layout(weights), 1) if map_name == "shears" else Polar(["2.weight"], reference=weights)
        new = reparametrise(new, change)
    mine = TransportedOptimizer(new.named_parameters(), change, OPTIMISERS[name])
    theirs = OPTIMISERS[name](list(plain.parameters()))
    schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (mine, theirs)]
    for step in range(6):
        for m, o, s in zip((new, plain), (mine, theirs), schedules, strict=True):
            o.zero_grad()
            nn.functional.mse_loss(m(x), y).backward()
            o.step()
            s.step()
        if step == 2:  # the state travels
            again = TransportedOptimizer(new.named_parameters(), change, OPTIMISERS[name])
            again.load_state_dict(copy.deepcopy(mine.state_dict()))
            mine, schedules[0] = again, schedules[0]
            schedules[0].optimizer = again
    torch.testing.assert_close(new(x), plain(x), rtol=1e-8, atol=1e-10)


def test_weights_loaded_after_the_optimiser_are_kept() -> None:
    # Kills: phi of the theta from before written over a checkpoint.
    model, (x, y) = regression()
    change = Monotone(torch.sinh, torch.asinh)
    new = reparametrise(copy.deepcopy(model), change)
    o = TransportedOptimizer(new.named_parameters(), change, lambda p: torch.optim.SGD(p, lr=1e-6))
    loaded = {n: p + 0.5 for n, p in new.state_dict().items()}
    new.load_state_dict(loaded)
    nn.functional.mse_loss(new(x), y).backward()
    o.step()
    for n, p in new.state_dict().items():
        torch.testing.assert_close(p, loaded[n], rtol=0, atol=1e-3)


def test_without_gradients_nothing_moves() -> None:
    # Kills: gradients of 0 in the place of none, with which weight decay and momentum go on.
    model, _ = regression()
    change = Monotone(torch.sinh, torch.asinh)
    new = reparametrise(copy.deepcopy(model), change)
    o = TransportedOptimizer(new.named_parameters(), change, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5))
    before = copy.deepcopy(new.state_dict())
    o.step()
    first = next(iter(new.parameters()))
    first.grad = torch.ones_like(first)
    o.step()
    moved = [n for n, p in new.state_dict().items() if not torch.equal(p, before[n])]
    assert len(moved) == 1


def test_the_linearised_optimiser_leaves_the_path_in_first_order() -> None:
    errors = []
    for lr in (0.04, 0.02, 0.01):
        model, (x, y) = regression()
        change = Monotone(torch.sinh, torch.asinh)
        new, ends = reparametrise(copy.deepcopy(model), change), []
        for exact in (True, False):
            m = copy.deepcopy(new)
            o = TransportedOptimizer(
                m.named_parameters(), change, lambda p, lr=lr: torch.optim.SGD(p, lr=lr), exact=exact
            )
            for _ in range(round(0.4 / lr)):
                o.zero_grad(set_to_none=False)
                loss = o.step(lambda m=m, x=x, y=y: _backward(nn.functional.mse_loss(m(x), y)))
                assert loss is not None
            ends.append(m(x).detach())
        errors.append(float((ends[0] - ends[1]).abs().max()))
    slope = np.polyfit(np.log([0.04, 0.02, 0.01]), np.log(errors), 1)[0]
    assert abs(slope - 1) < 0.3
    with pytest.raises(ArgumentError, match="requires a gradient"):
        TransportedOptimizer([], change, OPTIMISERS["sgd"])


def _backward(loss: Tensor) -> float:
    loss.backward()
    return loss.item()


# ----------------------------------------------------------------------------------------------------- C5: densities


def test_modes_under_the_volume_stay_and_ordinary_modes_move() -> None:
    # A log-normal variance: closed forms. Kills: a Jacobian forgotten or counted twice.
    mean, deviation = 0.3, 0.5
    density = Density(lambda w: (-torch.log(w["v"]) - (torch.log(w["v"]) - mean) ** 2 / (2 * deviation**2)).sum())
    new = density.transported(Log())
    start = {"v": torch.tensor([1.0], dtype=F64)}
    psi = Log().forward(start)
    old_mode = mode(density, start).weights["v"]
    assert float(old_mode) == pytest.approx(math.exp(mean - deviation**2), rel=1e-8)
    assert float(mode(new, psi).weights["v"]) == pytest.approx(mean - deviation**2, rel=1e-8)  # its image
    assert float(mode(new, psi, "lebesgue").weights["v"]) == pytest.approx(mean, rel=1e-8)  # another point


def test_both_rules_integrate_to_one() -> None:
    # Kills: the volume of theta used in psi, a root of the determinant forgotten.
    def log(w: dict[str, Tensor]) -> Tensor:
        return (-((w["x"] - 1) ** 2) / 2 - 0.5 * math.log(2 * math.pi)).sum()

    def volume(w: dict[str, Tensor]) -> Tensor:
        return torch.log1p(w["x"] ** 2).sum() / 2

    density = Density(log, volume)
    new = density.transported(Monotone(torch.sinh, torch.asinh))
    for d, far in ((density, 9.0), (new, math.sinh(9.0))):

        def ordinary(x: float, d: Density = d) -> float:
            return float(d.log({"x": torch.tensor([x], dtype=F64)}).exp())

        def riemannian(x: float, d: Density = d) -> float:
            at = {"x": torch.tensor([x], dtype=F64)}
            return float((d.under_volume(at) + d.log_volume(at)).exp())

        near = [0.0, 0.5, 2.0, 5.0] + ([20.0, 100.0, 500.0] if far > 9 else [])
        assert quad(ordinary, -far, far, points=near, limit=400)[0] == pytest.approx(1, abs=1e-8)
        assert quad(riemannian, -far, far, points=near, limit=400)[0] == pytest.approx(1, abs=1e-8)


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 10**6))
def test_the_map_estimate_of_a_network_is_invariant_under_the_volume(seed: int) -> None:
    # On a network: kills a mode of q |det J^-1|, which is another function.
    model, batch = regression(seed % 3, width=2)
    problem = sl.Problem(model, [batch], nn.MSELoss())
    density = posterior(problem, 1.0, 15 / 0.09)
    start = mode(density, problem.weights)
    assert start.status is Status.CONVERGED
    change = smooth(Layout(problem.weights), seed)
    new = density.transported(change)
    near = {
        n: w + 1e-2 * torch.cos(torch.arange(w.numel(), dtype=F64)).view_as(w)
        for n, w in change.forward(start.weights).items()
    }
    found = mode(new, near)
    assert found.status is Status.CONVERGED
    assert distance(change.inverse(found.weights), start.weights) < 1e-8
    assert found.log_density == pytest.approx(start.log_density, rel=1e-10)
    moved = mode(new, near, "lebesgue")
    assert distance(change.inverse(moved.weights), start.weights) > 1e-5


def test_jeffreys_prior_is_uniform_under_the_fishers_volume_in_all_coordinates() -> None:
    # Bernoulli: F = 1 / (p (1 - p)); arcsine law. Kills: det F for its root.
    prior = jeffreys(lambda w: -torch.log(w["p"] * (1 - w["p"])).sum())
    change = Monotone(torch.logit, torch.sigmoid, domain=(0.0, 1.0))
    new = prior.transported(change)
    fisher_of_logit = jeffreys(lambda w: (torch.log(torch.sigmoid(w["p"])) + torch.log(torch.sigmoid(-w["p"]))).sum())
    for p in (0.1, 0.5, 0.83):
        at = {"p": torch.tensor([p], dtype=F64)}
        assert float(prior.under_volume(at)) == 0
        assert float(new.under_volume(change.forward(at))) == pytest.approx(0, abs=1e-12)
        assert float(prior.log(at)) == pytest.approx(-0.5 * math.log(p * (1 - p)), rel=1e-12)
        psi = change.forward(at)  # computed there anew it is the same density: what it is loved for
        assert float(new.log(psi)) == pytest.approx(float(fisher_of_logit.log(psi)), rel=1e-10)
    total = quad(lambda p: float(prior.log({"p": torch.tensor([p], dtype=F64)}).exp()), 0, 1)[0]
    assert total == pytest.approx(math.pi, rel=1e-6)


def test_densities_refuse_what_they_cannot_do() -> None:
    density = Density(lambda w: -w["x"].square().sum())
    with pytest.raises(ArgumentError, match="under='volume' or 'lebesgue'"):
        mode(density, {"x": torch.zeros(1)}, "counting")  # type: ignore[arg-type]
    model, batch = regression()
    with pytest.raises(ArgumentError, match="prior precision and scale above 0"):
        posterior(sl.Problem(model, [batch], nn.MSELoss()), 0.0, 1.0)
    with pytest.raises(LossError, match="finite density on the way"):
        mode(Density(lambda w: w["x"].log().sum()), {"x": torch.tensor([-1.0])})
    endless = Density(lambda w: w["x"].sum())
    assert mode(endless, {"x": torch.zeros(1, dtype=F64)}, rounds=2).status is Status.BUDGET


# -------------------------------------------------------------------------------------------------- C7, C8: evidence


def trained(seed: int = 0) -> tuple[nn.Module, tuple[Tensor, Tensor], sl.Problem]:
    model, batch = regression(seed, width=5)
    problem = sl.Problem(model, [batch], nn.MSELoss())
    best = mode(posterior(problem, 2.0, 15 / 0.09), problem.weights).weights
    model.load_state_dict(best)
    return model, batch, problem


def test_the_evidence_of_a_linear_model_is_exact() -> None:
    # Closed form of Bayesian linear regression. Kills: either sign of the printed Eq. 5, the lost 1/2 of App. E.3.
    g = torch.Generator().manual_seed(0)
    x, noise, precision = torch.randn(20, 3, generator=g, dtype=F64), 0.4, 1.7
    y = torch.randn(20, 1, generator=g, dtype=F64)
    model = nn.Linear(3, 1, bias=False).double()
    h = x.mT @ x / noise**2 + precision * torch.eye(3, dtype=F64)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.solve(h, x.mT @ y / noise**2).mT)
    covariance = noise**2 * torch.eye(20, dtype=F64) + x @ x.mT / precision
    exact = torch.distributions.MultivariateNormal(torch.zeros(20, dtype=F64), covariance).log_prob(y[:, 0])
    batches = [(x[:8], y[:8]), (x[8:], y[8:])]
    for matrix in ("hessian", "gauss_newton"):
        found = laplace_evidence(sl.Problem(model, batches, nn.MSELoss()), precision, noise=noise, matrix=matrix)  # type: ignore[arg-type]
        assert found.value == pytest.approx(float(exact), rel=1e-10)
        assert found.value == pytest.approx(found.log_likelihood + found.rest, rel=1e-12)


@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")  # BackPACK's hooks, on inputs without gradients
def test_the_evidence_agrees_with_laplace_torch() -> None:
    pytest.importorskip("laplace", reason="make setup installs it from peers.txt")
    from laplace import Laplace
    from laplace.curvature import BackPackGGN

    for likelihood in ("regression", "classification"):
        if likelihood == "regression":
            model, batch, problem = trained()
        else:
            model, batch = classifier()
            problem = sl.Problem(model, [batch])
        noise = 0.3 if likelihood == "regression" else 1.0
        theirs = Laplace(
            copy.deepcopy(model), likelihood, subset_of_weights="all", hessian_structure="full", prior_precision=2.0,
            sigma_noise=noise, backend=BackPackGGN,
        )  # fmt: skip
        theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch), batch_size=10))
        ours = laplace_evidence(problem, 2.0, noise=noise)
        assert ours.value == pytest.approx(theirs.log_marginal_likelihood().item(), rel=1e-6)


@pytest.mark.parametrize(
    "make",
    [lambda x: WeightNorm(["0.weight", "2.weight"]), lambda x: Scaling(3.0), lambda x: smooth(x, 8)],
    ids=["weight norm", "scaling", "shears"],
)
def test_the_transported_evidence_is_invariant_and_the_naive_one_is_not(
    make: Callable[[Layout], Reparametrisation],
) -> None:
    # Kills: dimension or prior of psi, a determinant without the metric's.
    _, _, problem = trained()
    change = make(Layout(problem.weights))
    new = reparametrised(problem, change)
    for matrix in ("hessian", "gauss_newton"):
        old = laplace_evidence(problem, 2.0, noise=0.3, matrix=matrix)  # type: ignore[arg-type]
        found = laplace_evidence(new, 2.0, noise=0.3, change=change, matrix=matrix)  # type: ignore[arg-type]
        assert found.value == pytest.approx(old.value, rel=1e-8)
        assert found.dimension == old.dimension
    naive = laplace_evidence(new, 2.0, noise=0.3)
    assert naive.log_likelihood == pytest.approx(old.log_likelihood, rel=1e-10)
    assert abs(naive.value - old.value) > 0.1
    units = 5 + 1 if isinstance(change, WeightNorm) else 0
    assert naive.dimension == old.dimension + units


def test_evidence_refuses_what_is_no_posterior() -> None:
    model, batch = regression()
    problem = sl.Problem(model, [batch], nn.MSELoss())
    with pytest.raises(ArgumentError, match="prior_precision above 0"):
        laplace_evidence(problem, 0.0)
    with pytest.raises(ArgumentError, match="noise above 0"):
        laplace_evidence(problem, noise=-1.0)
    with pytest.raises(ArgumentError, match="matrix 'gauss_newton' or 'hessian'"):
        laplace_evidence(problem, matrix="fisher")  # type: ignore[arg-type]
    with pytest.raises(LossError, match="mean squared error for a likelihood"):
        laplace_evidence(sl.Problem(model, [batch], nn.L1Loss()))
    with pytest.raises(DerivativeError, match="this is no mode"):
        laplace_evidence(problem, 1e-6, noise=0.1, matrix="hessian")
    text = str(laplace_evidence(problem))
    assert "log Z" in text
    assert laplace_evidence(problem).to_dict()["settings"]["matrix"] == "gauss_newton"


# ------------------------------------------------------------------------------------------------------ C11: kernels


class Tangent(nn.Module):
    """A network of one hidden layer; ``ntk`` puts the scale into the function."""

    def __init__(self, width: int, ntk: bool, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        scale = 1.0 if ntk else width**-0.5
        self.first = nn.Parameter(torch.randn(width, 2, generator=g, dtype=F64))
        self.last = nn.Parameter(scale * torch.randn(width, generator=g, dtype=F64))
        self.factor = width**-0.5 if ntk else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(x @ self.first.mT) @ self.last * self.factor)[:, None]


def kernel(width: int, ntk: bool, seed: int = 0) -> float:
    x = torch.tensor([[0.5, -1.0], [1.0, 2.0]], dtype=F64)
    problem = sl.Problem(Tangent(width, ntk, seed), [(x, torch.zeros(2, 1, dtype=F64))], nn.MSELoss(), ["last"])
    return float(empirical_ntk(problem, sl.Euclidean())[0, 0])


def test_the_kernel_against_its_definition_and_its_invariance() -> None:
    # Kills: differentials for gradients, a metric left behind.
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    layout = Layout(problem.weights)
    jacobian = jacrev(lambda w: torch.func.functional_call(model, layout.named(w), (batch[0],)).reshape(-1))(
        layout.flat(problem.weights)
    )
    k = empirical_ntk(problem, sl.Euclidean())
    torch.testing.assert_close(k, jacobian @ jacobian.mT, rtol=1e-10, atol=1e-12)
    g = positive(layout.size, 1)
    torch.testing.assert_close(
        empirical_ntk(problem, sl.Dense(g)), jacobian @ torch.linalg.solve(g, jacobian.mT), rtol=1e-9, atol=1e-11
    )
    for change in (Scaling(3.0), smooth(layout, 5)):
        new = reparametrised(problem, change)
        torch.testing.assert_close(empirical_ntk(new, sl.Euclidean().transported(change)), k, rtol=1e-8, atol=1e-10)
        assert not torch.allclose(empirical_ntk(new, sl.Euclidean()), k, rtol=0.05)


def test_the_standard_kernel_grows_with_width_and_the_ntk_one_does_not() -> None:
    # E.1: they are not one function in two parametrisations.
    standard, tangent = (
        [np.mean([kernel(w, ntk, s) for s in range(5)]) for w in (16, 64, 256)] for ntk in (False, True)
    )
    assert np.polyfit(np.log([16, 64, 256]), np.log(standard), 1)[0] == pytest.approx(1.0, abs=0.1)
    assert np.polyfit(np.log([16, 64, 256]), np.log(tangent), 1)[0] == pytest.approx(0.0, abs=0.1)
    model = Tangent(64, False, 0)
    x = torch.tensor([[0.5, -1.0]], dtype=F64)
    problem = sl.Problem(model, [(x, torch.zeros(1, 1, dtype=F64))], nn.MSELoss(), ["last"])
    change = Scaling(64**0.5)  # the scaling as a true reparametrisation: the kernel of the standard network again
    new = reparametrised(problem, change)
    wanted = float(empirical_ntk(problem, sl.Euclidean())[0, 0])
    assert float(empirical_ntk(new, sl.Euclidean().transported(change))[0, 0]) == pytest.approx(wanted, rel=1e-10)


def test_the_hessian_at_the_exact_minimum_is_the_gauss_newton_matrix() -> None:
    model, batches = at_minimum()
    problem = sl.Problem(model, batches, nn.MSELoss())
    layout = Layout(problem.weights)
    h = hessian(
        lambda w: nn.functional.mse_loss(
            torch.func.functional_call(model, layout.named(w), (batches[0][0],)), batches[0][1]
        )
    )(layout.flat(problem.weights))
    found = sl.reparam.gauss_newton().at(problem).matrix()
    torch.testing.assert_close(found, h, rtol=1e-9, atol=1e-11)
    assert isinstance(smooth(layout, 0), Bijection)
