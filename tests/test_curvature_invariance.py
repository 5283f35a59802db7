"""Curvature on the quotient is the same on the whole orbit; what is published to be invariant is, and no further."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from networks import network
from spiritlevel.problem import Problem
from test_curvature import vectors
from test_geodesic_sharpness import tiny

MEASURES: dict[str, Callable[[Problem, Any], list[float]]] = {
    "trace": lambda p, g: [sl.hessian_trace(p, g, samples=6, tolerance=0, method=m).value for m in ESTIMATORS],  # type: ignore[arg-type]
    "eigenvalues": lambda p, g: [
        x
        for w in ("top", "bottom")
        for x in sl.hessian_eigenvalues(p, g, 2, tolerance=1e-9, which=w).eigenvalues  # type: ignore[arg-type]
    ],
    "norm": lambda p, g: [sl.hessian_norm(p, g, samples=5).value],
    "density": lambda p, g: [float(x) for x in sl.hessian_density(p, g, steps=6, probes=2).quadratures[0].nodes[0]],
    "logdet": lambda p, g: [sl.hessian_logdet(p, g, steps=5, probes=2, absolute=True).value],
    "effective dimension": lambda p, g: [sl.effective_dimension(p, g, steps=5, probes=2).value],
    "renyi": lambda p, g: [
        x
        for layered in (True, False)
        for x in sl.renyi_sharpness(p, g, steps=5, probes=2, per_layer=layered).curve.values()
    ],
    "diagonal": lambda p, g: sl.hessian_diagonal(p, g, samples=4).diagonal.tolist(),
    "root diagonal": lambda p, g: [sl.root_diagonal_trace(p, g, samples=4).value],
    "layers": lambda p, g: [x.value for x in sl.hessian_trace(p, g, samples=4, per_layer=True).layers],
    "gauss-newton": lambda p, g: [sl.hessian_trace(p, g, samples=4, matrix="gauss_newton").value],
    "fisher": lambda p, g: [sl.hessian_eigenvalues(p, g, matrix="empirical_fisher", tolerance=1e-9).value],
}
ESTIMATORS = ("hutchinson", "hutch++", "xtrace")


def moved(model: nn.Module, blocks: Any, seed: int = 3, strength: float = 1.0) -> nn.Module:
    other = copy.deepcopy(model)
    other.load_state_dict(sl.move_along_orbit(model, blocks, strength=strength, seed=seed))
    return other


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("metric", ["inverse_gram", "cross_gram"])
def test_every_measure_is_the_same_on_the_orbit(metric: Any, name: str) -> None:
    """Issue: 1e-6. Random numbers are drawn in the canonical gauge, so even estimates agree.

    Kills: random vectors in the user's gauge, straight lines without the second-order term, a gauge up to signs.
    """
    model, batch = tiny(heads=2, bias=True)
    pair = (model, moved(model, sl.find_symmetries(model)))
    before, after = (MEASURES[name](Problem(m, [batch]), sl.Quotient(metric)) for m in pair)
    scale = max(map(abs, before))
    assert scale > 1e-3
    assert after == pytest.approx(before, rel=1e-6, abs=1e-7 * scale)


@pytest.mark.parametrize("name", ["perceptron", "convolutional", "vit"])
def test_curvature_is_the_same_after_moves_of_all_kinds_of_blocks(name: str) -> None:
    """Gains, scales, shifts and batch norms too. Kills: a vertical direction that is left in."""
    model, batch = network(name)
    blocks = sl.find_symmetries(model, kinds="all", batch=batch)
    geometry, found = sl.Quotient(blocks=blocks), []
    for m in (model, moved(model, blocks, strength=0.5)):
        problem = Problem(m, [batch])
        found.append(
            [
                sl.hessian_eigenvalues(problem, geometry, tolerance=1e-8).value,
                sl.hessian_trace(problem, geometry, samples=3).value,
                sl.renyi_sharpness(problem, geometry, steps=3, probes=1, per_layer=False).value,
            ]
        )
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_plain_trace_and_top_eigenvalue_are_not() -> None:
    model, batch = tiny(heads=2, bias=True)
    pair = (model, moved(model, sl.find_symmetries(model)))
    for geometry in (sl.Euclidean(), sl.Elementwise()):
        traces, tops = zip(
            *(
                (
                    sl.hessian_diagonal(Problem(m, [batch]), geometry, method="exact").value,
                    sl.hessian_eigenvalues(Problem(m, [batch]), geometry, tolerance=1e-8).value,
                )
                for m in pair
            ),
            strict=True,
        )
        if isinstance(geometry, sl.Euclidean):
            assert abs(traces[1] / traces[0] - 1) > 0.1
        assert abs(tops[1] / tops[0] - 1) > 0.1


class Homogeneous(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(6, 5, bias=False), nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        out: Tensor = self.layers[-1](x)
        return out


def rescaled(kind: str) -> tuple[nn.Module, nn.Module]:
    """The same function: whole layers times 5 and 1/5, or each neuron by a factor of its own."""
    torch.manual_seed(0)
    model = Homogeneous().double()
    other = copy.deepcopy(model)
    c = torch.full((5,), 5.0) if kind == "layer" else torch.tensor([5.0, 0.2, 1.0, 3.0, 0.5])
    with torch.no_grad():
        other.layers[0].weight.mul_(c[:, None].double())
        other.layers[1].weight.div_(c.double())
    x = vectors()[0]
    torch.testing.assert_close(model(x), other(x))
    return model, other


def sharpness(model: nn.Module, per_layer: bool, geometry: Any = None) -> list[float]:
    """Of each layer, or of the whole matrix, with as many steps as there are dimensions."""
    problem = Problem(model, [vectors()])
    m = sl.renyi_sharpness(
        problem, geometry or sl.Euclidean(), 1.5, per_layer=per_layer, steps=12 if per_layer else 24, probes=2
    )
    return [x.value for x in m.layers] or [m.value]


def test_renyi_sharpness_of_layers_is_unchanged_by_layer_rescaling() -> None:
    """Zhang et al. 2025, Prop. 2.2, and its limits: not for the whole matrix, and not for single neurons.

    Kills: a spectrum that is not normalised (per layer), and claims beyond what holds (the rest).
    """
    model, layerwise = rescaled("layer")
    assert sharpness(layerwise, per_layer=True) == pytest.approx(sharpness(model, per_layer=True), rel=1e-6)
    whole = [sharpness(m, per_layer=False)[0] for m in (model, layerwise)]
    assert abs(whole[1] - whole[0]) > 0.05
    model, neuronwise = rescaled("neuron")
    before, after = (sharpness(m, per_layer=True) for m in (model, neuronwise))
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 0.05


def test_on_the_quotient_it_is_unchanged_by_both() -> None:
    model, neuronwise = rescaled("neuron")
    _, layerwise = rescaled("layer")
    found = []
    for m in (model, neuronwise, layerwise):
        blocks = sl.find_symmetries(m, kinds="all", batch=vectors())
        geometry = sl.Quotient(blocks=blocks)
        found.append(sharpness(m, per_layer=True, geometry=geometry) + sharpness(m, per_layer=False, geometry=geometry))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)
