"""SAM in a geometry: the point it climbs to, and that training does not see where on an orbit it began."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from conftest import build_vit
from networks import network
from spiritlevel.errors import DerivativeError
from spiritlevel.geometry import Geometry
from spiritlevel.optim import SAM, rules
from spiritlevel.problem import Objective
from spiritlevel.symmetry import KINDS

F = nn.functional


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 1, 8, 8, generator=g, dtype=torch.float64), torch.randint(3, (6,), generator=g))
        for _ in range(4)
    ]


def moved(model: nn.Module, condition: float = 30.0) -> nn.Module:
    other = copy.deepcopy(model)
    other.load_state_dict(sl.move_along_orbit(model, sl.find_symmetries(model), seed=3, condition=condition))
    return other


def path(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], make: Callable[[nn.Module], SAM], steps: int = 12
) -> list[Tensor]:
    """The model's outputs on held-out inputs after every step."""
    sam, outputs = make(model), []
    probe = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    for step in range(steps):
        x, y = batches[step % len(batches)]
        sam.step(lambda x=x, y=y: F.cross_entropy(model(x).logits, y))
        with torch.no_grad():
            outputs.append(model(probe).logits.clone())
    return outputs


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def riemannian(geometry: Geometry, **sgd: float) -> Callable[[nn.Module], SAM]:
    def make(model: nn.Module) -> SAM:
        base = torch.optim.SGD(model.parameters(), lr=0.05, **sgd)  # type: ignore[arg-type]
        return SAM(base, rules.GeodesicSAM(0.1, geometry, riemannian=True), model=model)

    return make


@pytest.mark.parametrize("metric", ["inverse_gram", "cross_gram"])
@pytest.mark.parametrize(
    "sgd", [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}], ids=["sgd", "momentum"]
)
def test_two_starts_on_one_orbit_give_one_path_of_functions(
    metric: str, sgd: dict[str, float], batches: list[tuple[Tensor, Tensor]]
) -> None:
    # Kills: gradients of another gauge given to the base optimizer, vertical parts left in, an ascent at the user's
    # weights. The path must also move, and plain SAM from the same two starts must not agree.
    model = build_vit()
    other = moved(model)
    start = difference([model(batches[0][0]).logits.detach()], [other(batches[0][0]).logits.detach()])
    assert start < 1e-11
    make = riemannian(sl.Quotient(metric, rest=sl.Euclidean()), **sgd)
    mine, theirs = path(model, batches, make), path(other, batches, make)
    assert difference(mine, theirs) < 1e-8
    assert difference(mine[:1], mine[-1:]) > 1e-2

    def plain(model: nn.Module) -> SAM:
        return SAM(torch.optim.SGD(model.parameters(), lr=0.05), rules.Plain(0.1))

    first = build_vit()
    assert difference(path(first, batches, plain), path(moved(build_vit()), batches, plain)) > 1e-2


def test_a_base_step_that_is_not_invariant_shows(batches: list[tuple[Tensor, Tensor]]) -> None:
    # What the docstring says: with covectors, or with Adam, only the ascent is invariant.
    def covector(model: nn.Module) -> SAM:
        return SAM(torch.optim.SGD(model.parameters(), lr=0.05), rules.GeodesicSAM(0.1), model=model)

    def adam(model: nn.Module) -> SAM:
        rule = rules.GeodesicSAM(0.1, riemannian=True)
        return SAM(torch.optim.Adam(model.parameters(), lr=0.01), rule, model=model)

    for make in (covector, adam):
        model = build_vit()
        other = moved(model)
        assert difference(path(model, batches, make), path(other, batches, make)) > 1e-4


