"""Transport, the Riemannian Hessian, metrics and sharpness on networks, against dense matrices from the definitions.

The paper's claims 1 to 3, 6 and 10.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import eigh
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

import spiritlevel as sl
from spiritlevel.errors import (
    ArgumentError,
    DerivativeError,
    LossError,
    MissingDependencyError,
    ModelError,
    ReparametrisationError,
)
from spiritlevel.reparam import (
    KFAC,
    Bijection,
    CurvatureMetric,
    Layout,
    Linear,
    Metric,
    Monotone,
    Polar,
    Reparametrisation,
    Scaling,
    Transforms,
    Transport,
    WeightNorm,
    christoffel,
    empirical_fisher,
    fisher,
    gauss_newton,
    reparametrised,
    riemannian_hessian,
    riemannian_hessian_product,
    sharpness,
    transported_field,
)
from spiritlevel.reparam.metrics import Form

F64 = torch.float64
TIGHT = {"rtol": 1e-8, "atol": 1e-10}


def classifier(seed: int = 0, width: int = 3) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A two-layer network away from any minimum, with more data than weights, so that its Fisher matrix is regular."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2, bias=False)).double()
    g = torch.Generator().manual_seed(seed + 1)
    return model, (torch.randn(40, 2, generator=g, dtype=F64), torch.randint(2, (40,), generator=g))


def at_minimum(seed: int = 0) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A regression that its network solves exactly: a minimum with the Hessian of the Gauss-Newton matrix."""
    model, (x, _) = classifier(seed)
    with torch.no_grad():
        return model, [(x, model(x))]


def flat_loss(
    model: nn.Module, batch: tuple[Tensor, Tensor], loss: Callable[..., Tensor]
) -> tuple[Layout, Callable[[Tensor], Tensor], Tensor]:
    weights = {n: p.detach() for n, p in model.named_parameters()}
    layout = Layout(weights)
    return layout, lambda w: loss(functional_call(model, layout.named(w), (batch[0],)), batch[1]), layout.flat(weights)


def smooth(layout: Layout, seed: int) -> Bijection:
    """A random smooth bijection that mixes everything: a matrix, two shears, and sinh, which changes volumes."""
    g = torch.Generator().manual_seed(seed)
    size, half = layout.size, layout.size // 2
    mix = torch.eye(size, dtype=F64) + torch.randn(size, size, generator=g, dtype=F64) * 0.3 / math.sqrt(size)
    first = torch.randn(size - half, half, generator=g, dtype=F64) * 0.4
    second = torch.randn(half, size - half, generator=g, dtype=F64) * 0.4

    def to(w: dict[str, Tensor]) -> dict[str, Tensor]:
        flat = mix @ layout.flat(w)
        y = flat[half:] + torch.tanh(first @ flat[:half])
        return layout.named(torch.sinh(torch.cat([flat[:half] + torch.tanh(second @ y), y]) / 2))

    def back(w: dict[str, Tensor]) -> dict[str, Tensor]:
        x, y = (flat := 2 * torch.asinh(layout.flat(w)))[:half], flat[half:]
        x = x - torch.tanh(second @ y)
        return layout.named(torch.linalg.solve(mix, torch.cat([x, y - torch.tanh(first @ x)])))

    return Bijection(to, back, f"shears {seed}")


def positive(size: int, seed: int) -> Tensor:
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return a @ a.mT / size + 0.3 * torch.eye(size, dtype=F64)


# ----------------------------------------------------------------------------------------------- C1: the toy of App. A


