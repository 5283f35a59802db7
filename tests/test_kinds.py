"""Symmetries beyond attention: found, certified, and quotiented together."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from networks import NETWORKS, generic, network, vectors
from spiritlevel.core.evaluation import measurable
from spiritlevel.errors import ArgumentError, ModelError, SymmetryError
from spiritlevel.symmetry import KINDS, check_blocks
from spiritlevel.symmetry.certificate import Verdict

# what each network must have: kind -> how many dimensions
EXPECTED: dict[str, dict[str, int]] = {
    "perceptron": {"relu": 5, "classifier": 1},
    "linear chain": {"linear": 4, "classifier": 4 + 1},
    "convolutional": {"batch norm": 4 + 2 * 4, "relu": 5, "classifier": 1},
    "encoder": {"attention": 64, "norm": 4 * 8, "relu": 12, "classifier": 40 + 1, "translation": 16},
    "vit": {"attention": 128, "norm": 8 * 8, "classifier": 8 + 1, "translation": 32},
    "dinov2": {"attention": 128, "norm": 8 * 8, "layer scale": 4 * 8, "classifier": 16 + 1, "translation": 32},
    "llama": {"attention": 2 * (4 + 16), "norm": 5 * 8, "gated": 24, "residual": 28, "classifier": 8},
    "mixtral": {
        "attention": 2 * (4 + 16), "norm": 5 * 8, "gated": 72, "residual": 28, "softmax": 16, "classifier": 8,
    },
    "t5": {"attention": 6 * 2 * 2 * 16, "norm": 10 * 8, "relu": 48, "softmax": 4},
    "opt": {"attention": 128, "norm": 8 * 8, "relu": 24, "translation": 32},
}  # fmt: skip


@cache
def blocks_of(name: str) -> sl.Symmetries:
    model, batch = network(name)
    return sl.find_symmetries(model, kinds="all", batch=batch)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_is_found_with_its_dimension(name: str) -> None:
    """Kills: a reader that is missed, a kind that is not proposed, a direction that is counted twice."""
    found: dict[str, int] = {}
    for block in blocks_of(name):
        found[block.kind] = found.get(block.kind, 0) + block.dimension
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_found_holds_on_data(name: str) -> None:
    """Kills: a scale for its inverse, a bias left behind, a shift with the wrong sign."""
    model, batch = network(name)
    found = sl.verify_symmetries(model, batch, blocks_of(name), seed=5)
    assert found.holds
    # llama and mixtral round to float32 inside their norms and rotations
    assert max(found.drift, *found.values()) < (5e-6 if name in ("llama", "mixtral") else 1e-12)
    assert max(f.moment for f in found.findings) < (1e-6 if name in ("llama", "mixtral") else 1e-12)


@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in ("llama", "mixtral")])
def test_geodesic_sharpness_is_the_same_after_moves_of_all_blocks_together(name: str) -> None:
    """Issue: 1e-7. Kills: a section that depends on the point of the orbit, a frozen entry that moves."""
    model, batch = network(name)
    blocks = blocks_of(name)
    other = copy.deepcopy(model)
    other.load_state_dict(sl.move_along_orbit(model, blocks, strength=0.5, seed=3))
    geometry = sl.Quotient(blocks=blocks)
    before, after = (sl.worst_case(sl.Problem(m, [batch]), geometry, 0.05).value for m in (model, other))
    assert before > 1e-4
    assert after == pytest.approx(before, rel=1e-7)
    slopes = [sl.gradient_norm(sl.Problem(m, [batch]), geometry).value for m in (model, other)]
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-9)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_the_same_where_the_model_itself_rounds_to_float32(name: str) -> None:
    model, batch = network(name)
    blocks = blocks_of(name)
    other = copy.deepcopy(model)
    other.load_state_dict(sl.move_along_orbit(model, blocks, strength=1.5, seed=3))
    before, after = (sl.gradient_norm(sl.Problem(m, [batch]), sl.Quotient(blocks=blocks)).value for m in (model, other))
    assert after == pytest.approx(before, rel=1e-5)
    plain = [sl.gradient_norm(sl.Problem(m, [batch]), sl.Elementwise()).value for m in (model, other)]
    assert abs(plain[1] / plain[0] - 1) > 0.02


def stacked(weights: dict[str, Tensor], tangents: list[dict[str, Tensor]]) -> Tensor:
    zero = {n: torch.zeros_like(w) for n, w in weights.items()}
    return torch.stack([torch.cat([x.reshape(-1) for x in ({**zero, **t}).values()]) for t in tangents])


def generated(weights: dict[str, Tensor], blocks: sl.Symmetries) -> Tensor:
    """Every generator of every block as a row, by finite differences of the group action from the identity."""
    rows = []
    for block in blocks:
        for i in range(int(torch.tensor(block.algebra).prod())):
            element = torch.zeros(block.algebra, dtype=torch.float64).reshape(-1)
            element[i] = 1.0
            rows.append(block.generate(weights, element.view(block.algebra)))
    return stacked(weights, rows)


@pytest.mark.parametrize("name", ["perceptron", "linear chain", "convolutional", "encoder", "vit"])
def test_dimensions_are_the_rank_of_all_generators_together(name: str) -> None:
    """No direction is counted twice: dimensions add up to the rank. Kills: two blocks for one group."""
    model, _ = network(name)
    weights = measurable(model)
    blocks = blocks_of(name)
    rows = generated(weights, blocks)
    values = torch.linalg.svdvals(rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12))
    assert int((values > 1e-9 * values[0]).sum()) == blocks.dimension


@pytest.mark.parametrize("name", ["perceptron", "encoder", "convolutional", "vit"])
def test_the_loss_has_no_slope_along_any_generator_and_is_all_horizontal(name: str) -> None:
    """The gradient's length on the quotient is that of its coordinates: nothing of it is lost with the projection."""
    model, batch = network(name)
    weights = {n: w.requires_grad_() for n, w in measurable(model).items()}
    problem = sl.Problem(model, [batch])
    gradient = torch.autograd.grad(problem.tensor(weights, batch), list(weights.values()))
    rows = generated({n: w.detach() for n, w in weights.items()}, blocks_of(name))
    slope = rows @ torch.cat([g.reshape(-1) for g in gradient])
    assert float(slope.abs().max()) < 1e-12 * float(torch.cat([g.reshape(-1) for g in gradient]).norm())