@pytest.mark.parametrize(
    "geometry",
    [sl.Quotient(), sl.Quotient("cross_gram"), sl.Quotient(curve="second_order"), sl.Elementwise("geodesic")],
    ids=str,
)
def test_the_perturbed_point_is_the_end_of_the_geodesic(
    geometry: Geometry, batches: list[tuple[Tensor, Tensor]]
) -> None:
    # Against the pulled-back loss of `Objective`, which measures use. Kills: a first gradient that is not pulled to the
    # canonical gauge, a radius off by the metric, a curve that was not asked for.
    model = moved(build_vit())
    x, y = batches[0]
    problem = sl.Problem(model, [(x, y)])
    chart = problem.chart(geometry)
    objective = Objective(problem, chart, (x, y))
    _, gradient = objective(chart.zeros())
    wanted = objective.value(gradient * (0.2 / gradient.norm()))
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rules.GeodesicSAM(0.2, geometry), model=model)
    F.cross_entropy(model(x).logits, y).backward()
    before = copy.deepcopy(model.state_dict())
    with sam.perturbed():
        loss = F.cross_entropy(model(x).logits, y)
        loss.backward()
    assert loss.item() == pytest.approx(wanted, rel=1e-9)
    assert sam.radius == pytest.approx(0.2)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_the_update_is_the_gradient_of_the_pulled_back_loss(batches: list[tuple[Tensor, Tensor]]) -> None:
    # As a covector it pairs with horizontal vectors like the gradient in coordinates; as a vector it is their lift.
    # Kills: a covector where a vector is wanted, the gradient at the canonical point given for that at the user's.
    x, y = batches[0]
    found: dict[bool, dict[str, Tensor]] = {}
    model = moved(build_vit())
    problem = sl.Problem(model, [(x, y)])
    chart = problem.chart(sl.Quotient())
    objective = Objective(problem, chart, (x, y))
    _, start = objective(chart.zeros())
    _, wanted = objective(start * (0.2 / start.norm()))
    for as_vector in (False, True):
        mine = copy.deepcopy(model)
        rule = rules.GeodesicSAM(0.2, riemannian=as_vector)
        SAM(torch.optim.SGD(mine.parameters(), lr=1.0), rule, model=mine).step(
            lambda m=mine: F.cross_entropy(m(x).logits, y)
        )
        new = dict(mine.named_parameters())
        found[as_vector] = {n: (p - new[n]).detach() for n, p in model.named_parameters()}
    z = chart.gaussian(torch.Generator().manual_seed(0))
    lift = chart.tangent(z)
    pairing = sum(float((found[False][n] * lift[n]).sum()) for n in lift)
    assert pairing == pytest.approx(float(wanted @ z), rel=1e-8)
    for n, v in chart.tangent(wanted).items():
        torch.testing.assert_close(found[True][n], v, rtol=1e-8, atol=1e-10)


def test_at_radius_zero_it_is_the_plain_gradient(batches: list[tuple[Tensor, Tensor]]) -> None:
    x, y = batches[0]
    model, plain = moved(build_vit()), moved(build_vit())
    rule = rules.GeodesicSAM(1e-9)
    SAM(torch.optim.SGD(model.parameters(), lr=0.1), rule, model=model).step(
        lambda: F.cross_entropy(model(x).logits, y)
    )
    F.cross_entropy(plain(x).logits, y).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


def test_a_gradient_that_is_not_finite_raises(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = build_vit()
    before = copy.deepcopy(model.state_dict())
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rules.GeodesicSAM(0.1), model=model)
    with pytest.raises(DerivativeError, match="expected a finite gradient for a step along a geodesic"):
        sam.step(lambda: model(batches[0][0]).logits.sum() * float("nan"))
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


@pytest.mark.parametrize("name", ["perceptron", "encoder"])
def test_orbits_of_other_groups_too(name: str) -> None:
    # Gains of norms, ReLU neurons, translations: blocks with a canonical section, whose differential carries the
    # gradients there and back. Kills: gradients handed over without it.
    net, batch = network(name)
    model = copy.deepcopy(net)
    kinds = [k for k in KINDS if k not in ("residual", "classifier")]
    blocks = sl.find_symmetries(model, kinds=kinds, batch=batch)
    assert len(blocks) > 0
    other = copy.deepcopy(model)
    other.load_state_dict(sl.move_along_orbit(model, blocks, strength=0.5, seed=3))
    x, y = batch
    ends = []
    for one in (model, other):
        base = torch.optim.SGD(one.parameters(), lr=0.02)
        rule = rules.GeodesicSAM(0.1, sl.Quotient(blocks=blocks, rest=sl.Euclidean()), riemannian=True)
        sam, outputs = SAM(base, rule, model=one), [one(x).detach()]
        for _ in range(4):
            sam.step(lambda one=one: F.cross_entropy(one(x), y))
            outputs.append(one(x).detach())
        ends.append(outputs)
    assert difference(ends[0][:1], ends[1][:1]) < 1e-10
    assert difference(ends[0][:1], ends[0][-1:]) > 1e-3
    assert difference(*ends) < 1e-7


def test_frozen_and_unused_weights_stay_and_half_precision_works() -> None:
    # Kills: gradients of zeros, with which weight decay moves what has no gradient; charts in half precision.
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2), "frozen": nn.Linear(3, 2)})
    base = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    sam = SAM(base, rules.GeodesicSAM(0.1, sl.Elementwise()), model=model)
    model["frozen"].requires_grad_(False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    x = torch.randn(4, 3)
    sam.step(lambda: (model["used"](x) + model["frozen"](x)).square().mean())
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {"used.weight", "used.bias"}
    half = nn.Linear(3, 2).bfloat16()
    rule = rules.GeodesicSAM(0.5, sl.Elementwise())
    loss = SAM(torch.optim.SGD(half.parameters(), lr=0.1), rule, model=half).step(
        lambda: half(x.bfloat16()).square().mean()
    )
    assert loss.dtype == half.weight.dtype == torch.bfloat16