@pytest.mark.parametrize("d", [1, 3, 7])
def test_the_toy_of_appendix_a(d: int) -> None:
    # Kills: a metric that is not transported (2/9 in place of 2), a determinant of H in place of E.
    model = nn.Linear(d, 1, bias=False).double()
    problem = sl.Problem(
        model, [(torch.eye(d, dtype=F64), torch.zeros(d, 1, dtype=F64))], lambda o, b: (o - b[1]).square().sum()
    )
    change = Scaling(3.0)
    new, moved = reparametrised(problem, change), sl.Euclidean().transported(change)
    for dense in (True, False):

        def value(p: sl.Problem, g: sl.geometry.Geometry, by: str, dense: bool = dense) -> float:
            return sharpness(p, g, by, dense=dense).value  # type: ignore[arg-type]

        assert value(problem, sl.Euclidean(), "trace") == pytest.approx(2 * d, abs=1e-8)
        assert value(new, sl.Euclidean(), "trace") == pytest.approx(2 * d / 9, abs=1e-8)
        assert value(new, moved, "trace") == pytest.approx(2 * d, abs=1e-8)
        assert value(problem, sl.Euclidean(), "det") == pytest.approx(d * math.log(2), abs=1e-8)
        assert value(new, sl.Euclidean(), "det") == pytest.approx(d * math.log(2 / 9), abs=1e-8)
        assert value(new, moved, "det") == pytest.approx(d * math.log(2), abs=1e-8)
        assert value(new, moved, "eigenvalues") == pytest.approx(2.0, abs=1e-8)


# ----------------------------------------------------------------------------- C2, C3: the Hessian at and off a minimum


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_the_operator_is_invariant_for_any_metric_at_a_minimum(seed: int) -> None:
    # Kills: trace or determinant of H alone, G for G^-1, J^-1 for J.
    model, batches = at_minimum(seed % 7)
    layout, f, point = flat_loss(model, batches[0], nn.functional.mse_loss)
    change = smooth(layout, seed)
    move = Transport(change, layout.named(point))
    g, h = positive(layout.size, seed), hessian(f)(point)
    h_new = hessian(lambda p: f(layout.flat(change.inverse(layout.named(p)))))(layout.flat(move.psi))
    torch.testing.assert_close(h_new, move.bilinear_matrix(h), **TIGHT)  # autodiff is right at a minimum
    e, e_new = torch.linalg.solve(g, h), torch.linalg.solve(move.bilinear_matrix(g), h_new)
    torch.testing.assert_close(e_new, move.operator_matrix(e), **TIGHT)
    assert float(e_new.trace()) == pytest.approx(float(e.trace()), rel=1e-8)
    old, new = (eigh(a.numpy(), b.numpy(), eigvals_only=True) for a, b in ((h, g), (h_new, move.bilinear_matrix(g))))
    np.testing.assert_allclose(new, old, rtol=1e-8, atol=1e-8 * old[-1])
    assert float(torch.linalg.slogdet(e_new)[1]) == pytest.approx(float(torch.linalg.slogdet(e)[1]), rel=1e-8, abs=1e-8)
    assert float(h_new.trace()) != pytest.approx(float(h.trace()), rel=1e-3)
    logs = torch.linalg.slogdet(h_new)[1] - torch.linalg.slogdet(h)[1]
    assert float(logs) == pytest.approx(-2 * float(change.log_abs_det(layout.named(point))), abs=1e-5)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_the_riemannian_hessian_is_a_tensor_everywhere_and_the_autodiff_one_is_not(seed: int) -> None:
    # Kills: Christoffel symbols forgotten, of the wrong sign, or with two indices exchanged.
    model, batch = classifier(seed % 7)
    layout, f, point = flat_loss(model, batch, nn.functional.cross_entropy)
    change = smooth(layout, seed)
    move = Transport(change, layout.named(point))
    psi = layout.flat(move.psi)
    bent = torch.randn(layout.size, layout.size, generator=torch.Generator().manual_seed(seed), dtype=F64) * 0.2

    def metric(w: Tensor, v: Tensor) -> Tensor:  # positive definite, and different from point to point
        q = torch.tanh(bent @ w)
        return (1 + 0.3 * torch.sin(w)) * v + q * torch.dot(q, v)

    def matrix(field: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda p: torch.func.vmap(lambda e: field(p, e))(torch.eye(layout.size, dtype=F64)).mT

    field = transported_field(change, metric, layout, layout)
    f_new = move.function(lambda w: f(layout.flat(w)))
    old = riemannian_hessian(f, matrix(metric), point)
    wanted = move.bilinear_matrix(old)
    found = riemannian_hessian(lambda p: f_new(layout.named(p)), matrix(field), psi)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)
    v = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    g_new = matrix(field)(psi)
    product = riemannian_hessian_product(
        lambda p: f_new(layout.named(p)), field, lambda w: torch.linalg.solve(g_new, w), psi, v
    )
    torch.testing.assert_close(product, wanted @ v, rtol=1e-8, atol=1e-9)
    wrong = hessian(lambda p: f_new(layout.named(p)))(psi)
    right = move.bilinear_matrix(hessian(f)(point))
    assert float((wrong - right).abs().max()) > 1e-3 * float(right.abs().max())


