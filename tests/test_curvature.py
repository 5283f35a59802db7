"""The Hessian operator against dense Hessians of written-out networks, in every geometry; and what it refuses."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

import spiritlevel as sl
from dense import dense_hessian, flat, loss_of, riemannian_spectrum
from networks import generic
from spiritlevel.errors import ArgumentError, DerivativeError, LossError
from spiritlevel.geometry import Geometry
from spiritlevel.problem import MATRICES, Curvature, Problem, check_second_derivatives
from test_geodesic_sharpness import tiny

F64 = torch.float64


def vectors(n: int = 12, width: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, width, generator=g, dtype=F64), torch.randint(0, classes, (n,), generator=g)


def normed() -> nn.Module:
    torch.manual_seed(0)
    return generic(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)))


def halves(batch: tuple[Tensor, Tensor], at: int) -> list[tuple[Tensor, Tensor]]:
    x, y = batch
    return [(x[:at], y[:at]), (x[at:], y[at:])]


def dense(model: nn.Module, problem: Problem, batch: Any) -> Tensor:
    """Of the mean loss over one big batch."""
    f = loss_of(model, problem.weights, lambda call: F.cross_entropy(call(batch[0]), batch[1]))
    return dense_hessian(f, flat(problem.weights))


def operator_matrix(operator: Any) -> Tensor:
    return operator @ torch.eye(operator.shape[0], dtype=operator.chart.dtype)


def close(a: Tensor, b: Tensor) -> None:
    assert float((a - b).norm() / b.norm()) < 1e-9


# ----------------------------------------------------------------------------------------------- against dense Hessians


class WithWeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.again(torch.tanh(self.first(x)))))


def _frozen() -> nn.Module:
    model = normed()
    model[0].weight.requires_grad = False
    return model


def _convolutional() -> nn.Module:
    return generic(
        nn.Sequential(
            nn.Unflatten(1, (1, 6)),
            nn.Conv1d(1, 3, 3),
            nn.BatchNorm1d(3),
            nn.Softplus(),
            nn.Flatten(),
            nn.Linear(12, 3),
        )
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "layer norm": normed,
    "batch norm in eval mode": _convolutional,
    "tied weights": lambda: generic(Tied()),
    "frozen subset": _frozen,
    "weight norm": lambda: WithWeightNorm().double(),
}


@pytest.mark.parametrize("net", NETS)
def test_euclidean_operator_is_the_dense_hessian(net: str) -> None:
    # Kills: batches weighted equally, a Gauss-Newton product, torch's fused weight norm, a tied weight counted twice.
    torch.manual_seed(0)
    model, batch = NETS[net](), vectors()
    problem = Problem(model, halves(batch, 8), micro_batch=5)
    close(operator_matrix(sl.hessian_operator(problem, sl.Euclidean())), dense(model, problem, batch))


@pytest.mark.parametrize("net", NETS)
def test_forward_engine_is_the_same(net: str) -> None:
    torch.manual_seed(0)
    problem = Problem(NETS[net](), halves(vectors(), 8))
    reverse, forward = (sl.hessian_operator(problem, sl.Euclidean(), engine=e) for e in ("reverse", "forward"))
    if net in ("layer norm", "batch norm in eval mode", "frozen subset", "tied weights", "weight norm"):
        close(operator_matrix(forward), operator_matrix(reverse))


def test_elementwise_and_diagonal_operators() -> None:
    # Kills: |w| on one side only, a zero weight that moves, sqrt(g) for 1/sqrt(g).
    model, batch = normed(), vectors()
    with torch.no_grad():
        model[0].weight[0, 0] = 0.0
    problem = Problem(model, [batch])
    h, w = dense(model, problem, batch), flat(problem.weights)
    close(operator_matrix(sl.hessian_operator(problem, sl.Elementwise())), w.abs()[:, None] * h * w.abs())
    metric = {n: torch.rand_like(p) + 0.5 for n, p in problem.weights.items()}
    s = flat(metric).rsqrt()
    close(operator_matrix(sl.hessian_operator(problem, sl.Diagonal(metric))), s[:, None] * h * s)
    f = loss_of(model, problem.weights, lambda call: F.cross_entropy(call(batch[0]), batch[1]))
    slope = torch.func.grad(f)(w)
    curved = w.abs()[:, None] * h * w.abs() + torch.diag(w * slope)  # w exp(sign(w) z) has second derivative w
    close(operator_matrix(sl.hessian_operator(problem, sl.Elementwise("geodesic"))), curved)


@pytest.mark.parametrize("metric", ["inverse_gram", "cross_gram"])
@pytest.mark.parametrize("bias", [False, True])
def test_quotient_operator_has_the_riemannian_spectrum(metric: str, bias: bool) -> None:
    """Away from minima, so that a missing Christoffel term shows; eigenvalues do not depend on the basis."""
    model, batch = tiny(heads=2, bias=bias)
    problem = Problem(model, [batch])
    operator = sl.hessian_operator(problem, sl.Quotient(metric))
    found = torch.linalg.eigvalsh(operator_matrix(operator))
    expected = riemannian_spectrum(model, batch, metric)
    padded = torch.cat([expected, torch.zeros(len(found) - len(expected), dtype=F64)]).sort().values
    torch.testing.assert_close(found, padded, rtol=1e-8, atol=1e-8 * float(padded.abs().max()))


def test_straight_lines_in_the_quotient_have_another_hessian() -> None:
    """Kills: the test above passing without a Christoffel term."""
    model, batch = tiny(heads=2, bias=True)
    first = sl.hessian_operator(Problem(model, [batch]), sl.Quotient(curve="first_order"))
    found, expected = torch.linalg.eigvalsh(operator_matrix(first)), riemannian_spectrum(model, batch, "inverse_gram")
    assert abs(found.sum() - expected.sum()) > 1e-3 * expected.abs().sum()


def test_all_second_order_curves_agree_and_vertical_directions_carry_nothing() -> None:
    model, batch = tiny(heads=2, bias=True)
    problem = Problem(model, [batch])
    operator = sl.hessian_operator(problem, sl.Quotient())
    chart = problem.chart(sl.Quotient())  # with the exact curve
    exact = torch.autograd.functional.hessian(lambda z: problem.tensor(chart.weights(z), batch), chart.zeros())
    close(operator_matrix(operator), exact)
    z = torch.randn(chart.size, dtype=F64, generator=torch.Generator().manual_seed(0))
    vertical = z - chart.project(z)
    assert float(vertical.norm()) > 0.5
    assert float((operator @ vertical).norm()) < 1e-12 * float((operator @ z).norm())
    assert chart.dimension == int(
        torch.linalg.matrix_rank(torch.func.vmap(chart.project)(torch.eye(chart.size).double()))
    )


def token_batches() -> list[dict[str, Tensor]]:
    """Two batches of unequal size, padded, with ignored labels."""
    g = torch.Generator().manual_seed(1)
    batches = []
    for n, length in ((3, 6), (2, 4)):
        ids = torch.randint(1, 20, (n, length), generator=g)
        mask = torch.ones_like(ids)
        mask[0, length // 2 :] = 0
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)})
    return batches


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 20}


def test_padded_token_batches_of_unequal_size() -> None:
    # Kills: weights by sequences or equal weights, which are 40 % off; labels that are not shifted.
    torch.manual_seed(0)
    model = generic(tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL, num_key_value_heads=1, rope_theta=10.0)))
    batches = token_batches()
    problem = Problem(model, batches, parameters=lambda n: "self_attn" in n or "layernorm" in n)
    operator = sl.hessian_operator(problem, sl.Euclidean())

    def whole(call: Any) -> Tensor:
        total, count = torch.zeros((), dtype=F64), 0
        for b in batches:
            logits = call(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits
            targets = b["labels"][:, 1:].reshape(-1)
            terms = F.cross_entropy(logits[:, :-1].reshape(-1, 20), targets.clamp_min(0), reduction="none")
            total, count = total + (terms * (targets != -100)).sum(), count + int((targets != -100).sum())
        return total / count

    expected = dense_hessian(loss_of(model, problem.weights, whole), flat(problem.weights))
    found = operator_matrix(operator)
    # float32 inside: transformers casts in rotary, norms and softmax
    assert float((found - expected).norm() / expected.norm()) < 2e-4


def test_vit_operator_is_the_dense_hessian(tiny_vit: nn.Module, tiny_batch: tuple[Tensor, Tensor]) -> None:
    problem = Problem(tiny_vit, halves(tiny_batch, 3), parameters=lambda n: "attention" in n or "layernorm" in n)
    f = loss_of(tiny_vit, problem.weights, lambda call: F.cross_entropy(call(tiny_batch[0]).logits, tiny_batch[1]))
    expected = dense_hessian(f, flat(problem.weights))
    close(operator_matrix(sl.hessian_operator(problem, sl.Euclidean())), expected)


# ------------------------------------------------------------------------------------------------------- other matrices


def test_gauss_newton_and_fisher() -> None:
    """``J^T (diag(p) - p p^T) J`` and ``mean g g^T``. Kills: a dropped share, the Hessian in their place."""
    model, batch = normed(), vectors()
    problem = Problem(model, halves(batch, 8), micro_batch=5)
    weights, n = problem.weights, len(batch[1])
    sizes = [w.numel() for w in weights.values()]

    def scores(w: Tensor) -> Tensor:
        parts = {m: p.view_as(v) for (m, v), p in zip(weights.items(), w.split(sizes), strict=True)}
        return torch.func.functional_call(model, parts, (batch[0],))

    jacobian, p = torch.func.jacrev(scores)(flat(weights)), scores(flat(weights)).softmax(-1)
    middle = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    gauss_newton = torch.einsum("nci,ncd,ndj->ij", jacobian, middle, jacobian) / n
    for matrix in ("gauss_newton", "fisher"):
        close(operator_matrix(sl.hessian_operator(problem, sl.Euclidean(), matrix=matrix)), gauss_newton)
    slopes = torch.einsum("nci,nc->ni", jacobian, p - F.one_hot(batch[1], 3))
    empirical = slopes.mT @ slopes / n
    close(operator_matrix(sl.hessian_operator(problem, sl.Euclidean(), matrix="empirical_fisher")), empirical)


def test_gauss_newton_of_squares_and_of_a_models_own_loss() -> None:
    x, _ = vectors()
    target = torch.randn(12, 3, dtype=F64, generator=torch.Generator().manual_seed(2))
    model = nn.Linear(6, 3).double()  # linear: Gauss-Newton is the Hessian
    problem = Problem(model, [(x, target)], nn.MSELoss())
    a, b = (sl.hessian_operator(problem, sl.Euclidean(), matrix=m) for m in ("hessian", "gauss_newton"))
    close(operator_matrix(a), operator_matrix(b))
    torch.manual_seed(0)
    llama = generic(tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL, num_key_value_heads=1)))
    tokens = Problem(llama, token_batches(), parameters=lambda n: "lm_head" in n)  # linear in the scores
    a, b = (sl.hessian_operator(tokens, sl.Euclidean(), matrix=m) for m in ("hessian", "gauss_newton"))
    v = torch.randn(a.shape[0], dtype=F64, generator=torch.Generator().manual_seed(0))
    assert float((a @ v - b @ v).norm() / (a @ v).norm()) < 1e-6
    empirical = sl.hessian_operator(tokens, sl.Euclidean(), matrix="empirical_fisher") @ v
    assert float(empirical @ v) > 0  # the shifted terms were found


def test_matrices_that_do_not_fit_the_loss_are_refused() -> None:
    x, _ = vectors()
    problem = Problem(nn.Linear(6, 3).double(), [(x, torch.zeros(12, 3, dtype=F64))], nn.MSELoss())
    with pytest.raises(ArgumentError, match="cross-entropy for the Fisher matrix"):
        sl.hessian_operator(problem, sl.Euclidean(), matrix="fisher") @ torch.ones(21)
    with pytest.raises(LossError, match="cross-entropy terms for the empirical Fisher"):
        sl.hessian_operator(problem, sl.Euclidean(), matrix="empirical_fisher") @ torch.ones(21)
    with pytest.raises(ArgumentError, match="curvature matrix out of hessian"):
        sl.hessian_operator(problem, sl.Euclidean(), matrix="hesse")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="matrix='hessian' for engine='forward'"):
        sl.hessian_operator(problem, sl.Euclidean(), matrix="gauss_newton", engine="forward")
    with pytest.raises(ArgumentError, match="engine 'reverse' or 'forward'"):
        sl.hessian_operator(problem, sl.Euclidean(), engine="sideways")  # type: ignore[arg-type]
    own = Problem(TwoHeads().double(), [(x, torch.zeros(12).long())], loss=lambda out, b: out[1].square().mean())
    with pytest.raises(LossError, match="computed from the model's scores"):
        sl.hessian_operator(own, sl.Euclidean(), matrix="gauss_newton") @ torch.ones(42)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


def test_a_loss_that_does_not_depend_on_the_weights_has_no_curvature() -> None:
    problem = Problem(nn.Linear(6, 3).double(), [vectors()], loss=lambda out, b: b[0].square().mean())
    assert float((sl.hessian_operator(problem, sl.Euclidean()) @ torch.ones(21)).abs().max()) == 0.0


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("geometry", [sl.Euclidean(), sl.Elementwise(), sl.Quotient(), sl.Quotient("cross_gram")])
def test_every_matrix_is_symmetric_in_every_geometry(matrix: Any, geometry: Geometry) -> None:
    model, batch = tiny(heads=2, bias=True)
    a = operator_matrix(sl.hessian_operator(Problem(model, [batch]), geometry, matrix=matrix))
    assert float((a - a.mT).norm()) < 1e-10 * float(a.norm())
    if matrix != "hessian":
        assert float(torch.linalg.eigvalsh(a).min()) > -1e-10 * float(a.norm())


# ------------------------------------------------------------------------------------------------------ other libraries


def test_scipy_takes_the_operator() -> None:
    model, batch = normed(), vectors()
    problem = Problem(model, [batch])
    operator = sl.hessian_operator(problem, sl.Euclidean())
    values = np.linalg.eigvalsh(dense(model, problem, batch).numpy())
    assert eigsh(operator, k=2, which="LA", return_eigenvectors=False) == pytest.approx(values[-2:], rel=1e-8)
    assert np.allclose(operator.T @ np.eye(operator.shape[0]), operator @ np.eye(operator.shape[0]))
    assert operator.products > 0


def test_curvlinops_takes_the_operator() -> None:
    from curvlinops import hutchinson_trace

    model, batch = normed(), vectors()
    problem = Problem(model, [batch])
    wrapped = sl.hessian_operator(problem, sl.Euclidean()).to_curvlinops()
    h = dense(model, problem, batch)
    close(wrapped @ torch.eye(len(h), dtype=F64), h)
    torch.manual_seed(0)
    assert float(hutchinson_trace(wrapped, num_matvecs=60)) == pytest.approx(
        float(h.trace()), abs=3 * float(h.norm()) / 5
    )


def test_curvlinops_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "curvlinops._torch_base", None)
    operator = sl.hessian_operator(Problem(normed(), [vectors()]), sl.Euclidean())
    with pytest.raises(sl.SpiritlevelError, match=r"pip install 'spiritlevel\[curvlinops\]'"):
        operator.to_curvlinops()


# ------------------------------------------------------------------------------------------------------------ behaviour


def test_graph_is_rebuilt_after_weights_were_edited() -> None:
    # Kills: a stale graph; an edit through .data, which torch's own version counters do not see.
    model, batch = normed(), vectors()
    problem = Problem(model, [batch])
    operator = sl.hessian_operator(problem, sl.Elementwise())
    v = torch.randn(operator.shape[0], dtype=F64, generator=torch.Generator().manual_seed(0))
    before = operator @ v
    for edit in (lambda p: p.mul_(1.5), lambda p: p.data.mul_(0.5)):
        with torch.no_grad():
            edit(model[0].weight)
        fresh = sl.hessian_operator(Problem(model, [batch]), sl.Elementwise()) @ v
        assert float((operator @ v - before).norm()) > 1e-3 * float(before.norm())
        close(operator @ v, fresh)
    assert operator.products == 5


def test_one_graph_for_one_batch_and_one_per_call_for_several() -> None:
    problem = Problem(normed(), halves(vectors(), 8))
    chart = problem.chart(sl.Euclidean())
    v = torch.ones(4, chart.size, dtype=F64)
    one, several = Curvature(problem, chart, next(problem.batches())), Curvature(problem, chart)
    for _ in range(3):
        one(v), several(v)
    assert (one.graphs, several.graphs) == (1, 6)
    assert one.products == several.products == 12
    one.release()
    one(v)
    assert one.graphs == 2


def test_the_model_is_left_as_it_was() -> None:
    model, batch = _convolutional().train(), vectors()
    model[1].weight.grad = torch.ones_like(model[1].weight)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    sl.hessian_trace(Problem(model, [batch]), sl.Euclidean(), samples=4)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(model[1].weight.grad, torch.ones_like(model[1].weight))
    assert all(p.grad is None for n, p in model.named_parameters() if n != "1.weight")


def test_half_precision_is_measured_in_single() -> None:
    model, (x, y) = normed(), vectors()
    half = copy.deepcopy(model).to(torch.bfloat16)
    exact = copy.deepcopy(half).double()
    found = sl.hessian_operator(Problem(half, [(x, y)]), sl.Euclidean())
    assert found.chart.dtype == torch.float32
    expected = dense(exact, Problem(exact, [(x, y)]), (x, y)).float()
    assert float((operator_matrix(found) - expected).norm() / expected.norm()) < 1e-5


class _WrongTwice(torch.autograd.Function):
    """``x^2`` whose gradient is right and whose second derivative is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x.detach() * g + (x - x.detach()) * g * 0.5


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Custom(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 5), nn.Linear(5, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def test_wrong_second_derivatives_are_found_and_named() -> None:
    model = Custom(_WrongTwice.apply).double()
    with pytest.raises(DerivativeError, match=r"first\.weight \(Linear, off by"):
        sl.hessian_operator(Problem(model, [vectors()]), sl.Euclidean())


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_right_second_derivatives_pass_the_self_check(net: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    error = check_second_derivatives(Problem(NETS[net]().to(dtype), [vectors()]))
    assert error < (1e-7 if dtype == F64 else 1e-2)


def test_functions_without_second_derivative_are_refused() -> None:
    problem = Problem(Custom(_Once.apply).double(), [vectors()])
    with pytest.raises(DerivativeError, match=r"second derivatives that agree|to have a second derivative"):
        sl.hessian_operator(problem, sl.Euclidean())


def test_non_finite_curvature_is_an_error() -> None:
    # sqrt at 0 through a product with 0: the loss and its gradient are finite, the curvature is not
    model = nn.Linear(6, 3).double()
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)

    def loss(out: Tensor, batch: Any) -> Tensor:
        return (out.abs() ** 1.5).sum() + out.sum()

    with pytest.raises(DerivativeError, match="finite product with the curvature"):
        sl.hessian_operator(Problem(model, [vectors()], loss), sl.Euclidean())


def test_fused_attention_is_replaced_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    from spiritlevel.core.evaluation import _Replacing

    _Replacing.told = False
    torch.manual_seed(0)
    vit = tf.ViTForImageClassification(
        tf.ViTConfig(**{k: v for k, v in SMALL.items() if k != "vocab_size"}, image_size=8, patch_size=4)
    )
    assert vit.config._attn_implementation == "sdpa"
    batch = (torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 0, 1]))
    with caplog.at_level(logging.INFO, "spiritlevel"):
        assert sl.hessian_trace(Problem(vit, [batch]), sl.Quotient(), samples=4).value != 0
    assert [r.message for r in caplog.records].count(
        "second derivatives: scaled_dot_product_attention runs on torch's math kernel"
    ) == 1


