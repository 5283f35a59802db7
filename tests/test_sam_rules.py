"""Every rule against its formula (`sam_oracles`), to 1e-12 in float64: where it goes, and what it updates with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import sam_oracles as oracles
import spiritlevel as sl
from sam_oracles import Array, Net, build, flat, gradient, where
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.optim import RULES, SAM, rules

LR = 0.1
Vector = Callable[[Net, Array, Array], Array]  # model, w, g -> epsilon


def on_layers(model: Net, f: Callable[[Array], Array]) -> Array:
    return np.concatenate([f(p.detach().numpy()).ravel() for p in model.parameters()])


def _biases_one(model: Net, w: Array) -> Array:
    t = np.abs(w) + 0.01
    for name, s in where(model).items():
        if name.endswith("bias"):
            t[s] = 1.0
    return t


def _norms(model: Net, w: Array, g: Array) -> Array:
    """SAM-ON around ASAM: everything is restricted to the layer norm first, the norm too."""
    places = where(model)
    live = np.r_[places["scales.weight"], places["scales.bias"]]
    out = np.zeros_like(g)
    out[live] = oracles.asam(g[live], 2.0, np.abs(w[live]) + 0.1)
    return out


PERTURBATIONS: dict[str, tuple[rules.Rule, Vector]] = {
    "SAM": (rules.Plain(0.3), lambda m, w, g: oracles.sam(g, 0.3)),
    "ASAM": (rules.ASAM(0.7), lambda m, w, g: oracles.asam(g, 0.7, np.abs(w) + 0.01)),
    "ASAM linf": (rules.ASAM(0.1, norm="linf"), lambda m, w, g: oracles.asam_linf(g, 0.1, np.abs(w) + 0.01)),
    "ASAM layers": (
        rules.ASAM(0.2, eta=0.1, scale="layer"),
        lambda m, w, g: oracles.asam(g, 0.2, on_layers(m, lambda p: np.full(p.shape, 1.1 * np.sqrt((p**2).sum())))),
    ),
    "ASAM layers linf": (
        rules.ASAM(0.05, eta=0.0, norm="linf", scale="layer"),
        lambda m, w, g: oracles.asam_linf(g, 0.05, on_layers(m, lambda p: np.full(p.shape, np.sqrt((p**2).sum())))),
    ),
    "ASAM without biases": (rules.ASAM(0.7, biases=False), lambda m, w, g: oracles.asam(g, 0.7, _biases_one(m, w))),
    "Fisher": (rules.FisherSAM(0.4, eta=5.0), lambda m, w, g: oracles.fisher(g, 0.4, 5.0)),
    "RSAM": (rules.RSAM(0.65, alpha=1.2), lambda m, w, g: oracles.rsam(g, 0.65, 1.2)),
    "RSAM downhill": (rules.RSAM(0.02, alpha=0.5), lambda m, w, g: oracles.rsam(g, 0.02, 0.5)),
    "SAM-ON": (rules.NormOnly(rules.ASAM(2.0, eta=0.1)), _norms),
    "GSAM": (rules.GSAM(0.3), lambda m, w, g: oracles.sam(g, 0.3)),
    "GSAM, falling radius": (  # lr 0.1 of 0 to 0.4: a quarter of the way from 0.1 to 0.5
        rules.GSAM(0.5, rho_min=0.1, lr_max=0.4),
        lambda m, w, g: oracles.sam(g, 0.2),
    ),
    "LookSAM": (rules.LookSAM(0.3), lambda m, w, g: oracles.sam(g, 0.3)),
    "geodesic, Euclidean": (rules.GeodesicSAM(0.3, sl.Euclidean()), lambda m, w, g: oracles.sam(g, 0.3)),
    "geodesic, Elementwise": (
        rules.GeodesicSAM(0.3, sl.Elementwise()),
        lambda m, w, g: oracles.asam(g, 0.3, np.abs(w)),
    ),
}  # fmt: skip
PLAIN_UPDATE = [n for n in PERTURBATIONS if "GSAM" not in n]


def optimizer(model: Net, rule: rules.Rule, **more: object) -> SAM:
    return SAM(torch.optim.SGD(model.parameters(), lr=LR), rule, model=model, **more)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_perturbation_is_its_formula(name: str) -> None:
    # Kills: no or another normalisation, T instead of T^2, eta forgotten or added where it multiplies, the norm over
    # all weights where some move, a flipped sign for alpha < 1.
    model, x, y = build()
    rule, vector = PERTURBATIONS[name]
    w = flat(model)
    wanted = vector(model, w, gradient(model, w, x, y))
    sam = optimizer(model, rule)
    nn.functional.cross_entropy(model(x), y).backward()
    with sam.perturbed():
        epsilon = flat(model) - w
        nn.functional.cross_entropy(model(x), y).backward()
    np.testing.assert_allclose(epsilon, wanted, rtol=1e-10, atol=1e-13)
    assert np.array_equal(flat(model), w)  # bitwise back
    if "geodesic" not in name:
        assert sam.radius == pytest.approx(np.linalg.norm(wanted), rel=1e-6)


@pytest.mark.parametrize("name", PLAIN_UPDATE)
def test_update_takes_the_gradient_of_the_perturbed_point(name: str) -> None:
    # Kills: the plain step of the base optimizer, a step from the perturbed point, both gradients added.
    model, x, y = build()
    rule, vector = PERTURBATIONS[name]
    w = flat(model)
    g = gradient(model, w, x, y)
    g_there = gradient(model, w + vector(model, w, g), x, y)
    wanted = w - LR * g_there
    loss = optimizer(model, rule).step(lambda: nn.functional.cross_entropy(model(x), y))
    np.testing.assert_allclose(flat(model), wanted, rtol=1e-9, atol=1e-12)
    assert np.abs(flat(model) - (w - LR * g)).max() > 1e-5  # not plain SGD
    assert float(loss) == pytest.approx(nn.functional.cross_entropy(build()[0](x), y).item())


def test_gsam_takes_away_what_is_orthogonal_to_the_perturbed_gradient() -> None:
    # Kills: decomposing g_p along g, adding instead of subtracting.
    model, x, y = build()
    w = flat(model)
    g = gradient(model, w, x, y)
    g_p = gradient(model, w + oracles.sam(g, 0.3), x, y)
    unit = g_p / np.linalg.norm(g_p)
    orthogonal = g - unit * (unit @ g)
    optimizer(model, rules.GSAM(0.3, alpha=0.4)).step(lambda: nn.functional.cross_entropy(model(x), y))
    np.testing.assert_allclose(flat(model), w - LR * (g_p - 0.4 * orthogonal), rtol=1e-9, atol=1e-12)


def test_looksam_uses_the_direction_again_and_saves_passes() -> None:
    # Kills: two passes at every step, the direction along g kept instead of that across, its length not matched.
    model, x, y = build()
    sam = optimizer(model, rules.LookSAM(0.3, every=3, alpha=0.7))
    w = flat(model)
    calls, kept = 0, np.zeros_like(w)

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        return nn.functional.cross_entropy(model(x), y)

    for step in range(6):
        g = gradient(model, w, x, y)
        if step % 3 == 0:
            update = gradient(model, w + oracles.sam(g, 0.3), x, y)
            kept = update - g * (update @ g) / (g @ g)
        else:
            update = g + 0.7 * np.linalg.norm(g) / np.linalg.norm(kept) * kept
        w = w - LR * update
        sam.step(closure)
        np.testing.assert_allclose(flat(model), w, rtol=1e-8, atol=1e-11)
    assert (calls, sam.passes) == (8, 8)


def test_fisher_mask_is_the_top_share_of_single_examples() -> None:
    # Kills: the square of the mean gradient, the mask before the normalisation, the share that does not move kept.
    model, x, y = build()
    w = flat(model)
    scores = sum(gradient(model, w, x[i : i + 1], y[i : i + 1]) ** 2 for i in range(12))
    live = np.argsort(-scores)[: int(len(w) * 0.25)]
    mask = np.zeros_like(w)
    mask[live] = 1
    sam = optimizer(model, rules.SSAMF(0.3, sparsity=0.75))
    with pytest.raises(ArgumentError, match="expected a mask before the first step"):
        sam.step(lambda: nn.functional.cross_entropy(model(x), y))
    assert np.array_equal(flat(model), w)
    sam.update_mask(lambda i=i: nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(12))
    assert all(p.grad is None for p in model.parameters())
    nn.functional.cross_entropy(model(x), y).backward()
    with sam.perturbed():
        epsilon = flat(model) - w
    np.testing.assert_allclose(epsilon, oracles.sam(gradient(model, w, x, y), 0.3) * mask, rtol=1e-9, atol=1e-13)


def test_dynamic_mask_exchanges_the_weakest() -> None:
    # Kills: dropping the strongest, growing among the living, a death rate that does not fall.
    model, x, y = build()
    w = flat(model)
    n = len(w)
    rule = rules.SSAMD(0.3, sparsity=0.5, every=1, steps=10, drop=0.5)
    sam = optimizer(model, rule)

    def mask_now() -> Array:
        return np.concatenate([m.numpy().ravel() for m in sam.state_dict()["spiritlevel"]["memory"]["masks"].values()])

    g = gradient(model, w, x, y)
    nn.functional.cross_entropy(model(x), y).backward()
    with sam.perturbed():
        used = flat(model) != w
        np.testing.assert_allclose((flat(model) - w)[used], oracles.sam(g, 0.3)[used], rtol=1e-9)
        nn.functional.cross_entropy(model(x), y).backward()
    assert used.sum() == n - int(np.ceil(n / 2))
    sam.step()
    following = mask_now()
    died, born = used & ~following, ~used & following
    count = int(used.sum() * 0.5)
    assert (died.sum(), born.sum(), following.sum()) == (count, count, used.sum())
    assert np.abs(g[died]).max() <= np.abs(g[used & following]).min()
    for _ in range(11):
        before = mask_now()
        sam.step(lambda: nn.functional.cross_entropy(model(x), y))
    assert np.array_equal(before, mask_now())  # at the end of the schedule nothing is exchanged


def test_esam_perturbs_a_share_and_learns_from_what_rose_most() -> None:
    # Kills: no 1 / beta, the examples whose loss rose least, a mean over all of them, another mask each pass.
    model, x, y = build()
    w = flat(model)
    rule = rules.ESAM(0.3, beta=0.5, gamma=0.25)
    sam, seen = optimizer(model, rule), []

    def closure(rows: torch.Tensor | None = None) -> torch.Tensor:
        seen.append((flat(model), rows))
        inputs, targets = (x, y) if rows is None else (x[rows], y[rows])
        return nn.functional.cross_entropy(model(inputs), targets, reduction="none")

    sam.step(closure)
    epsilon = seen[2][0] - w
    moved = epsilon != 0
    assert 0.2 < moved.mean() < 0.8
    full = oracles.sam(gradient(model, w, x, y), 0.3)
    np.testing.assert_allclose(epsilon[moved], full[moved] / 0.5, rtol=1e-9)
    each = [
        [nn.functional.cross_entropy(_at(v)(x[i : i + 1]), y[i : i + 1]).item() for i in range(12)]
        for v in (w, w + epsilon)
    ]
    top = np.sort(np.argsort(np.array(each[0]) - np.array(each[1]))[:3])
    assert [r is None for _, r in seen] == [True, True, False]
    assert np.array_equal(seen[2][1].numpy(), top)
    wanted = w - LR * gradient(model, w + epsilon, x[top], y[top])
    np.testing.assert_allclose(flat(model), wanted, rtol=1e-9, atol=1e-12)


def test_esam_mask_has_the_right_mean() -> None:
    model, x, y = build()
    w, total = flat(model), 0.0
    sam = optimizer(model, rules.ESAM(0.3, beta=0.5, gamma=1.0))
    for step in range(400):
        sam.steps = step
        nn.functional.cross_entropy(model(x), y).backward()
        with sam.perturbed():
            total = total + (flat(model) - w) / 400
            nn.functional.cross_entropy(model(x), y).backward()
        sam.abandon()
    full = oracles.sam(gradient(model, w, x, y), 0.3)
    assert np.linalg.norm(total - full) / np.linalg.norm(full) < 0.15  # 1 / sqrt(400) for each entry, times 3


def _at(w: Array) -> Net:
    model, *_ = build()
    with torch.no_grad():
        for p, s in zip(model.parameters(), where(model).values(), strict=True):
            p.copy_(torch.from_numpy(w[s]).view(p.shape))
    return model


def test_norms_are_told_by_type() -> None:
    # Kills: going by names, which misses `downsample.1` and `layers.3` and catches `normal`.
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    model.add_module("normal", nn.Linear(2, 2))
    sam = SAM(torch.optim.SGD(model.parameters(), lr=LR), rules.NormOnly(), model=model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    model(torch.randn(4, 1, 3, 3)).square().sum().backward()
    with sam.perturbed():
        assert {n for n, p in model.named_parameters() if not torch.equal(p, before[n])} == {"1.weight", "1.bias"}

    class RMSNorm(nn.Module):  # as transformers has them: of no type that torch knows
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    class Scale(RMSNorm): ...

    Scale.__name__ = "Scale"
    with_norm, with_scale = nn.Sequential(nn.Linear(3, 3), RMSNorm()), nn.Sequential(nn.Linear(3, 3), Scale())
    assert SAM(torch.optim.SGD(with_norm.parameters(), lr=1), rules.NormOnly(), model=with_norm)
    with pytest.raises(ModelError, match="expected normalisation layers"):
        SAM(torch.optim.SGD(with_scale.parameters(), lr=1), rules.NormOnly(), model=with_scale)
    assert SAM(torch.optim.SGD(with_scale.parameters(), lr=1), rules.NormOnly(types=(Scale,)), model=with_scale)


def test_rsam_radius_depends_on_the_dimension() -> None:
    # The effective radii of the notes: d = 1000 Gaussian gradient, rho 0.65.
    g = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for alpha, wanted in ((0.5, 0.503), (1.2, 0.0061), (1.5, 0.0011), (2.0, 6.6e-5)):
        w = nn.Parameter(torch.zeros(1000, dtype=torch.float64))
        sam = SAM(torch.optim.SGD([w], lr=1.0), rules.RSAM(0.65, alpha=alpha))
        (w @ g).backward()
        with sam.perturbed():
            assert ((w @ g).item() > 0) == (alpha > 1)
        assert sam.radius == pytest.approx(wanted, rel=0.1)
        assert f"last radius: {sam.radius:.4g}" in repr(sam)


@pytest.mark.parametrize("rule", [rules.Plain(), rules.ASAM(), rules.FisherSAM(), rules.RSAM()], ids=repr)
def test_without_a_gradient_nothing_moves(rule: rules.Rule) -> None:
    # Kills: 0 / 0.
    w = nn.Parameter(torch.ones(3))
    sam = SAM(torch.optim.SGD([w], lr=1.0), rule)
    sam.step(lambda: (w * 0).sum())
    assert torch.equal(w.data, torch.ones(3))


@pytest.mark.parametrize("rho", [0.0, -1.0, float("nan"), float("inf"), True])
@pytest.mark.parametrize("name", [n for n in RULES if n != "SAM-ON"])
def test_radius_is_above_zero(name: str, rho: float) -> None:
    with pytest.raises(ArgumentError, match="expected rho to be finite and above 0"):
        RULES[name](rho=rho)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rules.ASAM(eta=-1.0), "expected eta from 0 on"),
        (lambda: rules.ASAM(norm="l3"), "expected norm 'l2' or 'linf'"),  # type: ignore[arg-type]
        (lambda: rules.FisherSAM(eta=0.0), "expected eta to be finite and above 0"),
        (lambda: rules.RSAM(alpha=1.0), "expected alpha other than 1"),
        (lambda: rules.RSAM(alpha=-1.0), "expected alpha to be finite and above 0"),
        (lambda: rules.GSAM(alpha=-1.0), "expected alpha from 0 on"),
        (lambda: rules.GSAM(rho_min=0.1), "expected both rho_min and lr_max"),
        (lambda: rules.GSAM(0.1, rho_min=0.2, lr_max=1.0), "expected rho_min between 0 and rho"),
        (lambda: rules.GSAM(0.1, rho_min=0.0, lr_max=0.1, lr_min=0.2), "expected 0 <= lr_min < lr_max"),
        (lambda: rules.LookSAM(every=0), "expected every to be a whole number"),
        (lambda: rules.SSAMF(sparsity=1.5), "expected sparsity between 0 and 1"),
        (lambda: rules.SSAMF(sparsity=1.0), "expected a sparsity below 1"),
        (lambda: rules.SSAMD(sparsity=1.0), "expected a sparsity below 1"),
        (lambda: rules.SSAMD(every=0), "expected every and steps from 1 on"),
        (lambda: rules.ESAM(beta=0.0), "expected beta and gamma above 0"),
        (lambda: rules.NormOnly(rules.GSAM()), "expected a rule that only adds a vector"),
        (lambda: rules.GeodesicSAM(geometry="flat"), "expected a geometry such as Quotient"),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("name", list(RULES))
def test_contract_of_every_registered_rule(name: str) -> None:
    # Kills: a rule that is registered and does nothing: its first step must not be that of the base optimizer, its
    # weights must be back, its state must load, and a second optimizer from there must go on alike.
    rule, (model, x, y), (plain, _, _) = RULES[name](), build(), build()
    assert rule.rho > 0
    assert repr(rule).startswith(type(rule).__name__)
    sam = optimizer(model, rule)

    def closure(rows: torch.Tensor | None = None) -> torch.Tensor:
        inputs, targets = (x, y) if rows is None else (x[rows], y[rows])
        return nn.functional.cross_entropy(model(inputs), targets, reduction="none")

    if name == "SSAM-F":
        sam.update_mask([lambda i=i: closure(torch.tensor([i])).sum() for i in range(6)])
    sam.step(closure)
    base = torch.optim.SGD(plain.parameters(), lr=LR)
    nn.functional.cross_entropy(plain(x), y).backward()
    base.step()
    assert np.abs(flat(model) - flat(plain)).max() > 1e-6
    assert (sam.steps, sam.radius is not None) == (1, True)
    here = flat(model)
    state = sam.state_dict()
    sam.step(closure)
    there = flat(model)
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.from_numpy(here), model.parameters())
    again = optimizer(model, rule)
    again.load_state_dict(state)
    again.step(closure)
    assert np.array_equal(flat(model), there)