def test_the_riemannian_hessian_is_the_second_derivative_along_geodesics() -> None:
    # Kills: a factor 1/2, a sign: an oracle that knows no Christoffel formula for the Hessian.
    def metric(p: Tensor) -> Tensor:
        return torch.diag(torch.stack([torch.ones((), dtype=F64), p[0] ** 2])) + 0.1 * torch.outer(p, p)

    def f(p: Tensor) -> Tensor:
        return torch.sin(p[0]) * p[1] ** 2 + p[0]

    point, v = torch.tensor([1.3, 0.4], dtype=F64), torch.tensor([0.3, -0.2], dtype=F64)

    def slope(_: float, s: np.ndarray) -> np.ndarray:
        p, d = torch.from_numpy(s[:2].copy()), torch.from_numpy(s[2:].copy())
        lowered = jacrev(lambda q: (d @ metric(q) @ d) / 2)(p) - jacrev(lambda q: metric(q) @ d)(p) @ d  # Lagrange
        return np.concatenate([d.numpy(), torch.linalg.solve(metric(p), lowered).numpy()])

    def at(t: float) -> float:
        end = solve_ivp(slope, (0, t), torch.cat([point, v]).numpy(), rtol=1e-12, atol=1e-13).y[:2, -1]
        return float(f(torch.from_numpy(end.copy())))

    step = 1e-2
    second = (-at(2 * step) + 16 * at(step) - 30 * float(f(point)) + 16 * at(-step) - at(-2 * step)) / (12 * step**2)
    assert float(v @ riemannian_hessian(f, metric, point) @ v) == pytest.approx(second, rel=1e-6)
    assert float(v @ hessian(f)(point) @ v) != pytest.approx(second, rel=1e-2)