@pytest.mark.parametrize("name", ["perceptron", "encoder", "vit", "dinov2", "convolutional"])
def test_projection_takes_out_exactly_the_verticals(name: str) -> None:
    """Idempotent, symmetric, blind to generated directions. Kills: projection = identity, half of it."""
    model, batch = network(name)
    chart = sl.Problem(model, [batch]).chart(sl.Quotient(blocks=blocks_of(name)))
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(chart.size, generator=g, dtype=torch.float64) for _ in range(2))
    p = chart.project(x)
    torch.testing.assert_close(chart.project(p), p, rtol=0, atol=1e-10)
    assert float(chart.project(x) @ y) == pytest.approx(float(x @ chart.project(y)), rel=1e-9)
    vertical = chart.coordinates(
        {**{n: torch.zeros_like(w) for n, w in measurable(model).items()}, **_any(model, name)}
    )
    assert float(vertical.norm()) < 1e-9
    for z in (0.05 * p / p.norm(), 0.05 * x / x.norm()):
        a, b = (chart.weights(v) for v in (z, chart.project(z)))
        assert all(torch.allclose(a[n], b[n], rtol=0, atol=1e-9) for n in a)


def _any(model: nn.Module, name: str) -> dict[str, Tensor]:
    """A random vertical vector at the model's own weights."""
    weights, g = measurable(model), torch.Generator().manual_seed(4)
    total: dict[str, Tensor] = {}
    for block in blocks_of(name):
        element = torch.randn(block.algebra, generator=g, dtype=torch.float64)
        for n, x in block.generate(weights, element).items():
            total[n] = total.get(n, torch.zeros_like(x)) + x
    return total


