"""Problem and Objective: right values, an untouched model, and one clear error for each kind of bad input."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.core.evaluation import evaluating
from spiritlevel.errors import (
    ArgumentError,
    DataError,
    DerivativeError,
    LossError,
    ModelError,
    NondeterminismError,
    SpiritlevelError,
)
from spiritlevel.geometry import Euclidean
from spiritlevel.problem import Curvature, Objective


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def batch(size: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(size, 4, generator=g, dtype=dtype), torch.randint(3, (size,), generator=g)


def test_value_and_gradient_are_those_of_the_plain_loss() -> None:
    """Kills: a dropped share, the sum in place of the mean, a gradient at other weights."""
    model, (x, y) = net(), batch()
    problem = sl.Problem(model, [(x, y)])
    chart = problem.chart(Euclidean())
    value, gradient = Objective(problem, chart, (x, y))(chart.zeros())
    loss = F.cross_entropy(model(x), y)
    plain = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert value == pytest.approx(loss.item(), rel=1e-14)
    torch.testing.assert_close(gradient, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_micro_batches_add_up(size: int) -> None:
    """Kills: equal weights for unequal parts (8 = 3 + 3 + 2)."""
    model, (x, y) = net(), batch()
    whole, parts = sl.Problem(model, [(x, y)]), sl.Problem(model, [(x, y)], micro_batch=size)
    chart = whole.chart(Euclidean())
    z = chart.gaussian(torch.Generator().manual_seed(0)) * 0.1
    (a, ga), (b, gb) = (Objective(p, chart, (x, y))(z) for p in (whole, parts))
    assert a == pytest.approx(b, rel=1e-13)
    torch.testing.assert_close(ga, gb, rtol=1e-11, atol=1e-14)


def test_ignored_targets_do_not_count() -> None:
    """Kills: weighting micro-batches by examples where targets are padded."""
    model, (x, y) = net(), batch()
    y = y.clone()
    y[:3] = -100
    whole, parts = (sl.Problem(model, [(x, y)], micro_batch=m) for m in (None, 4))
    assert whole.value(whole.weights, (x, y)) == pytest.approx(parts.value(parts.weights, (x, y)), rel=1e-13)
    assert whole.terms((x, y)) == 5


def test_union_is_the_loss_of_all_data() -> None:
    model, (x, y) = net(), batch(10)
    problem = sl.Problem(model, [(x[:7], y[:7]), (x[7:], y[7:])])
    chart = problem.chart(Euclidean())
    value, gradient = Objective(problem, chart)(chart.zeros())
    loss = F.cross_entropy(model(x), y)
    plain = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert value == pytest.approx(loss.item(), rel=1e-13)
    torch.testing.assert_close(gradient, plain, rtol=1e-11, atol=1e-14)


class Awkward(nn.Module):
    """Dropout, batch norm, a buffer that counts calls, a hook: all that can be changed by mistake."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.b(self.drop(self.norm(self.a(x))))
        return out


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_untouched(fails: bool) -> None:
    """Kills: model.eval() left on, buffers changed, .grad filled, frozen flags flipped; also when an error comes."""
    model = Awkward().double().train()
    model.drop.eval()  # a mixed mode has to come back as it was
    model.a.weight.requires_grad_(False)
    model.b.weight.grad = torch.ones_like(model.b.weight)
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    x, y = batch()
    problem = sl.Problem(model, [(x, y + 99 if fails else y)])
    if fails:
        with pytest.raises(DataError, match="labels from 0 to 2"):
            sl.adaptive_sharpness(problem, 0.1)
    else:
        sl.adaptive_sharpness(problem, 0.1)
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model.b.weight.grad, torch.ones_like(model.b.weight))
    assert model.a.weight.grad is None
    assert not model.a.weight.requires_grad
    assert model.b.bias.requires_grad


def test_evaluation_mode_comes_back_after_an_exception() -> None:
    model = net().train()

    def work() -> None:
        with evaluating(model):
            assert not model[0].training
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        work()
    assert model[0].training


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x + torch.randn_like(x) * 0.1)
        return out


def shuffled() -> torch.utils.data.DataLoader[Any]:
    x, y = batch(32)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> str:
        return "no tensor"

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))