def test_products_of_transported_objects_keep_their_values() -> None:
    # Kills: a covector moved as a vector, a bilinear form moved as an operator.
    model, batch = classifier()
    layout, f, point = flat_loss(model, batch, nn.functional.cross_entropy)
    change = smooth(layout, 5)
    move = Transport(change, layout.named(point))
    v, w = (torch.randn(layout.size, dtype=F64) for _ in range(2))
    b = positive(layout.size, 3)
    v_new, w_new = move.vector(layout.named(v)), move.covector(layout.named(w))
    assert float(layout.flat(w_new) @ layout.flat(v_new)) == pytest.approx(float(w @ v), rel=1e-10)
    gradient = jacrev(lambda p: f(layout.flat(change.inverse(layout.named(p)))))(layout.flat(move.psi))
    torch.testing.assert_close(layout.flat(move.covector(layout.named(jacrev(f)(point)))), gradient, **TIGHT)

    def times(matrix: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
        return lambda x: layout.named(matrix @ layout.flat(x))

    x_new = layout.flat(move.metric(times(b))(v_new))
    assert float(layout.flat(v_new) @ x_new) == pytest.approx(float(v @ b @ v), rel=1e-10)
    torch.testing.assert_close(move.bilinear_matrix(b) @ layout.flat(v_new), x_new, **TIGHT)
    torch.testing.assert_close(
        layout.flat(move.operator(times(b))(v_new)), layout.flat(move.vector(layout.named(b @ v))), **TIGHT
    )
    solved = move.inverse_metric(times(torch.linalg.inv(b)))(layout.named(x_new))
    torch.testing.assert_close(layout.flat(solved), layout.flat(v_new), **TIGHT)
    again = Transport(change.inverted, move.psi).vector(v_new)
    torch.testing.assert_close(layout.flat(again), v, **TIGHT)
    with pytest.raises(ArgumentError, match="matrix of 15 rows"):
        move.bilinear_matrix(torch.eye(3, dtype=F64))


# -------------------------------------------------------------------------------------------------------- C6: metrics


def forms(metric: Metric | None, problem: sl.Problem, change: Reparametrisation) -> tuple[Tensor, Tensor]:
    """The matrix that autodiff computes in the new parameters, and the transported one."""
    assert metric is not None
    move = Transport(change, problem.weights)
    return metric.at(reparametrised(problem, change)).matrix(), move.bilinear_matrix(metric.at(problem).matrix())


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("metric", [fisher(), gauss_newton(), empirical_fisher()], ids=lambda m: m.kind)
def test_fisher_like_metrics_transform_by_themselves(metric: CurvatureMetric, seed: int) -> None:
    model, batch = classifier(seed % 5)
    problem = sl.Problem(model, [batch])
    found, wanted = forms(metric, problem, smooth(Layout(problem.weights), seed))
    assert metric.transforms is Transforms.ALWAYS
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("metric", [fisher(1e-2), empirical_fisher(1e-2)], ids=str)
def test_damping_breaks_it(metric: CurvatureMetric) -> None:
    model, batch = classifier()
    found, wanted = forms(metric, sl.Problem(model, [batch]), Scaling(3.0))
    assert metric.transforms is Transforms.NEVER
    assert float((found - wanted).abs().max()) == pytest.approx(1e-2 * (1 - 1 / 9), rel=1e-6)


def test_diagonals_transform_under_single_entries_only() -> None:
    # The wrong rule: a diagonal Fisher matrix under rotation.
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    size = 6
    turn = torch.linalg.qr(torch.randn(size, size, dtype=F64))[0]
    for change, right in ((Monotone(torch.sinh, torch.asinh), True), (Linear({"0.weight": turn}), False)):
        move = Transport(change, problem.weights)
        old, new = (fisher().diagonal(p).metric for p in (problem, reparametrised(problem, change)))
        layout = Layout(problem.weights)
        wanted = move.bilinear_matrix(torch.diag(layout.flat(old)))
        agrees = torch.allclose(torch.diag(layout.flat(new)), wanted, rtol=1e-8, atol=1e-10)
        assert agrees == right


def test_the_identity_and_adams_root_do_not_transform() -> None:
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    new = reparametrised(problem, Scaling(3.0))
    for by in ("trace", "eigenvalues"):
        assert sharpness(new, sl.Euclidean(), by, dense=True).value != pytest.approx(
            sharpness(problem, sl.Euclidean(), by, dense=True).value, rel=0.1
        )  # type: ignore[arg-type]

    def root(scale: float) -> Tensor:
        w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=F64) * scale)
        adam = torch.optim.Adam([w], eps=0.0)
        (w / scale).pow(3).sum().backward()
        adam.step()
        holder = nn.Module()
        holder.w = w
        return sl.Diagonal.from_optimizer(adam, holder).metric["w"]

    torch.testing.assert_close(root(3.0), root(1.0) / 3)  # a metric would fall by 9


