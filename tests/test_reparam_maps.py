"""Changes of variables: bijections, their Jacobian products against dense ones, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import spiritlevel as sl
from spiritlevel.errors import ArgumentError, ModelError, ReparametrisationError
from spiritlevel.reparam import (
    Bijection,
    Composition,
    Linear,
    Log,
    Monotone,
    OrbitAction,
    Polar,
    Reparametrisation,
    Scaling,
    Softplus,
    WeightNorm,
    carried,
)
from spiritlevel.reparam.flat import Layout

F64 = torch.float64


def theta(seed: int = 0, positive: bool = False) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    found = {n: torch.randn(s, generator=g, dtype=F64) for n, s in (("a.weight", (3, 4)), ("a.bias", (3,)))}
    return {n: w.abs() + 0.1 for n, w in found.items()} if positive else found


def smooth(seed: int) -> Bijection:
    """A random smooth bijection that mixes all entries of all parameters: two shears with tanh, and their inverses."""
    g = torch.Generator().manual_seed(seed)
    layout = Layout(theta())
    half = layout.size // 2
    first, second = (torch.randn(half + 1, half + 1, generator=g, dtype=F64) * 0.4 for _ in range(2))

    def shear(y: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
        return y + torch.tanh(matrix[: len(y), : len(x)] @ x)

    def to(w: dict[str, Tensor]) -> dict[str, Tensor]:
        x, y = (flat := layout.flat(w))[:half], flat[half:]
        y = shear(y, x, first)
        return layout.named(torch.cat([shear(x, y, second), y]))

    def back(w: dict[str, Tensor]) -> dict[str, Tensor]:
        x, y = (flat := layout.flat(w))[:half], flat[half:]
        x = x - torch.tanh(second[: len(x), : len(y)] @ y)
        return layout.named(torch.cat([x, y - torch.tanh(first[: len(y), : len(x)] @ x)]))

    return Bijection(to, back, "two shears")


def orthogonal(n: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=F64))[0]


MAPS: dict[str, Callable[[], Reparametrisation]] = {
    "scaling": lambda: Scaling(3.0),
    "scaling by layer": lambda: Scaling({"a.weight": 0.5, "a.bias": -2.0}),
    "scaling by neuron": lambda: Scaling({"a.weight": torch.tensor([1.0, 2.0, 0.5])}),
    "monotone, inverse given": lambda: Monotone(torch.sinh, torch.asinh),
    "monotone, inverse found": lambda: Monotone(lambda x: x + x**3 / 3),
    "monotone, falling": lambda: Monotone(lambda x: -x - torch.tanh(x)),
    "monotone on an interval": lambda: Monotone(torch.atanh, names=["a.bias"], domain=(-1.0, 1.0)),
    "log": lambda: Log(),
    "softplus": lambda: Softplus(["a.bias"]),
    "linear": lambda: Linear({"a.weight": orthogonal(12) * 2}),
    "polar": lambda: Polar(),
    "log-polar": lambda: Polar(["a.weight"], logarithm=True, reference=theta()),
    "weight norm": lambda: WeightNorm(),
    "composition": lambda: Polar().then(Scaling(2.0)),
    "two shears": lambda: smooth(3),
}


def place(name: str) -> dict[str, Tensor]:
    if name in ("log", "softplus"):
        return theta(positive=True)
    return {n: 0.9 * torch.tanh(w) for n, w in theta().items()} if "interval" in name else theta()


@pytest.mark.parametrize("name", list(MAPS))
def test_every_map_is_a_bijection_with_right_products(name: str) -> None:
    # Kills: an inverse that is not one, J for J^T, J^-1 for J, derivatives lost in a numerical inverse.
    change, at = MAPS[name](), place(name)
    there = change.forward(at)
    for n, w in change.inverse(there).items():
        torch.testing.assert_close(w, at[n], rtol=1e-11, atol=1e-12)
    old, new = Layout(at), Layout(there)
    j = torch.autograd.functional.jacobian(lambda x: new.flat(change.forward(old.named(x))), old.flat(at))
    back = torch.autograd.functional.jacobian(lambda y: old.flat(change.inverse(new.named(y))), new.flat(there))
    torch.testing.assert_close(back @ j, torch.eye(old.size, dtype=F64), rtol=0, atol=1e-10)
    torch.testing.assert_close(change.jacobian(at), j, rtol=1e-10, atol=1e-11)
    v, w = torch.randn(old.size, dtype=F64), torch.randn(new.size, dtype=F64)
    torch.testing.assert_close(new.flat(change.jvp(at, old.named(v))), j @ v, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(old.flat(change.vjp(at, new.named(w))), j.mT @ w, rtol=1e-10, atol=1e-11)
    inverted = change.inverted
    torch.testing.assert_close(old.flat(inverted.jvp(there, new.named(w))), back @ w, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(new.flat(inverted.vjp(there, old.named(v))), back.mT @ v, rtol=1e-9, atol=1e-10)
    if not change.redundant:
        wanted = torch.linalg.slogdet(j)[1]
        torch.testing.assert_close(change.log_abs_det(at), wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(inverted.log_abs_det(there), -wanted, rtol=1e-10, atol=1e-10)
    found = change.check(at)
    assert found.bijective, found.violations
    assert str(change) in str(found)
    assert found.to_dict()["violations"] == []


@pytest.mark.parametrize("name", ["monotone, inverse found", "weight norm", "polar", "softplus"])
def test_second_derivatives_of_the_way_back(name: str) -> None:
    # Kills: one Newton step instead of several, torch's fused weight norm (31 to 57 % off).
    change, at = MAPS[name](), place(name)
    new = Layout(there := change.forward(at))
    start = new.flat(there)

    def f(y: Tensor) -> Tensor:
        return sum(torch.sin(w).sum() * w.sum() for w in change.inverse(new.named(y)).values())

    exact = torch.autograd.functional.hessian(f, start)
    for i in (0, 5, new.size - 1):
        e = torch.zeros_like(start)
        e[i] = 1e-5
        up, down = (torch.autograd.functional.jacobian(f, start + s * e) for s in (1, -1))
        torch.testing.assert_close(exact[i], (up - down) / 2e-5, rtol=1e-6, atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_random_smooth_maps_pass_their_check(seed: int) -> None:
    found = smooth(seed).check(theta(seed))
    assert found.bijective, found.violations
    assert max(found.round_trip.values()) < 1e-12


def test_the_condition_number_is_that_of_the_jacobian() -> None:
    # Kills: the stretch of J alone, a square root forgotten.
    change = Scaling({"a.weight": 100.0, "a.bias": 0.1})
    assert change.check(theta()).condition == pytest.approx(1000.0, rel=1e-6)


def test_an_orbit_action_leaves_the_function_alone(tiny_vit: nn.Module, tiny_batch: tuple[Tensor, Tensor]) -> None:
    problem = sl.Problem(tiny_vit, [tiny_batch])
    change = OrbitAction(problem.symmetries, seed=1, condition=10.0)
    moved = change.forward(problem.weights)
    assert max(float((moved[n] - w).abs().max()) for n, w in problem.weights.items()) > 0.1
    assert problem.value(moved, tiny_batch) == pytest.approx(problem.value(problem.weights, tiny_batch), rel=1e-12)
    assert change.check(problem.weights).bijective
    back = change.inverse(moved)
    assert max(float((back[n] - w).abs().max()) for n, w in problem.weights.items()) < 1e-12


# ------------------------------------------------------------------------------------------------------------ carried


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def right_inverse(self, y: Tensor) -> Tensor:
        return torch.log(y)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_that_a_model_carries(dim: int | None) -> None:
    # Kills: original0 and original1 exchanged, the wrong axis, directions rescaled.
    model = net()
    plain = {n: p.detach().clone() for n, p in model.named_parameters()}
    parametrizations.weight_norm(model[0], dim=dim)
    parametrizations.weight_norm(model[3])
    with torch.no_grad():
        model[0].parametrizations.weight.original1.mul_(1.7)  # the same function, another length
    change = carried(model)
    now = {n: p.detach() for n, p in model.named_parameters()}
    back = change.inverse(now)
    assert back.keys() == plain.keys()
    for n, w in plain.items():
        torch.testing.assert_close(back[n], w, rtol=1e-12, atol=1e-13)
    for n, w in change.forward(plain).items():
        torch.testing.assert_close(w, now[n], rtol=1e-12, atol=1e-13)
    assert change.check(plain).bijective
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


def test_old_style_weight_norm_and_parametrisations_of_the_users_own() -> None:
    model = net()
    plain = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.warns(FutureWarning, match="weight_norm"):
        torch.nn.utils.weight_norm(model[0])
    with torch.no_grad():
        model[3].bias.abs_().add_(0.1)
    plain["3.bias"] = model[3].bias.detach().clone()
    parametrize.register_parametrization(model[3], "bias", Positive())
    change = carried(model)
    back = change.inverse({n: p.detach() for n, p in model.named_parameters()})
    for n, w in plain.items():
        torch.testing.assert_close(back[n], w, rtol=1e-12, atol=1e-13)
    assert change.check(plain).bijective
    assert "Positive(3.bias)" in str(change)


class OneWay(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


class Learned(Positive):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda m: parametrizations.spectral_norm(m[3]),
            "'3.weight' that is a bijection, but it divides by the largest",
        ),
        (lambda m: parametrizations.orthogonal(m[3]), "'3.weight' that is a bijection, but its weights are orthogonal"),
        (lambda m: parametrize.register_parametrization(m[3], "bias", OneWay()), "'3.bias' .* no right_inverse"),
        (lambda m: parametrize.register_parametrization(m[3], "bias", Learned()), "'3.bias' .* parameters of its own"),
    ],
)
def test_what_is_no_bijection_is_refused_with_the_reason(spoil: Callable[[nn.Module], None], words: str) -> None:
    model = net()
    with torch.no_grad():
        model[3].bias.abs_().add_(0.1)
    spoil(model)
    with pytest.raises(ReparametrisationError, match=words):
        carried(model)


def test_old_style_spectral_norm_and_plain_models_are_refused() -> None:
    model = net()
    with pytest.raises(ModelError, match="got one without"):
        carried(model)
    torch.nn.utils.spectral_norm(model[3])
    with pytest.raises(ReparametrisationError, match=r"'3\.weight' .* largest singular value"):
        carried(model)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Log().forward(theta()), r"expected values above 0 and below inf for Log in 'a\.weight', got -"),
        (lambda: Scaling({"a.bias": 0.0}), r"factors for 'a\.bias' that are finite and not 0"),
        (lambda: Scaling({"a.bias": torch.ones(7)}).forward(theta()), r"factors that fit 'a\.bias'"),
        (lambda: Scaling({"b": 2.0}).forward(theta()), r"\['b'\] are not among"),
        (lambda: Linear({"a.bias": torch.ones(3, 3)}), r"invertible matrix for 'a\.bias'"),
        (lambda: Linear({"a.bias": torch.ones(3, 2)}), r"square matrix for 'a\.bias'"),
        (lambda: Linear({"a.bias": torch.eye(4)}).forward(theta()), r"matrix of 3 rows for 'a\.bias'"),
        (lambda: Composition(), "at least one map"),
        (lambda: Monotone(torch.sin, domain=(1.0, 0.0)), "low below high"),
        (lambda: Monotone(torch.log, domain=(0.0, math.inf)).inverse(theta()), "expected inverse="),
        (lambda: Monotone(torch.tanh).inverse({"w": torch.tensor([2.0])}), "values that Monotone takes in 'w', got 2"),
        (lambda: Monotone(lambda x: x**3).log_abs_det({"w": torch.zeros(1)}), "slope other than 0 of Monotone in 'w'"),
        (lambda: WeightNorm().forward({"w": torch.zeros(1, 2)}), "units of weights that are not all 0 in 'w'"),
        (
            lambda: WeightNorm().inverse({"w.length": torch.ones(1, 1), "w.direction": torch.zeros(1, 2)}),
            "other than 0 in 'w.direction'",
        ),
        (lambda: WeightNorm().log_abs_det(theta()), "as many new parameters as old"),
        (lambda: Polar(["w"]).forward({"w": torch.ones(2, 1)}), "units of two weights or more in 'w'"),
        (lambda: Polar().forward({"w": torch.tensor([[0.0, 0.0]])}), "units of weights that are not all 0 in 'w'"),
        (lambda: Polar().forward({"w": torch.tensor([[-1.0, 0.0]])}), "do not point against their axis in 'w'"),
        (lambda: Polar().inverse({"w": torch.tensor([[-1.0, 0.0]])}), "lengths above 0 in 'w'"),
        (
            lambda: Bijection(lambda w: {"w": w["w"] * 0}, lambda w: w).log_abs_det({"w": torch.ones(2)}),
            "invertible Jacobian in 'w'",
        ),
        (lambda: Layout(theta()).named(torch.zeros(3)), "flat vector of 15 entries"),
    ],
)
def test_errors_name_the_parameter(make: Callable[[], object], words: str) -> None:
    with pytest.raises((ReparametrisationError, ArgumentError, ModelError), match=words):
        make()


def square(w: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"w": w["w"] ** 2}


@pytest.mark.parametrize(
    ("change", "at", "words"),
    [
        (Bijection(square, lambda w: {"w": w["w"].sqrt()}), {"w": torch.tensor([1.0, -2.0])}, "'w' does not come back"),
        (Bijection(square, lambda w: {"w": w["w"].sqrt()}), {"w": torch.tensor([1.0, 0.0])}, "Jacobian is singular"),
        (Bijection(lambda w: {"w": w["w"] / 0}, lambda w: w), {"w": torch.ones(1)}, "'w' has no finite image"),
        (
            Bijection(lambda w: {"w": w["w"].repeat(2)}, lambda w: {"w": w["w"][:2]}),
            {"w": torch.ones(2)},
            "2 numbers to 4",
        ),
        (Log(), {"w": torch.tensor([-1.0])}, "values above 0"),
    ],
)
def test_check_reports_violations(change: Reparametrisation, at: dict[str, Tensor], words: str) -> None:
    found = change.check(at)
    assert not found.bijective
    assert any(words in v for v in found.violations), found.violations
    with pytest.raises(ReparametrisationError, match=words):
        found.require()


def test_directions_of_length_zero_are_refused() -> None:
    model = parametrizations.weight_norm(nn.Linear(2, 1))
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.parametrizations.weight.original1.zero_()
    with pytest.raises(ArgumentError, match="directions other than 0"):
        carried(broken)


def test_values_that_an_own_inverse_does_not_reach_are_refused() -> None:
    # Kills: NaN that travels on from the user's inverse.
    with pytest.raises(ReparametrisationError, match=r"values that Monotone takes in 'w', got 1\.5"):
        Monotone(torch.tanh, torch.atanh).inverse({"w": torch.tensor([0.5, 1.5])})