class Root(nn.Module):
    """Finite at its weights with an infinite gradient: the square root at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 1.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2] * self.w.abs().sqrt()


def nan_net() -> nn.Module:
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    return model


def frozen_net() -> nn.Module:
    return net().requires_grad_(False)


x8, y8 = batch()
BAD: dict[str, tuple[Any, type[SpiritlevelError], str]] = {
    "empty list": (lambda: sl.Problem(net(), []), DataError, "at least one batch, got an empty loader"),
    "no module": (lambda: sl.Problem("model", [(x8, y8)]), ModelError, "expected a torch.nn.Module"),  # type: ignore[arg-type]
    "stochastic model": (lambda: sl.Problem(Noisy(), [(x8, y8)]), NondeterminismError, "same loss on each pass"),
    "shuffled data": (lambda: sl.Problem(net(), shuffled()), NondeterminismError, "same loss on each pass"),
    "NaN weights": (
        lambda: sl.Problem(nan_net(), [(x8, y8)]),
        ModelError,
        "finite weights, got NaN or infinity in 0.weight",
    ),
    "NaN data": (lambda: sl.Problem(net(), [(x8 * float("nan"), y8)]), LossError, "finite loss"),
    "labels too large": (lambda: sl.Problem(net(), [(x8, y8 + 5)]), DataError, "labels from 0 to 2"),
    "negative labels": (lambda: sl.Problem(net(), [(x8, y8 - 5)]), DataError, "labels from 0 to 2"),
    "too few labels": (lambda: sl.Problem(net(), [(x8, y8[:4])]), DataError, "one label for each of 8 outputs, got 4"),
    "wrong input width": (lambda: sl.Problem(net(), [(x8[:, :2], y8)]), ModelError, "the model's forward pass to work"),
    "no tensor out": (
        lambda: sl.Problem(Wrong(), [(x8, y8)]),
        LossError,
        "expected a tensor, or an output with .logits",
    ),
    "vector loss": (
        lambda: sl.Problem(net(), [(x8, y8)], loss=lambda o, b: o.sum(-1)),
        LossError,
        "scalar loss, got shape",
    ),
    "loss that fails": (
        lambda: sl.Problem(net(), [(x8, y8)], loss=lambda o, b: o["x"]),
        ModelError,
        "the loss to work",
    ),
    "loss of the wrong kind": (
        lambda: sl.Problem(net(), [(x8, y8)], loss=3),
        ArgumentError,
        "expected loss to be a function",
    ),  # type: ignore[arg-type]
    "summed torch loss": (
        lambda: sl.Problem(net(), [(x8, y8)], loss=nn.CrossEntropyLoss(reduction="sum")),
        LossError,
        "reduction='mean'",
    ),
    "loss and logits": (
        lambda: sl.Problem(net(), [(x8, y8)], loss=F.mse_loss, normalize_logits=True),
        ArgumentError,
        "either",
    ),
    "three parts": (lambda: sl.Problem(net(), [(x8, y8, y8)]), DataError, r"\(inputs, targets\) or a dict"),
    "dict without labels": (lambda: sl.Problem(net(), [{"input": x8}]), DataError, "expected 'labels' in a dict batch"),
    "no tensor in": (
        lambda: sl.Problem(net(), ["text"], micro_batch=2),
        DataError,
        r"\(inputs, targets\)|at least one tensor",
    ),
    "unknown parameter": (
        lambda: sl.Problem(net(), [(x8, y8)], parameters=["nope"]),
        ArgumentError,
        "names of the model's",
    ),
    "all frozen": (lambda: sl.Problem(frozen_net(), [(x8, y8)]), ModelError, "unfreeze some, or name them"),
    "micro-batch of nothing": (lambda: sl.Problem(net(), [(x8, y8)], micro_batch=0), ArgumentError, "micro_batch"),
    "meta device": (lambda: sl.Problem(nn.Linear(4, 3, device="meta"), [(x8, y8)]), ModelError, "meta device"),
    "infinite gradient": (
        lambda: sl.Problem(Root(), [(x8.abs() + 1, y8 % 2)], loss=lambda o, b: o.mean()),
        DerivativeError,
        "finite gradient",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_error(case: str) -> None:
    make, error, words = BAD[case]
    with pytest.raises(error, match=words):
        sl.worst_case(make(), Euclidean(), 0.1)


@pytest.mark.parametrize("rho", [-1.0, 0.0, float("nan"), float("inf"), "0.1", [], [0.1, -1.0], True])
def test_bad_radii_are_refused_before_anything_runs(rho: Any) -> None:
    def never(output: Any, batch: Any) -> Tensor:
        raise AssertionError("the loss was evaluated")

    problem = sl.Problem(net(), [(x8, y8)], loss=never)
    for measure in (sl.adaptive_sharpness, sl.geodesic_sharpness):
        with pytest.raises(ArgumentError, match="radius"):
            measure(problem, rho)


def test_frozen_and_tied_parameters() -> None:
    """Kills: moving frozen weights; moving one of two tied names."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    problem = sl.Problem(model, [batch()])
    assert sorted(problem.weights) == ["0.weight", "2.bias"]
    x, _ = batch()
    w = problem.weights["0.weight"] * 2
    out = problem.output({**problem.weights, "0.weight": w}, batch())
    want = torch.tanh(x @ w.T + model[0].bias) @ w.T + model[2].bias
    torch.testing.assert_close(out, want)