def test_kfac_transforms_under_linear_maps_of_a_layer_only() -> None:
    # Kills: factors exchanged, weight and bias mixed up, the wrong order of parameters.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Tanh(), nn.Linear(2, 2)).double()
    batch = torch.randn(30, 3, dtype=F64), torch.randint(2, (30,))
    problem = sl.Problem(model, [batch])
    form = KFAC(1e-3).at(problem)
    with torch.no_grad():
        x, hidden = batch[0], model[:2](batch[0])
        p = model(batch[0]).softmax(-1)
        down = (torch.diag_embed(p) - p[:, :, None] * p[:, None]).mean(0)
        root = torch.stack([torch.diag(q) - torch.outer(q, q) for q in p])
        back = (1 - hidden**2).unsqueeze(1) * model[2].weight.unsqueeze(0)  # (n, classes, hidden)
        first = torch.kron(torch.einsum("nca,ncd,ndb->ab", back, root, back).contiguous() / 30, x.mT @ x / 30)
    matrix = form.matrix()
    torch.testing.assert_close(matrix[:6, :6], first + 1e-3 * torch.eye(6, dtype=F64), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        matrix[6:10, 6:10],
        torch.kron(down, hidden.mT @ hidden / 30) + 1e-3 * torch.eye(4, dtype=F64),
        rtol=1e-6,
        atol=1e-9,
    )
    w = torch.randn(12, dtype=F64)
    torch.testing.assert_close(form.product(form.solve(w)), w, rtol=1e-6, atol=1e-8)
    # by itself: K-FAC of a network whose input is A^-1 x and whose first weights are W A, a map of that layer's input
    a = torch.randn(3, 3, dtype=F64) + 2 * torch.eye(3, dtype=F64)
    twin = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Tanh(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        twin[0].weight.copy_(model[0].weight @ a)
        twin[2].load_state_dict(model[2].state_dict())
    other = KFAC(1e-12).at(sl.Problem(twin, [(torch.linalg.solve(a, batch[0].mT).mT, batch[1])])).matrix()
    change = Linear({"0.weight": torch.kron(torch.eye(2, dtype=F64), a.mT.contiguous())})
    plain = KFAC(1e-12).at(problem).matrix()
    torch.testing.assert_close(other, Transport(change, problem.weights).bilinear_matrix(plain), rtol=1e-6, atol=1e-9)

    def rank(
        block: Tensor,
    ) -> int:  # 1 for a Kronecker product of a 2 x 2 and a 3 x 3 matrix (Van Loan's rearrangement)
        return int(torch.linalg.matrix_rank(block.reshape(2, 3, 2, 3).permute(0, 2, 1, 3).reshape(4, 9), rtol=1e-6))

    entries = Scaling({"0.weight": torch.linspace(0.5, 2.0, 6, dtype=F64).view(2, 3)})
    moved = {m: Transport(m, problem.weights).bilinear_matrix(plain)[:6, :6] for m in (change, entries)}
    assert rank(plain[:6, :6]) == rank(moved[change]) == 1
    assert rank(moved[entries]) > 1  # no K-FAC can come out as the transported one
    assert KFAC.transforms is Transforms.LAYERWISE
    with pytest.raises(ModelError, match="model's own parameters for K-FAC"):
        KFAC().at(reparametrised(problem, WeightNorm()))
    kept = KFAC().transported(change)
    assert sharpness(reparametrised(problem, change), kept, samples=10).value == pytest.approx(
        sharpness(problem, KFAC(), samples=10).value, rel=1e-7
    )


class _Turning(Form):
    """Not symmetric, so that conjugate gradients never end."""

    _dtype, _device = F64, torch.device("cpu")

    def product(self, v: Tensor) -> Tensor:
        return v + 10 * v.roll(1) * torch.linspace(-1, 1, 15, dtype=F64)


def test_kfac_needs_curvlinops(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = classifier()
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    with pytest.raises(MissingDependencyError, match="expected curvlinops to be installed for K-FAC"):
        KFAC().at(sl.Problem(model, [batch]))


def test_metrics_refuse_what_is_singular_and_name_the_parameter() -> None:
    model, (x, y) = classifier()
    few = sl.Problem(model, [(x[:2], y[:2])])
    with pytest.raises(ReparametrisationError, match=r"singular along '\d\.(weight|bias)'"):
        fisher().geometry(few)
    with pytest.raises(ReparametrisationError, match=r"singular along '\d\.(weight|bias)'"):
        sharpness(few, fisher())
    with pytest.raises(ReparametrisationError, match=r"singular along '\d\.(weight|bias)'"):
        sharpness(few, fisher(), dense=True)
    unused = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        unused[2].weight.zero_()
    with pytest.raises(ReparametrisationError, match=r"singular along '0\.weight'"):
        fisher().diagonal(sl.Problem(unused, [(x, y)]))
    with pytest.raises(ArgumentError, match="'fisher', 'gauss_newton' or"):
        CurvatureMetric("hessian")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="damping from 0 on"):
        fisher(-1.0)
    with pytest.raises(ArgumentError, match="damping above 0"):
        KFAC(0.0)
    with pytest.raises(LossError, match="cross-entropy or mean squared error for K-FAC"):
        KFAC().at(sl.Problem(model, [(x, y)], lambda o, b: o.square().mean()))
    with pytest.raises(ReparametrisationError, match="singular along"):
        _Turning(sl.Problem(model, [(x, y)])).solve(torch.ones(15, dtype=F64))
    with pytest.raises(ReparametrisationError, match="positive definite metric, got a smallest eigenvalue"):
        christoffel(lambda p: torch.diag(p * 0), torch.ones(2, dtype=F64))


# --------------------------------------------------------------------------------------------- optimisers' own metrics


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.5), eps=1e-3), "adam"),
        (lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 0.5), eps=1e-3, amsgrad=True), "adam"),
        (lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.5, eps=1e-3), "rmsprop"),
        (lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.5, eps=1e-3, centered=True), "centred"),
        (lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3), "adagrad"),
    ],
)
def test_the_metric_of_an_optimiser_is_what_it_divides_by(
    make: Callable[..., torch.optim.Optimizer], wanted: str
) -> None:
    # Kills: the bias correction forgotten, no square root, eps inside the root, names of other parameters.
    model = nn.Linear(2, 1).double()
    optimiser = make(model.parameters())
    gradients = [torch.tensor([[1.0, -2.0]], dtype=F64), torch.tensor([[3.0, 0.5]], dtype=F64)]
    for g in gradients:
        model.weight.grad, model.bias.grad = g.clone(), torch.ones(1, dtype=F64)
        optimiser.step()
    a, b = gradients
    second = {"adam": (a**2 * 0.25 + b**2 * 0.5) / 0.75, "rmsprop": a**2 * 0.25 + b**2 * 0.5, "adagrad": a**2 + b**2}
    second["centred"] = second["rmsprop"] - (a * 0.25 + b * 0.5) ** 2
    if optimiser.defaults.get("amsgrad"):
        second["adam"] = torch.maximum(a**2 * 0.5, a**2 * 0.25 + b**2 * 0.5) / 0.75
    metric = sl.Diagonal.from_optimizer(optimiser, model).metric
    torch.testing.assert_close(metric["weight"], second[wanted].sqrt() + 1e-3, rtol=1e-12, atol=0)
    assert set(metric) == {"weight", "bias"}


