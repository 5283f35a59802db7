"""Every measure in new coordinates, with the transported metric: the number it was in the old ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import spiritlevel as sl
from conftest import build_vit
from spiritlevel.core.results import Measurement
from spiritlevel.errors import ModelError, ReparametrisationError
from spiritlevel.geometry import Geometry
from spiritlevel.problem import Objective
from spiritlevel.reparam import (
    Log,
    Monotone,
    Polar,
    Reparametrisation,
    Scaling,
    WeightNorm,
    carried,
    reparametrise,
    reparametrised,
)
from spiritlevel.solvers import SphereAscent

F64 = torch.float64


def convolutional() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(3, 4, 2), nn.GELU(), nn.Flatten(), nn.Linear(16, 3)
    ).double()
    g = torch.Generator().manual_seed(1)
    return model, (torch.randn(7, 1, 8, 8, generator=g, dtype=F64), torch.tensor([0, 1, 2, 0, 1, 2, 2]))


def transformer() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return build_vit(), (torch.randn(5, 1, 8, 8, generator=g, dtype=F64), torch.tensor([0, 1, 2, 0, 1]))


NETWORKS = {"convolutional": convolutional, "transformer": transformer}


@cache
def network(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return NETWORKS[name]()


def per_layer(model: nn.Module) -> Scaling:
    return Scaling({n: 0.3 + 0.7 * i for i, (n, _) in enumerate(model.named_parameters())})


MAPS: dict[str, Callable[[nn.Module], Reparametrisation]] = {
    "weight norm": lambda m: WeightNorm([n for n, p in m.named_parameters() if p.dim() in (2, 4) and len(p) > 1]),
    "polar": lambda m: Polar(
        [n for n, p in m.named_parameters() if p.dim() in (2, 4)], reference=dict(m.named_parameters())
    ),
    "scaling by layer": per_layer,
    "elementwise": lambda m: Monotone(lambda w: torch.sinh(2 * w), lambda w: torch.asinh(w) / 2),
}


def metric(model: nn.Module) -> sl.Diagonal:
    g = torch.Generator().manual_seed(5)
    return sl.Diagonal({n: torch.rand(p.shape, generator=g, dtype=F64) + 0.2 for n, p in model.named_parameters()})


GEOMETRIES: dict[str, Callable[[nn.Module], Geometry]] = {
    "euclidean": lambda m: sl.Euclidean(),
    "elementwise": lambda m: sl.Elementwise(),
    "diagonal": metric,
    "quotient": lambda m: sl.Quotient(),
}
MEASURES: dict[str, Callable[[sl.Problem, Geometry], Measurement]] = {
    "worst case": lambda p, g: sl.worst_case(p, g, 0.05, SphereAscent(steps=6)),
    "average case": lambda p, g: sl.average_case(p, g, 0.05, samples=4),
    "gradient norm": sl.gradient_norm,
    "trace": lambda p, g: sl.hessian_trace(p, g, samples=10),
    "eigenvalues": lambda p, g: sl.hessian_eigenvalues(p, g, k=2, products=15),
    "density": lambda p, g: sl.hessian_density(p, g, steps=6),
    "logdet": lambda p, g: sl.hessian_logdet(p, g, absolute=True, steps=6, probes=2),
    "effective dimension": lambda p, g: sl.effective_dimension(p, g, steps=6, probes=2),
    "norm": lambda p, g: sl.hessian_norm(p, g, samples=4),
    "Gauss-Newton trace": lambda p, g: sl.hessian_trace(p, g, samples=4, matrix="gauss_newton"),
}


def everything(problem: sl.Problem, geometry: Geometry) -> dict[str, float]:
    return {name: measure(problem, geometry).value for name, measure in MEASURES.items()}


@cache
def original(name: str, geometry: str) -> dict[str, float]:
    model, batch = network(name)
    return everything(sl.Problem(model, [batch]), GEOMETRIES[geometry](model))


@pytest.mark.parametrize("map_name", list(MAPS))
@pytest.mark.parametrize(
    ("name", "geometry"),
    [
        ("convolutional", "euclidean"),
        ("convolutional", "elementwise"),
        ("convolutional", "diagonal"),
        ("transformer", "euclidean"),
        ("transformer", "quotient"),
    ],
)
def test_every_measure_agrees_in_all_coordinates(name: str, geometry: str, map_name: str) -> None:
    # Kills: the metric left as the identity, J for J^-1, a gradient not pulled back, a straight line in psi.
    model, batch = network(name)
    change = MAPS[map_name](model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    problem = reparametrised(sl.Problem(model, [batch]), change)
    found = everything(problem, GEOMETRIES[geometry](model).transported(change))
    for measure, value in original(name, geometry).items():
        assert found[measure] == pytest.approx(value, rel=1e-6), measure
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


@pytest.mark.parametrize("map_name", list(MAPS))
def test_the_untransported_metric_gives_other_numbers(map_name: str) -> None:
    # The wrong rule: the metric is left behind when the parameters change.
    model, batch = network("convolutional")
    problem = reparametrised(sl.Problem(model, [batch]), MAPS[map_name](model))
    wrong = sl.hessian_trace(problem, sl.Euclidean(), samples=10).value
    assert wrong != pytest.approx(original("convolutional", "euclidean")["trace"], rel=0.01)


def test_a_model_that_carries_weight_norm_gives_what_its_plain_twin_gives() -> None:
    # Kills: torch's fused weight norm under second derivatives, parameters of the wrong model measured.
    model, batch = convolutional()
    normed = copy.deepcopy(model)
    for i in (0, 3, 6):
        parametrizations.weight_norm(normed[i])
    change = carried(normed)
    own, plain = sl.Problem(normed, [batch]), sl.Problem(model, [batch])
    for geometry in (sl.Euclidean(), sl.Elementwise()):
        wanted, found = everything(plain, geometry), everything(own, geometry.transported(change))
        for measure, value in everything(reparametrised(own, change.inverted), geometry).items():
            assert found[measure] == pytest.approx(value, rel=1e-6), measure
        # torch puts parametrised weights behind the bias, so random directions are other ones than for the plain twin
        for measure in ("worst case", "gradient norm", "eigenvalues"):
            assert found[measure] == pytest.approx(wanted[measure], rel=1e-6), measure


def test_tangent_vectors_and_coordinates_through_a_change(generator: torch.Generator) -> None:
    # Kills: coordinates that are not inverse to tangent, a tangent left in theta.
    model, batch = network("convolutional")
    change = MAPS["elementwise"](model)
    problem = reparametrised(sl.Problem(model, [batch]), change)
    chart = problem.chart(metric(model).transported(change))
    z = chart.gaussian(generator)
    tangent = chart.tangent(z)
    torch.testing.assert_close(chart.coordinates(tangent), z, rtol=1e-10, atol=1e-11)
    moved, at = chart.weights(1e-6 * z), problem.weights
    for n, t in tangent.items():
        torch.testing.assert_close((moved[n] - at[n]) / 1e-6, t, rtol=1e-4, atol=1e-4)
    value, gradient = Objective(problem, chart, batch)(z * 0.01)
    point = (z * 0.01).requires_grad_()
    loss = problem.tensor(chart.weights(point), batch)
    torch.testing.assert_close(torch.autograd.grad(loss, point)[0], gradient, rtol=1e-9, atol=1e-12)
    assert value == pytest.approx(float(loss.detach()))


def test_eigenvectors_come_back_as_tangent_vectors_of_the_new_parameters() -> None:
    # Kills: eigenvectors handed out in the old parameters.
    model, batch = network("convolutional")
    change = Scaling(3.0)
    old = sl.hessian_eigenvalues(sl.Problem(model, [batch]), sl.Euclidean(), tolerance=1e-9)
    new = sl.hessian_eigenvalues(
        reparametrised(sl.Problem(model, [batch]), change), sl.Euclidean().transported(change), tolerance=1e-9
    )
    for n, v in old.tangents[0].items():
        torch.testing.assert_close(new.tangents[0][n], 3 * v, rtol=1e-5, atol=1e-6)


def test_settings_say_what_was_transported_by_what() -> None:
    model, batch = network("convolutional")
    change = Scaling(2.0)
    m = sl.gradient_norm(reparametrised(sl.Problem(model, [batch]), change), sl.Euclidean().transported(change))
    assert m.settings["geometry"] == "Euclidean() transported by Scaling(2)"
    assert m.settings["parameters as"] == "Scaling(2)"


def test_what_does_not_fit_is_refused() -> None:
    model, batch = network("convolutional")
    problem = sl.Problem(model, [batch])
    with pytest.raises(ReparametrisationError, match=r"values above 0 .* in '0\.weight'"):
        reparametrised(problem, Log())
    with pytest.raises(ModelError, match=r"\['6\.weight'\] are not among"):
        reparametrised(sl.Problem(model, [batch], parameters=["0.weight"]), Scaling({"6.weight": 2.0}))
    with pytest.raises(sl.SpiritlevelError, match="elementwise geometry for the rest"):
        sl.gradient_norm(problem, sl.Quotient(blocks=[], rest=sl.Euclidean().transported(Scaling(2.0))))


def test_a_chart_that_leaves_the_domain_of_its_map_says_so() -> None:
    # Kills: a NaN that travels on as a value.
    model = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        model.weight.abs_().add_(0.1)
    problem = reparametrised(sl.Problem(model, [(torch.ones(3, 2, dtype=F64), torch.tensor([0, 1, 0]))]), Log())
    near = sl.average_case(problem, sl.Euclidean().transported(problem.change), 0.01)
    assert near.value == pytest.approx(sl.average_case(problem.original, sl.Euclidean(), 0.01).value, rel=1e-8)
    with pytest.raises(ReparametrisationError, match=r"for Log in 'weight', got -.* take a smaller radius"):
        sl.average_case(problem, sl.Euclidean().transported(problem.change), 5.0)


def test_a_model_in_new_parameters_trains_and_writes_back() -> None:
    # Kills: parameters registered twice, the original trained along, dotted names flattened.
    model, (x, y) = convolutional()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    new = reparametrise(model, WeightNorm())
    assert {n.rpartition(".")[2] for n, _ in new.named_parameters()} == {"length", "direction", "bias"}
    torch.testing.assert_close(new(x), model(x), rtol=1e-12, atol=1e-13)
    optimiser = torch.optim.SGD(new.parameters(), lr=0.1)
    first = nn.functional.cross_entropy(new(x), y).item()
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(new(x), y).backward()
        optimiser.step()
    assert nn.functional.cross_entropy(new(x), y).item() < first
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    output = new(x)
    new.write_back()
    torch.testing.assert_close(model(x), output, rtol=1e-12, atol=1e-13)
    assert new.float()(x.float()).dtype == torch.float32  # the buffers and frozen weights of the original go along
    assert next(new.double().model.parameters()).dtype == F64
    new.eval()
    assert not model.training
    problem = sl.Problem(new.train(), [(x, y)])
    sl.gradient_norm(problem, sl.Euclidean())
    assert model.training