def test_layers_restrict_to_diagonal_blocks() -> None:
    model, batch = normed(), vectors()
    problem = Problem(model, [batch])
    operator, h = sl.hessian_operator(problem, sl.Euclidean()), dense(model, problem, batch)
    (s,) = operator.chart.layers()["1.weight"]
    with operator.only("1.weight"):
        block = operator_matrix(operator)
        assert operator.dimension == 5
    close(block[s, s], h[s, s])
    assert float(block.norm()) == pytest.approx(float(h[s, s].norm()))
    with pytest.raises(ArgumentError, match=r"a layer out of 0\.weight"), operator.only("9.weight"):
        pass


def test_layers_of_the_quotient_are_its_blocks() -> None:
    model, batch = tiny(heads=2, bias=True)
    problem = Problem(model, [batch])
    chart = problem.chart(sl.Quotient())
    layers = chart.layers()
    assert sum(s.stop - s.start for stretches in layers.values() for s in stretches) == chart.size
    (block,) = [b for b in problem.symmetries if (b.name in layers and "value" in b.name.lower()) or "V" in b.name][:1]
    stretches = layers[block.name]
    z = chart.zeros()
    for s in stretches:
        z[s] = 1.0
    moved, still = chart.weights(chart.project(z)), chart.weights(chart.zeros())
    assert {n for n in moved if not torch.equal(moved[n], still[n])} == set(block.parameters)


def test_the_graph_is_rebuilt_after_edits_of_frozen_weights_and_buffers() -> None:
    # Kills: a stale graph that only the measured weights give away.
    torch.manual_seed(0)
    model = generic(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))
    problem = Problem(model, [vectors()], parameters=["3.weight"])
    operator, v = sl.hessian_operator(problem, sl.Euclidean()), torch.arange(15, dtype=F64)
    for edit in (
        lambda: setattr(model[0].weight, "data", 2 * model[0].weight.data),
        lambda: model[0].weight.data.neg_(),
        lambda: model[1].running_var.mul_(3),
    ):
        before = operator @ v
        edit()
        fresh = sl.hessian_operator(Problem(model, [vectors()], parameters=["3.weight"]), sl.Euclidean()) @ v
        assert float((before - fresh).norm()) > 1e-3
        torch.testing.assert_close(operator @ v, fresh)