def test_the_metric_of_adam_e_has_its_power() -> None:
    # Kills: a root whatever the power, a correction that the optimiser does not make.
    w = nn.Linear(1, 1, bias=False).double()
    optimiser = sl.optim.AdamE(w.parameters(), lr=0.1, betas=(0.0, 0.5), power=0.25, eps=0.1, bias_correction=False)
    w.weight.grad = torch.tensor([[3.0]], dtype=F64)
    optimiser.step()
    assert float(sl.Diagonal.from_optimizer(optimiser, w).metric["weight"]) == pytest.approx(4.5**0.25 + 0.1)


def test_optimisers_without_second_moments_are_refused() -> None:
    model = nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ArgumentError, match="take a step first"):
        sl.Diagonal.from_optimizer(torch.optim.Adam(model.parameters()), model)
    model(torch.ones(1, 2)).sum().backward()
    sgd.step()
    with pytest.raises(ArgumentError, match="keeps second moments"):
        sl.Diagonal.from_optimizer(sgd, model)


# ---------------------------------------------------------------------------------------------------------- sharpness


def dense_oracle(problem: sl.Problem, batch: tuple[Tensor, Tensor], g: Tensor) -> np.ndarray:
    _, f, point = flat_loss(problem.model, batch, nn.functional.cross_entropy)
    return eigh(hessian(f)(point).numpy(), g.numpy(), eigvals_only=True)[::-1]


