"""Every curvature measure against dense matrices: eigenvalues, traces and functions of them computed the plain way."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import Tensor, nn

import spiritlevel as sl
from dense import dense_hessian, flat, loss_of, riemannian_spectrum
from networks import generic
from spiritlevel.measures import Density, LayeredMeasurement
from spiritlevel.problem import Problem
from test_curvature import NETS, SMALL, dense, halves, operator_matrix, token_batches, vectors
from test_geodesic_sharpness import tiny

F64 = torch.float64
MATRICES = ["hessian", "gauss_newton", "fisher", "empirical_fisher"]
KINDS = [*((net, "hessian") for net in NETS), *(("layer norm", m) for m in MATRICES[1:])]
MOSTLY_SLOW = [pytest.param(n, m, marks=() if n == "layer norm" else pytest.mark.slow) for n, m in KINDS]


@cache
def case(net: str, matrix: str) -> tuple[Problem, Tensor]:
    """A problem on two batches of unequal size, away from a minimum, and its dense matrix."""
    torch.manual_seed(0)
    model, batch = NETS[net](), vectors()
    problem = Problem(model, halves(batch, 8))
    return problem, dense(model, problem, batch) if matrix == "hessian" else _outer(model, problem, batch, matrix)


def _outer(model: nn.Module, problem: Problem, batch: tuple[Tensor, Tensor], matrix: str) -> Tensor:
    """``mean J^T (diag(p) - p p^T) J``, and ``mean g g^T``."""
    weights = problem.weights
    sizes = [w.numel() for w in weights.values()]

    def scores(w: Tensor) -> Tensor:
        parts = {m: p.view_as(v) for (m, v), p in zip(weights.items(), w.split(sizes), strict=True)}
        return torch.func.functional_call(model, parts, (batch[0],))

    jacobian, p = torch.func.jacrev(scores)(flat(weights)), scores(flat(weights)).softmax(-1)
    if matrix == "empirical_fisher":
        slopes = torch.einsum("nci,nc->ni", jacobian, p - F.one_hot(batch[1], 3))
        return slopes.mT @ slopes / len(p)
    middle = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return torch.einsum("nci,ncd,ndj->ij", jacobian, middle, jacobian) / len(p)


def near(m: LayeredMeasurement, expected: float) -> None:
    """Within three standard errors, and these are of some use."""
    assert m.standard_error is not None
    assert abs(m.value - expected) <= 3 * m.standard_error + 1e-9 * abs(expected)
    assert m.standard_error < max(0.5 * abs(expected), 1.0)


def renyi(values: Tensor, alpha: float) -> float:
    p = values.abs() / values.abs().sum()
    return -math.log(float((p**alpha).sum())) / (1 - alpha)


DAMPING = 0.5
FUNCTIONS: dict[str, tuple[Callable[..., LayeredMeasurement], Callable[[Tensor], float]]] = {
    "trace": (lambda p, g, **k: sl.hessian_trace(p, g, samples=100, tolerance=0, **k), lambda x: float(x.sum())),
    "norm": (
        lambda p, g, **k: sl.hessian_norm(p, g, samples=100, tolerance=0, **k),
        lambda x: float(x.square().sum().sqrt()),
    ),
    "mean of the density": (
        lambda p, g, **k: sl.hessian_density(p, g, steps=8, probes=24, **k),
        lambda x: float(x.mean()),
    ),
    "log-determinant": (
        lambda p, g, **k: sl.hessian_logdet(p, g, damping=DAMPING, absolute=True, steps=14, probes=40, **k),
        lambda x: float((x.abs() + DAMPING).log().sum()),
    ),
    "effective dimension": (
        lambda p, g, **k: sl.effective_dimension(p, g, damping=DAMPING, steps=14, probes=16, **k),
        lambda x: float((x.abs() / (x.abs() + DAMPING)).sum()),
    ),
    "renyi": (
        lambda p, g, **k: sl.renyi_sharpness(p, g, 1.5, per_layer=k.pop("per_layer", False), steps=10, probes=24, **k),
        lambda x: renyi(x, 1.5),
    ),
}


@pytest.mark.parametrize(("net", "matrix"), MOSTLY_SLOW)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_stochastic_measures_are_those_of_the_dense_matrix(name: str, net: str, matrix: Any) -> None:
    # Kills: unequal batches weighted equally, a dimension left out, log of |x| for log(|x| + damping), a lost root.
    problem, a = case(net, matrix)
    measure, function = FUNCTIONS[name]
    near(measure(problem, sl.Euclidean(), matrix=matrix), function(torch.linalg.eigvalsh(a)))


@pytest.mark.parametrize(("net", "matrix"), KINDS)
def test_deterministic_measures_are_those_of_the_dense_matrix(net: str, matrix: Any) -> None:
    # Kills: a bottom that is the top of -H with the wrong sign, an order by magnitude, a diagonal of another basis.
    problem, a = case(net, matrix)
    geometry, values = sl.Euclidean(), torch.linalg.eigvalsh(a)
    by_size = values[values.abs().argsort(descending=True)]
    for which, expected in (("top", values.flip(0)), ("bottom", values), ("magnitude", by_size)):
        if which == "bottom" and matrix != "hessian":
            continue  # 0 many times over, which one Krylov space sees once
        m = sl.hessian_eigenvalues(problem, geometry, 3, which=which, tolerance=1e-12, matrix=matrix)  # type: ignore[arg-type]
        scale = float(values.abs().max())
        assert m.eigenvalues == pytest.approx(expected[:3].tolist(), rel=1e-6, abs=1e-6 * scale)
        assert m.status == sl.Status.CONVERGED
        assert float((m.vectors @ a - torch.tensor(m.eigenvalues)[:, None] * m.vectors).norm()) < 1e-4 * scale
        close = (m.vectors @ m.vectors.mT - torch.eye(3)).abs().max()
        assert float(close) < 1e-8
    diagonal = sl.hessian_diagonal(problem, geometry, method="exact", matrix=matrix)
    torch.testing.assert_close(diagonal.diagonal, a.diagonal(), rtol=1e-9, atol=1e-11)
    assert (diagonal.status, diagonal.standard_error) == (sl.Status.EXACT, None)
    assert diagonal.value == pytest.approx(float(a.trace()), rel=1e-9)
    for n, w in problem.weights.items():
        assert diagonal.tensors[n].shape == w.shape
    root = sl.root_diagonal_trace(problem, method="exact", matrix=matrix)
    assert root.value == pytest.approx(float(a.diagonal().clamp_min(0).sqrt().sum()), rel=1e-7)
    power = sl.root_diagonal_trace(problem, power=0.25, method="exact", matrix=matrix)
    assert power.value == pytest.approx(float(a.diagonal().clamp_min(0).pow(0.25).sum()), rel=1e-4)
    for method in ("hutch++", "xtrace") if net == "layer norm" else ():  # a sketch of the whole space is exact
        m = sl.hessian_trace(problem, geometry, method=method, samples=3 * len(a), tolerance=0, matrix=matrix)  # type: ignore[arg-type]
        assert m.value == pytest.approx(float(a.trace()), rel=1e-7)


def test_sampled_diagonal_has_the_errors_it_states() -> None:
    problem, a = case("layer norm", "hessian")
    m = sl.hessian_diagonal(problem, sl.Euclidean(), samples=200)
    assert m.errors is not None
    off = (m.diagonal - a.diagonal()) / m.errors.clamp_min(1e-12)
    assert 0.7 < float(off.square().mean().sqrt()) < 1.3
    assert m.status == sl.Status.ESTIMATE
    root = sl.root_diagonal_trace(problem, samples=400, matrix="gauss_newton")
    exact = sl.root_diagonal_trace(problem, method="exact", matrix="gauss_newton")
    assert root.value == pytest.approx(exact.value, rel=0.1)
    assert root.stats["bias, to first order"] < 0
    assert sl.root_diagonal_trace(problem, samples=10).stats["share of entries below 0"] > 0


@pytest.mark.parametrize("metric", ["inverse_gram", "cross_gram"])
def test_measures_on_the_quotient_are_those_of_the_riemannian_hessian(metric: Any) -> None:
    """With the Christoffel term from dense metrics, in the user's gauge. Kills: verticals in the dimension."""
    model, batch = tiny(heads=2, bias=True)
    problem, geometry = Problem(model, halves(batch, 5)), sl.Quotient(metric)
    values = riemannian_spectrum(model, batch, metric)
    values = values[values.abs().argsort(descending=True)][:-1].sort().values  # the one zero weight does not move
    top = sl.hessian_eigenvalues(problem, geometry, 4, tolerance=1e-12)
    assert top.eigenvalues == pytest.approx(values.flip(0)[:4].tolist(), rel=1e-6)
    assert top.settings["dimension"] == len(values)
    for method in ("hutch++", "xtrace"):
        m = sl.hessian_trace(problem, geometry, method=method, samples=3 * len(values), tolerance=0)  # type: ignore[arg-type]
        assert m.value == pytest.approx(float(values.sum()), rel=1e-7)
        assert m.status == sl.Status.EXACT
    assert sl.hessian_diagonal(problem, geometry, method="exact").value == pytest.approx(float(values.sum()), rel=1e-8)
    near(sl.hessian_trace(problem, geometry, samples=300, tolerance=0), float(values.sum()))


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("metric", ["inverse_gram", "cross_gram"])
def test_stochastic_measures_on_the_quotient(metric: Any, name: str) -> None:
    model, batch = tiny(heads=2, bias=True)
    values = riemannian_spectrum(model, batch, metric)
    values = values[values.abs().argsort(descending=True)][:-1]
    measure, function = FUNCTIONS[name]
    near(measure(Problem(model, [batch]), sl.Quotient(metric)), function(values))