@pytest.mark.parametrize("name", ["perceptron", "encoder", "vit", "dinov2", "convolutional"])
def test_tangent_vectors_go_to_coordinates_and_back(name: str) -> None:
    """Coordinates of a tangent are those of a curve: Exp along them leaves in the direction of the folded tangent."""
    model, batch = network(name)
    problem = sl.Problem(model, [batch])
    chart = problem.chart(sl.Quotient(blocks=blocks_of(name)))
    z = chart.gaussian(torch.Generator().manual_seed(2))
    torch.testing.assert_close(chart.coordinates(chart.tangent(z)), z, rtol=0, atol=1e-8)
    # the directional derivative of the loss is the same, taken in the weights or in the coordinates
    tangent = chart.tangent(z)
    along = {n: w + 0 * w for n, w in problem.weights.items()}
    step = 1e-6
    up, down = (problem.value({n: w + s * step * tangent[n] for n, w in along.items()}, batch) for s in (1.0, -1.0))
    a, b = (problem.value(chart.weights(s * step * z), batch) for s in (1.0, -1.0))
    assert (up - down) == pytest.approx(a - b, rel=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_centre_of_the_chart_computes_the_same_function(name: str) -> None:
    """Kills: a gauge that turns the sign of a neuron, a fold that changes the function."""
    model, batch = network(name)
    problem = sl.Problem(model, [batch])
    chart = problem.chart(sl.Quotient(blocks=blocks_of(name)))
    before = problem.value(problem.weights, batch)
    assert problem.value(chart.weights(chart.zeros()), batch) == pytest.approx(
        before, rel=1e-5 if name in ("llama", "mixtral") else 1e-10
    )


def test_dimension_of_the_chart_is_what_the_groups_leave() -> None:
    for name in ("perceptron", "encoder", "vit"):
        model, batch = network(name)
        chart = sl.Problem(model, [batch]).chart(sl.Quotient(blocks=blocks_of(name)))
        assert chart.dimension == sum(w.numel() for w in measurable(model).values()) - blocks_of(name).dimension


def test_key_biases_near_zero_no_longer_count() -> None:
    """Translations: a null direction has no weight. Kills: a key bias that stays in the adaptive norm."""
    model, batch = network("vit")
    blocks = blocks_of("vit")
    other = copy.deepcopy(model)
    state = other.state_dict()
    for n, w in state.items():
        if n.endswith("k_proj.bias"):
            w.mul_(1e-6)
    values = [sl.gradient_norm(sl.Problem(m, [batch]), sl.Quotient(blocks=blocks)).value for m in (model, other)]
    assert values[1] == pytest.approx(values[0], rel=1e-9)


def test_classifier_shifts_are_refused_for_other_losses() -> None:
    """Exact under cross-entropy only. Kills: a test on outputs that leaves the loss out."""
    model, (x, y) = network("perceptron")
    target = torch.nn.functional.one_hot(y, 3).double()
    problem = sl.Problem(model, [(x, target)], loss=nn.MSELoss())
    with pytest.raises(SymmetryError, match="does not see a common shift of all scores"):
        problem.chart(sl.Quotient(blocks=blocks_of("perceptron")))
    kept = [b for b in blocks_of("perceptron") if b.kind != "classifier"]
    assert problem.chart(sl.Quotient(blocks=kept)).dimension > 0


class Half(nn.Module):
    """A norm that something else sees too, and one whose eps breaks a scale."""

    def __init__(self, eps: float = 1e-3) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8, eps=eps)
        self.second = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.norm(self.first(x)))
        return out


def _scale_before_norm() -> sl.Scale:
    pieces = (sl.Piece("first.weight", (8, 6), (), (0,), 1),)
    return sl.Scale("scale before a norm", sl.Factor(pieces))


def test_eps_is_told_apart_from_wrong() -> None:
    """Kills: a cutoff in place of scaling eps."""
    model = generic(Half())
    model.first.bias.data.zero_()
    model.norm.eps = 1e-5
    batch = vectors()
    wrong = sl.Scale("scale of a layer", sl.Factor((sl.Piece("second.weight", (3, 8), (), (0,), 1),)))
    right = sl.find_symmetries(model, kinds=["norm"], batch=batch)
    found = sl.verify_symmetries(model, batch, [_scale_before_norm(), wrong, *right])
    verdicts = {f.name: f.verdict for f in found.findings}
    assert verdicts["scale before a norm"] is Verdict.EPS
    assert verdicts["scale of a layer"] is Verdict.BROKEN
    assert verdicts["norm: gain"] is verdicts["norm: shift"] is Verdict.EXACT
    assert model.norm.eps == 1e-5
    with pytest.raises(SymmetryError, match="'scale before a norm' holds only but for the eps"):
        check_blocks(model, batch, [_scale_before_norm()])
    with pytest.raises(SymmetryError, match="'scale of a layer'"):
        check_blocks(model, batch, [wrong, *right])