def metrics(problem: sl.Problem) -> dict[str, tuple[Metric | sl.geometry.Geometry, Tensor]]:
    size = Layout(problem.weights).size
    g = positive(size, 4)
    layout = Layout(problem.weights)
    entries = torch.linspace(0.5, 2.0, size, dtype=F64)
    jac = jacrev(lambda w: functional_call(problem.model, layout.named(w), (next(problem.batches())[0],)))(
        layout.flat(problem.weights)
    )
    p = problem.model(next(problem.batches())[0]).detach().softmax(-1)
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    ggn = torch.einsum("nca,ncd,ndb->ab", jac, inner, jac) / len(p)
    return {
        "euclidean": (sl.Euclidean(), torch.eye(size, dtype=F64)),
        "diagonal": (sl.Diagonal(layout.named(entries)), torch.diag(entries)),
        "dense": (sl.Dense(g), g),
        "fisher": (fisher(0.05), ggn + 0.05 * torch.eye(size, dtype=F64)),
    }


@pytest.mark.parametrize("name", ["euclidean", "diagonal", "dense", "fisher"])
def test_sharpness_against_generalised_eigenvalues(name: str) -> None:
    # Kills: E^-1 for E, the metric applied twice, a root of it, products counted as eigenvalues.
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    metric, g = metrics(problem)[name]
    values = dense_oracle(problem, batch, g)
    assert sharpness(problem, metric, dense=True).value == pytest.approx(values.sum(), rel=1e-9)
    top = sharpness(problem, metric, "eigenvalues", k=3, tolerance=1e-10)
    np.testing.assert_allclose(top.stats["eigenvalues"], values[:3], rtol=1e-7)
    np.testing.assert_allclose(
        sharpness(problem, metric, "eigenvalues", k=15, dense=True).stats["eigenvalues"], values, rtol=1e-8, atol=1e-10
    )
    trace = sharpness(problem, metric, samples=300, tolerance=0.0)
    assert abs(trace.value - values.sum()) < 4 * trace.standard_error + 1e-9
    wanted = np.log(np.abs(values) + 1.0).sum()
    found = sharpness(problem, metric, "det", dense=True, damping=1.0, absolute=True).value
    assert found == pytest.approx(wanted, rel=1e-9)
    if name == "fisher":  # known by products alone: both at once would be another quantity
        with pytest.raises(ArgumentError, match="absolute=True or damping above 0"):
            sharpness(problem, metric, "det", damping=1.0, absolute=True, steps=15)
        damping = 1.0 - float(values.min())
        estimate = sharpness(problem, metric, "det", damping=damping, steps=15, probes=60)
        exact = float(np.log(np.asarray(values) + damping).sum())
    else:
        estimate = sharpness(problem, metric, "det", damping=1.0, absolute=True, steps=15, probes=60)
        exact = wanted
    assert estimate.standard_error is not None
    assert abs(estimate.value - exact) < 4 * estimate.standard_error
    with pytest.raises(DerivativeError, match="eigenvalues above -0 for a log-determinant"):
        sharpness(problem, metric, "det", dense=True)
    with pytest.raises(DerivativeError, match="for a log-determinant"):
        sharpness(problem, metric, "det", steps=15)


MAPS: dict[str, Callable[[Layout], Reparametrisation]] = {
    "weight norm": lambda x: WeightNorm(["0.weight", "2.weight"]),
    "polar": lambda x: Polar(logarithm=True),
    "monotone": lambda x: Monotone(lambda w: w + w**3 / 3),
    "shears": lambda x: smooth(x, 11),
}


@pytest.mark.parametrize("name", ["euclidean", "diagonal", "dense", "fisher"])
@pytest.mark.parametrize("map_name", list(MAPS))
def test_sharpness_with_a_transported_metric_is_invariant(map_name: str, name: str) -> None:
    # Kills: a metric transported by J for J^-1, or not at all; the Hessian of psi-lines in place of theta-lines.
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    change = MAPS[map_name](Layout(problem.weights))
    new = reparametrised(problem, change)
    metric, _ = metrics(problem)[name]
    for by, dense in (("trace", True), ("trace", False), ("eigenvalues", False), ("det", False)):
        old, found = (
            sharpness(p, m, by, dense=dense, samples=20, absolute=True, steps=8, probes=2).value  # type: ignore[arg-type]
            for p, m in ((problem, metric), (new, metric.transported(change)))
        )
        assert found == pytest.approx(old, rel=1e-8), by