@pytest.mark.slow
def test_measures_of_a_vit(tiny_vit: nn.Module, tiny_batch: tuple[Tensor, Tensor]) -> None:
    problem = Problem(tiny_vit, halves(tiny_batch, 3), parameters=lambda n: "attention" in n)
    f = loss_of(tiny_vit, problem.weights, lambda call: F.cross_entropy(call(tiny_batch[0]).logits, tiny_batch[1]))
    values = torch.linalg.eigvalsh(dense_hessian(f, flat(problem.weights)))
    m = sl.hessian_eigenvalues(problem, sl.Euclidean(), 2, tolerance=1e-12)
    assert m.eigenvalues == pytest.approx(values.flip(0)[:2].tolist(), rel=1e-6)
    for name, (measure, function) in FUNCTIONS.items():
        if name != "log-determinant":
            near(measure(problem, sl.Euclidean()), function(values))
    # 157 of 288 eigenvalues are 0, at the kink of |x|: 14 steps, enough elsewhere, are 6 % off here
    logdet = sl.hessian_logdet(problem, sl.Euclidean(), damping=DAMPING, absolute=True, steps=40, probes=40)
    near(logdet, FUNCTIONS["log-determinant"][1](values))
    assert logdet.status == sl.Status.ESTIMATE
    # Kills: an error of the probes alone that passes for the whole error.
    rough = sl.hessian_logdet(problem, sl.Euclidean(), damping=DAMPING, absolute=True, steps=6, probes=40)
    assert rough.status == sl.Status.BUDGET
    assert rough.standard_error is not None
    assert abs(rough.value - FUNCTIONS["log-determinant"][1](values)) > rough.standard_error