def test_half_precision_models_are_measured_in_float32() -> None:
    """Kills: rounding perturbed weights back to bfloat16 (a step of 1e-4 would vanish)."""
    model = net(torch.bfloat16)
    problem = sl.Problem(model, [batch(dtype=torch.bfloat16)])
    assert {w.dtype for w in problem.weights.values()} == {torch.float32}
    twin = copy.deepcopy(model).float()
    other = sl.Problem(twin, [batch(dtype=torch.bfloat16)])
    a, b = (sl.adaptive_sharpness(p, 1e-3).value for p in (problem, other))
    assert a == pytest.approx(b, rel=1e-6)
    assert model[0].weight.dtype == torch.bfloat16


def test_mixed_precision_weights_keep_their_own() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6).double(), nn.Linear(6, 3).float()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b(torch.tanh(self.a(x)).float())
            return out

    result = sl.adaptive_sharpness(sl.Problem(Mixed(), [batch()]), 0.1)
    assert result.value > 0
    assert result.settings["precision"] == "float64"


@pytest.mark.parametrize("kind", ["dict inputs", "tuple inputs", "generator", "dataloader", "float64 inputs"])
def test_batches_of_many_kinds(kind: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
            out: Tensor = self.inner(x if shift is None else x + shift)
            return out

    x, y = batch(dtype=torch.float32)
    model = Two()
    batches: Any = {
        "dict inputs": [({"x": x, "shift": torch.zeros(8, 4)}, y)],
        "tuple inputs": [((x, torch.zeros(8, 4)), y)],
        "generator": ((a, b) for a, b in [(x, y)]),
        "dataloader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8),
        "float64 inputs": [(x.double(), y)],
    }[kind]
    want = sl.adaptive_sharpness(sl.Problem(model, [(x, y)]), 0.2).value
    problem = sl.Problem(model, batches)
    assert sl.adaptive_sharpness(problem, 0.2).value == pytest.approx(want, rel=1e-6)
    assert sl.adaptive_sharpness(problem, 0.2).value == pytest.approx(want, rel=1e-6)  # a generator is not used up


def test_normalised_logits_ignore_the_scale_of_the_last_layer() -> None:
    """Kills: normalisation that is skipped, or that leaves the mean in."""
    model, data = net(), [batch()]
    value = sl.Problem(model, data, normalize_logits=True)
    before = value.value(value.weights, data[0])
    with torch.no_grad():
        model[2].weight *= 5
        model[2].bias *= 5
        model[2].bias += 3
    assert value.value(value.weights, data[0]) == pytest.approx(before, rel=1e-12)
    plain = sl.Problem(model, data)
    assert plain.value(plain.weights, data[0]) != pytest.approx(before, rel=1e-3)


def test_torch_losses_and_own_losses_agree() -> None:
    model, data = net(), [batch()]
    values = [
        sl.Problem(model, data, loss=loss).value(sl.Problem(model, data).weights, data[0])
        for loss in (None, nn.CrossEntropyLoss(), lambda out, b: F.cross_entropy(out, b[1]))
    ]
    assert values == pytest.approx([values[0]] * 3, rel=1e-12)


class Fused(nn.Module):
    """torch's fused attention, which has no second derivative on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x.unsqueeze(0).unsqueeze(0)).chunk(3, dim=-1)
        out: Tensor = F.scaled_dot_product_attention(q, k, v)[0, 0]
        return out


def test_fused_attention_measures_and_has_curvature() -> None:
    data = batch(dtype=torch.float32)
    problem = sl.Problem(Fused(), [data])
    assert sl.adaptive_sharpness(problem, 0.1).value > 0
    chart = problem.chart(Euclidean())
    v = chart.gaussian(torch.Generator().manual_seed(0))
    assert Curvature(problem, chart, data)(v).abs().max() > 0


def test_max_batches_and_chosen_parameters() -> None:
    problem = sl.Problem(net(), [batch(), batch(4)], parameters=lambda n: n.endswith("weight"), max_batches=1)
    assert len(list(problem.batches())) == problem.count() == 1
    assert sorted(problem.weights) == ["0.weight", "2.weight"]


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5]))])
def test_torch_losses_are_weighted_by_their_own_terms(loss: nn.Module) -> None:
    """Kills: batches weighted by examples where some targets are ignored or classes have weights."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(12, 4), torch.randint(3, (12,))
    y[:5] = -100
    whole = sl.Problem(model, [(x, y)], loss)
    halves = sl.Problem(model, [(x[:7], y[:7]), (x[7:], y[7:])], loss)
    parts = sl.Problem(model, [(x, y)], loss, micro_batch=4)
    expected = sl.hessian_trace(whole, sl.Euclidean(), samples=4).value
    assert sl.hessian_trace(halves, sl.Euclidean(), samples=4).value == pytest.approx(expected, rel=1e-5)
    assert parts.value(parts.weights, (x, y)) == pytest.approx(float(loss(model(x), y).detach()), rel=1e-5)