def test_a_metric_as_a_geometry_serves_every_measure() -> None:
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    change = smooth(Layout(problem.weights), 2)
    new = reparametrised(problem, change)
    for metric in (fisher(0.1), empirical_fisher(0.1)):
        geometry, moved = metric.geometry(problem), metric.transported(change).geometry(new)
        for measure in (sl.gradient_norm, sl.worst_case, sl.hessian_trace):
            assert measure(new, moved).value == pytest.approx(measure(problem, geometry).value, rel=1e-6)


def test_a_dense_metric_is_a_geometry(generator: torch.Generator) -> None:
    # Kills: L for L^-T, a transpose.
    weights = {"a": torch.randn(2, 3, dtype=F64), "b": torch.randn(2, dtype=F64)}
    g = positive(8, 0)
    chart = sl.Dense(g).chart(weights)
    z = chart.gaussian(generator)
    tangent = Layout(weights).flat(chart.tangent(z))
    assert float(tangent @ g @ tangent) == pytest.approx(float(z @ z), rel=1e-12)
    torch.testing.assert_close(chart.coordinates(chart.tangent(z)), z, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(Layout(weights).flat(chart.weights(z)), Layout(weights).flat(weights) + tangent)
    assert chart.layers() == {"a, b": (slice(0, 8),)}
    with pytest.raises(ArgumentError, match="positive definite metric, got eigenvalues"):
        sl.Dense(torch.diag(torch.tensor([1.0, 0.0])))
    with pytest.raises(ArgumentError, match="square matrix"):
        sl.Dense(torch.ones(2, 3))
    with pytest.raises(ArgumentError, match="finite symmetric"):
        sl.Dense(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    with pytest.raises(ModelError, match="metric of 8 rows"):
        sl.Dense(torch.eye(3)).chart(weights)


# ----------------------------------------------------------------------------------------------------- C10 and settings


@settings(max_examples=15, deadline=None)
@given(st.floats(0.05, 20.0))
def test_the_law_of_table_3(c: float) -> None:
    # tr H falls by c^2 under psi = c theta, though nothing happened to the model.
    model, batch = classifier()
    problem = sl.Problem(model, [batch])
    new = reparametrised(problem, Scaling(c))
    before = sharpness(problem, sl.Euclidean(), dense=True).value
    assert sharpness(new, sl.Euclidean(), dense=True).value == pytest.approx(before / c**2, rel=1e-8)
    assert sharpness(new, sl.Euclidean().transported(new.change), dense=True).value == pytest.approx(before, rel=1e-8)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"by": "norm"}, "by='trace', 'det' or 'eigenvalues'"),
        ({"k": 0}, "k to be a whole number"),
        ({"damping": -1.0}, "damping and tolerance from 0 on"),
    ],
)
def test_settings_of_sharpness_are_checked(kwargs: dict[str, object], words: str) -> None:
    model, batch = classifier()
    with pytest.raises(ArgumentError, match=words):
        sharpness(sl.Problem(model, [batch]), sl.Euclidean(), **kwargs)  # type: ignore[arg-type]


def test_kfac_leaves_a_model_in_training_mode_as_it_was() -> None:
    # Kills: forward passes of curvlinops in the user's mode: moved batch statistics, factors of dropout's noise.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)).double().train()
    x = torch.randn(8, 4, dtype=F64)
    problem = sl.Problem(model, [(x, torch.randint(3, (8,)))], parameters=lambda n: n.startswith(("0", "3")))
    before = {n: b.clone() for n, b in model.named_buffers()}
    found = [sharpness(problem, KFAC(), "trace", samples=4).value for _ in range(2)]
    assert found[0] == found[1]
    assert model.training
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())