@pytest.mark.slow
def test_measures_of_padded_token_batches_of_unequal_size() -> None:
    """Against the matrix of the operator, which is the dense one there (tests/test_curvature.py)."""
    torch.manual_seed(0)
    model = generic(tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL, num_key_value_heads=1, rope_theta=10.0)))
    problem = Problem(model, token_batches(), parameters=lambda n: "v_proj" in n or "layernorm" in n)
    values = torch.linalg.eigvalsh(operator_matrix(sl.hessian_operator(problem, sl.Euclidean())))
    m = sl.hessian_eigenvalues(problem, sl.Euclidean(), tolerance=1e-10)
    assert m.value == pytest.approx(float(values[-1]), rel=1e-6)
    for measure, function in FUNCTIONS.values():
        near(measure(problem, sl.Euclidean()), function(values))


# ---------------------------------------------------------- layers


def _blocks(problem: Problem, a: Tensor) -> dict[str, Tensor]:
    ends = np.cumsum([0] + [w.numel() for w in problem.weights.values()])
    spans = zip(problem.weights, ends, ends[1:], strict=False)
    return {n: a[i:j, i:j] for n, i, j in spans}


@pytest.mark.parametrize("matrix", ["hessian"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layers_are_the_diagonal_blocks(name: str, matrix: Any) -> None:
    # Kills: rows of the matrix instead of blocks, the whole dimension in a layer, layers in another order.
    problem, a = case("layer norm", matrix)
    measure, function = FUNCTIONS[name]
    m = measure(problem, sl.Euclidean(), per_layer=True, matrix=matrix)
    blocks = _blocks(problem, a)
    assert [x.name for x in m.layers] == list(blocks)
    for x in m.layers:
        assert x.standard_error is not None
        assert x.dimension == len(blocks[x.name])
        expected = function(torch.linalg.eigvalsh(blocks[x.name]))
        assert abs(x.value - expected) <= 3 * x.standard_error + 1e-9
    if name == "renyi":
        assert m.value == pytest.approx(sum(x.value for x in m.layers) / len(m.layers))


@pytest.mark.parametrize("matrix", MATRICES)
def test_exact_layers(matrix: Any) -> None:
    problem, a = case("layer norm", matrix)
    blocks = _blocks(problem, a)
    m = sl.hessian_eigenvalues(problem, sl.Euclidean(), 2, tolerance=1e-12, per_layer=True, matrix=matrix)
    for x in m.layers:
        values = torch.linalg.eigvalsh(blocks[x.name]).flip(0)[:2].tolist()
        assert x.details["eigenvalues"] == pytest.approx(values, rel=1e-6, abs=1e-9)
    traces = {n: float(b.trace()) for n, b in blocks.items()}
    for m in (
        sl.hessian_trace(
            problem, sl.Euclidean(), samples=300, tolerance=0, method="xtrace", per_layer=True, matrix=matrix
        ),
        sl.hessian_diagonal(problem, sl.Euclidean(), method="exact", per_layer=True, matrix=matrix),
    ):
        assert {x.name: x.value for x in m.layers} == pytest.approx(traces, rel=1e-7, abs=1e-10)
    root = sl.root_diagonal_trace(problem, method="exact", per_layer=True, matrix=matrix)
    assert sum(x.value for x in root.layers) == pytest.approx(root.value, rel=1e-12)


def test_layers_join_to_blocks() -> None:
    problem, a = case("layer norm", "hessian")
    m = sl.hessian_diagonal(problem, sl.Euclidean(), method="exact", per_layer=sl.by_block)
    blocks = _blocks(problem, a)
    assert [x.name for x in m.layers] == ["0", "1", "3"]
    for x in m.layers:
        parts = [b for n, b in blocks.items() if n.startswith(f"{x.name}.")]
        assert x.value == pytest.approx(sum(float(b.trace()) for b in parts), rel=1e-9)
        assert x.dimension == sum(len(b) for b in parts)


@pytest.mark.parametrize("metric", ["inverse_gram", pytest.param("cross_gram", marks=pytest.mark.slow)])
def test_layers_of_the_quotient_have_their_own_dimension(metric: Any) -> None:
    """The dimension of a pair is rank (n + m - rank), not its number of coordinates. Kills: the latter."""
    model, batch = tiny(heads=2, bias=True)
    problem, geometry = Problem(model, [batch]), sl.Quotient(metric)
    operator = sl.hessian_operator(problem, geometry)
    a, chart = operator_matrix(operator), operator.chart
    projector = torch.func.vmap(chart.project)(torch.eye(chart.size, dtype=F64))
    dimensions = chart.layer_dimensions()
    assert sum(dimensions.values()) == chart.dimension
    logdet = sl.hessian_logdet(problem, geometry, damping=DAMPING, absolute=True, steps=8, probes=24, per_layer=True)
    top = sl.hessian_eigenvalues(problem, geometry, tolerance=1e-12, per_layer=True)
    sharpness = sl.renyi_sharpness(problem, geometry, 1.5, steps=10, probes=16)
    for x, y, z in zip(logdet.layers, top.layers, sharpness.layers, strict=True):
        rows = torch.cat([torch.arange(s.start, s.stop) for s in chart.layers()[x.name]])
        block, inside = a[rows][:, rows], projector[rows][:, rows]
        assert dimensions[x.name] == x.dimension == round(float(inside.trace()))
        values = torch.linalg.eigvalsh(block)
        values = values[values.abs().argsort(descending=True)][: x.dimension]  # the others are vertical
        assert x.standard_error is not None
        assert abs(x.value - float((values.abs() + DAMPING).log().sum())) <= 3 * x.standard_error + 1e-9
        assert y.value == pytest.approx(float(values.max()), rel=1e-6)
        assert z.standard_error is not None
        assert abs(z.value - renyi(values, 1.5)) <= 3 * z.standard_error + 1e-9


# ---------------------------------------------------------- densities and entropies


def test_density_integrates_to_one_and_has_the_mass_where_it_is() -> None:
    problem, a = case("layer norm", "hessian")
    m = sl.hessian_density(problem, sl.Euclidean(), steps=25, probes=12)
    grid, density = np.array(m.grid), np.array(m.density)
    assert np.trapezoid(density, grid) == pytest.approx(1, rel=1e-3)
    values = torch.linalg.eigvalsh(a).numpy()
    middle = 0.1 * values.max()  # away from the smoothing at 0
    share = float((values > middle).mean())
    each = [float(w[x > middle].sum()) for q in m.quadratures for x, w in zip(q.nodes, q.weights, strict=True)]
    assert abs(np.mean(each) - share) <= 3 * np.std(each, ddof=1) / math.sqrt(len(each))
    assert (m.stats["smallest node"], m.stats["largest node"]) == pytest.approx((values[0], values[-1]), rel=1e-3)
    assert len(m.density_error) == len(m.grid)
    found = m.to_dict()
    assert len(found["probes"]) == 12
    assert sum(found["probes"][0]["weights"]) == pytest.approx(1)


def test_quadrature_of_one_probe_is_exact_for_its_direction() -> None:
    """Kills: lost orthogonality, weights that are not squared."""
    from spiritlevel.measures.hessian.run import directions

    problem, a = case("layer norm", "hessian")
    m = sl.hessian_density(problem, sl.Euclidean(), steps=len(a), probes=1, seed=3)
    u = next(directions(sl.hessian_operator(problem, sl.Euclidean()), 3))
    u = u / u.norm()
    (q,) = m.quadratures
    for power in (1, 2, 5):
        moment = float(u @ torch.linalg.matrix_power(a, power) @ u)
        assert float(q.weights[0] @ q.nodes[0] ** power) == pytest.approx(moment, rel=1e-9)
    assert m.standard_error is None


def test_renyi_over_orders_and_its_convergence() -> None:
    problem, a = case("layer norm", "hessian")
    values = torch.linalg.eigvalsh(a)
    m = sl.renyi_sharpness(problem, sl.Euclidean(), 2.0, per_layer=False, steps=20, probes=24)
    for order in (0.75, 1.5, 2.0, 3.0):
        assert m.curve[order] == pytest.approx(renyi(values, order), rel=0.15)
    settled = m.stats["change in the last third of the steps"]
    rough = sl.renyi_sharpness(problem, sl.Euclidean(), 0.25, per_layer=False, steps=4, probes=10)
    assert rough.stats["change in the last third of the steps"] > 2 * settled
    assert (m.status, rough.status) == (sl.Status.ESTIMATE, sl.Status.BUDGET)
    assert m.stats["smallest possible"] == pytest.approx(-math.log(len(a)))
    signed = sl.renyi_sharpness(problem, sl.Euclidean(), 2.0, per_layer=False, signed_trace=True, steps=15, probes=24)
    expected = -math.log(float(values.square().sum() / values.sum() ** 2)) / (1 - 2.0)
    assert signed.standard_error is not None
    assert abs(signed.value - expected) <= 3 * signed.standard_error
    one = sl.renyi_sharpness(problem, sl.Euclidean(), layers=["1.weight"], probes=1)
    assert [x.name for x in one.layers] == ["1.weight"]
    assert one.standard_error is None


def test_density_is_one_of_the_measurements() -> None:
    problem, _ = case("layer norm", "hessian")
    assert isinstance(sl.hessian_density(problem, sl.Euclidean(), steps=3), Density)


# ---------------------------------------------------------- stopping, estimators


def test_traces_stop_by_their_standard_error() -> None:
    # Kills: a stop by the change of the running mean, which comes after 2 to 13 samples here, whatever the error.
    problem, a = case("layer norm", "gauss_newton")
    exact = float(a.trace())
    for method in ("hutchinson", "hutch++", "xtrace"):
        values = []
        for seed in range(5):
            m = sl.hessian_trace(
                problem,
                sl.Euclidean(),
                samples=4000,
                tolerance=0.05,
                method=method,
                seed=seed,
                matrix="gauss_newton",  # type: ignore[arg-type]
            )
            assert m.standard_error is not None
            assert m.standard_error <= 0.05 * m.value
            assert m.status in (sl.Status.CONVERGED, sl.Status.EXACT, sl.Status.ESTIMATE)
            values.append(m.value)
        assert float(np.sqrt(np.mean((np.array(values) - exact) ** 2))) < 0.08 * exact


def test_sketches_need_fewer_products_where_few_eigenvalues_carry_the_trace() -> None:
    problem, a = case("layer norm", "gauss_newton")  # rank 24 at most
    plain = sl.hessian_trace(problem, sl.Euclidean(), samples=4000, tolerance=0.01, matrix="gauss_newton")
    few = sl.hessian_trace(
        problem, sl.Euclidean(), samples=4000, tolerance=0.01, method="xtrace", matrix="gauss_newton"
    )
    assert few.value == pytest.approx(float(a.trace()), rel=0.03)
    assert few.stats["products"] < plain.stats["products"] / 2


def test_a_seed_fixes_the_estimate() -> None:
    problem, _ = case("layer norm", "hessian")
    for measure, _ in FUNCTIONS.values():
        first, again, other = (measure(problem, sl.Euclidean(), seed=s).value for s in (0, 0, 1))
        assert first == again != other


def test_over_batches_is_the_mean_of_each() -> None:
    problem, _ = case("layer norm", "hessian")
    m = sl.hessian_eigenvalues(problem, sl.Euclidean(), tolerance=1e-10, over="batches", per_layer=True)
    each = [
        sl.hessian_eigenvalues(Problem(problem.model, [b]), sl.Euclidean(), tolerance=1e-10, per_layer=True)
        for b in problem.batches()
    ]
    assert m.per_batch == pytest.approx([x.value for x in each], rel=1e-8)
    assert m.value == pytest.approx(sum(x.value for x in each) / 2, rel=1e-8)
    assert m.layers[0].value == pytest.approx(sum(x.layers[0].value for x in each) / 2, rel=1e-8)
    assert m.standard_error is not None


def test_forward_engine_gives_the_same_measures() -> None:
    problem, _ = case("layer norm", "hessian")
    for measure, _ in FUNCTIONS.values():
        a, b = (measure(problem, sl.Euclidean(), engine=e) for e in ("reverse", "forward"))
        assert a.value == pytest.approx(b.value, rel=1e-7)