def test_what_something_else_sees_too_is_left_out_with_the_reason() -> None:
    class Seen(Half):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.norm(self.first(x))
            out: Tensor = self.second(hidden) + hidden[:, :3]
            return out

    found = sl.find_symmetries(generic(Seen()), kinds=["norm"], batch=vectors())
    assert len(found) == 0
    assert "something else sees it" in found.refused["norm: gain"]
    assert any("something else sees it" in x.reason for x in found.leftovers)


def test_certificates_are_kept_for_the_same_weights_only() -> None:
    model, batch = network("perceptron")
    blocks = blocks_of("perceptron")
    other = generic(copy.deepcopy(model), seed=9)
    assert not check_blocks(other, batch, blocks).cached
    assert check_blocks(other, batch, blocks).cached
    with torch.no_grad():
        next(other.parameters()).mul_(1.001)
    assert not check_blocks(other, batch, blocks).cached


def test_kinds_must_be_known_and_followed_with_data() -> None:
    model, batch = network("perceptron")
    with pytest.raises(ArgumentError, match="expected kinds out of"):
        sl.find_symmetries(model, kinds="everything", batch=batch)
    with pytest.raises(ArgumentError, match="expected batch= for the kinds"):
        sl.find_symmetries(model, kinds="all")
    assert {b.kind for b in sl.find_symmetries(model, kinds=["relu"], batch=batch)} == {"relu"}
    assert set(KINDS) >= {k for found in EXPECTED.values() for k in found}


def test_hooks_and_modes_are_gone_after_a_search() -> None:
    model, batch = network("encoder")
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()]
    sl.find_symmetries(model, kinds="all", batch=batch)
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()]


def test_zero_gains_stay_zero_and_finite() -> None:
    """A dead channel: folded without a division. Kills: 0/0."""
    model, batch = network("encoder")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].norm1.weight[3] = 0.0
    blocks = sl.find_symmetries(other, kinds="all", batch=batch)
    value = sl.worst_case(sl.Problem(other, [batch]), sl.Quotient(blocks=blocks), 0.05)
    assert 0 < value.value < 100


def test_blocks_that_claim_the_same_entries_are_refused() -> None:
    model, batch = network("encoder")
    gains = [b for b in blocks_of("encoder") if isinstance(b, sl.Gain)]
    with pytest.raises(ModelError, match="expected blocks that share no weights"):
        sl.Problem(model, [batch]).chart(sl.Quotient(blocks=[gains[0], gains[0]]))


def test_a_rotation_needs_real_factors_of_one_width() -> None:
    wide, narrow = (sl.Factor((sl.Piece("w", (4, n), (), (0,), 1),)) for n in (2, 3))
    with pytest.raises(ModelError, match="expected real factors of equal heads and columns"):
        sl.Rotation("turn", (wide, narrow))
    with pytest.raises(ModelError, match="expected one gain per channel"):
        sl.Gain("gain", wide, narrow)


@pytest.mark.parametrize("name", ["encoder", "convolutional", "llama"])
def test_generators_are_the_derivative_of_the_action(name: str) -> None:
    """By finite differences from the identity. Kills: a sign, a dropped factor, a bias that does not follow."""
    model, _ = network(name)
    weights, g = measurable(model), torch.Generator().manual_seed(1)
    for block in blocks_of(name):
        element = torch.randn(block.algebra, generator=g, dtype=torch.float64)
        step = 1e-5
        there, back = (block.act(weights, _group_element(block, s * step * element)) for s in (1.0, -1.0))
        for n, x in block.generate(weights, element).items():
            torch.testing.assert_close((there[n] - back[n]) / (2 * step), x, rtol=1e-5, atol=1e-6)


def _group_element(block: Any, small: Tensor) -> Tensor:
    """1 + t, to first order."""
    if isinstance(block, sl.Translation):
        return small
    if isinstance(block, sl.Rotation):
        return torch.matrix_exp(small - small.mT)
    if isinstance(block, sl.BatchNorm):
        return torch.cat([1 + small[..., :1], small[..., 1:]], -1)
    if isinstance(block, sl.Pair):
        ell = torch.view_as_complex(small) if block.is_complex else small
        return torch.eye(block.width, dtype=ell.dtype) + ell
    return 1 + small
