"""The engine of `spiritlevel.optim.SAM`: everything that breaks in other packages. Each test names what it kills."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from sam_oracles import build, flat
from spiritlevel.errors import ArgumentError, CheckpointError, LossError
from spiritlevel.optim import SAM, rules

F = nn.functional
RULES = {
    "SAM": rules.Plain(0.2),
    "ASAM": rules.ASAM(0.5),
    "Fisher-SAM": rules.FisherSAM(0.2),
    "RSAM": rules.RSAM(0.65),
    "GSAM": rules.GSAM(0.2),
    "LookSAM": rules.LookSAM(0.2, every=3),
    "SSAM-D": rules.SSAMD(0.2, every=2, steps=20),
    "SAM-ON": rules.NormOnly(rules.ASAM(0.5)),
    "geodesic": rules.GeodesicSAM(0.2),
}
every_rule = pytest.mark.parametrize("name", RULES)


def sgd(model: nn.Module, rule: rules.Rule | None = None, lr: float = 0.1, **more: Any) -> SAM:
    return SAM(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), rule, model=model, **more)


class Noisy(nn.Module):
    """Dropout and batch statistics."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.dropout, self.masks = nn.Dropout(p), []

    def forward(self, x: Tensor) -> Tensor:
        kept = self.dropout(torch.ones(len(x), 16, dtype=x.dtype))
        self.masks.append(kept)
        return self.last(torch.relu(self.norm(self.first(x))) * kept)


def noisy(seed: int = 0, p: float = 0.5) -> tuple[Noisy, Tensor, Tensor]:
    torch.manual_seed(seed)
    return Noisy(p), torch.randn(12, 4), torch.randint(3, (12,))


# ------------------------------------------------------------------------------------------------ ways to call it


@every_rule
def test_all_ways_to_call_agree(name: str) -> None:
    # Kills: a closure called once, gradients of both passes added up, a stale first gradient in the update.
    ends = []
    for way in ("loss", "torch's closure", "with", "two steps", "model not given"):
        model, x, y = build()
        given = None if way == "model not given" and name not in ("SAM-ON", "geodesic") else model
        sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), RULES[name], model=given)

        def loss(model: nn.Module = model, x: Tensor = x, y: Tensor = y) -> Tensor:
            return F.cross_entropy(model(x), y)

        def closure(sam: SAM = sam, loss: Any = loss) -> Tensor:
            sam.zero_grad()
            value: Tensor = loss()
            value.backward()
            return value

        for _ in range(5):
            if way in ("loss", "model not given"):
                sam.step(loss)
            elif way == "torch's closure":
                sam.step(closure)
            else:
                loss().backward()
                if sam.ascends and way == "with":
                    with sam.perturbed():
                        loss().backward()
                elif sam.ascends:
                    sam.first_step()
                    loss().backward()
                    sam.second_step()
                    continue
                sam.step()
        assert sam.steps == 5
        ends.append(flat(model))
    for end in ends[1:]:
        assert np.array_equal(end, ends[0])


@every_rule
def test_four_micro_batches_are_the_whole_batch(name: str) -> None:
    # Kills: a perturbation along the last micro-batch alone, a sum for a mean.
    ends = []
    for count in (1, 4):
        model, x, y = build()
        sam = sgd(model, RULES[name])
        for _ in range(4):
            parts = zip(x.chunk(count), y.chunk(count), strict=True)
            loss = sam.step([lambda a=a, b=b, m=model: F.cross_entropy(m(a), b) for a, b in parts])
        ends.append((flat(model), float(loss)))
    np.testing.assert_allclose(ends[1][0], ends[0][0], atol=1e-9)
    assert ends[1][1] == pytest.approx(ends[0][1], rel=1e-9)


def test_micro_batches_that_call_backward_themselves() -> None:
    ends = []
    for own in (False, True):
        model, x, y = build()

        def closure(a: Tensor, b: Tensor, model: nn.Module = model, own: bool = own) -> Tensor:
            loss = F.cross_entropy(model(a), b)
            if own:
                loss.backward()
            return loss

        parts = zip(x.chunk(3), y.chunk(3), strict=True)
        sgd(model).step([lambda a=a, b=b, f=closure: f(a, b) for a, b in parts])
        ends.append(flat(model))
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-14)


def test_the_second_pass_repeats_dropout() -> None:
    # Kills: new masks in the second pass, masks that are the same at every step, masks repeated in the wrong order.
    model, x, y = noisy()
    sam = sgd(model)
    parts = [(x[:6], y[:6]), (x[6:], y[6:])]
    for _ in range(2):
        sam.step([lambda a=a, b=b: F.cross_entropy(model(a), b) for a, b in parts])
    m = model.masks
    assert len(m) == 8
    for first, second in ((0, 2), (1, 3), (4, 6), (5, 7)):
        assert torch.equal(m[first], m[second])
    assert not torch.equal(m[0], m[1])
    assert not torch.equal(m[0], m[4])
    model.masks.clear()
    sam.mark()
    F.cross_entropy(model(x), y).backward()
    with sam.perturbed():
        F.cross_entropy(model(x), y).backward()
    after = torch.rand(1)
    sam.step()
    assert torch.equal(m[0], m[1])
    torch.manual_seed(3)
    model(x)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    sam.step(lambda: F.cross_entropy(model(x), y))
    assert torch.equal(torch.rand(1), wanted)  # the step used up as much randomness as one pass
    assert after.shape == (1,)


# -------------------------------------------------------------------------------------------- statistics, exceptions


@pytest.mark.parametrize("given", [True, False])
def test_batch_statistics_move_once(given: bool) -> None:
    # Kills: statistics of the second pass, num_batches_tracked doubled, a momentum left at 0.
    model, x, y = noisy(p=0.0)
    reference = copy.deepcopy(model)
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model if given else None)
    for _ in range(3):
        with torch.no_grad():
            reference.load_state_dict({**model.state_dict(), **dict(reference.named_buffers())})
        reference(x)
        sam.step(lambda: F.cross_entropy(model(x), y))
        for (n, a), (_, b) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
            assert torch.equal(a, b), n
    assert int(model.norm.num_batches_tracked) == 3
    assert model.norm.momentum == 0.1


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("at", [1, 2])
def test_an_exception_leaves_no_trace(at: int, given: bool) -> None:
    # Kills: weights left perturbed, statistics left moved, gradients left behind.
    model, x, y = noisy()
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model if given else None)
    before, calls = copy.deepcopy(model.state_dict()), 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        loss = F.cross_entropy(model(x), y)
        if calls == at:
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        sam.step(closure)
    for n, v in model.state_dict().items():
        assert torch.equal(v, before[n]), n
    assert all(p.grad is None for p in model.parameters())
    assert sam.steps == 0
    sam.step(closure)  # and it goes on
    assert not torch.equal(model.first.weight, before["first.weight"])


def test_an_exception_while_perturbed_brings_the_weights_back() -> None:
    model, x, y = noisy()
    sam = sgd(model)
    F.cross_entropy(model(x), y).backward()
    before = copy.deepcopy(model.state_dict())

    def fail() -> None:
        with sam.perturbed():
            model(x)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


# --------------------------------------------------------------------------------------------------- mixed precision


@every_rule
def test_a_scaler_changes_nothing(name: str) -> None:
    # Kills: the second gradient never unscaled (65536 times too long), the first one scaled where lengths matter.
    ends = []
    for way in ("none", "closure", "scaler.step", "two steps", "unscaled by hand", "off"):
        model, x, y = build()
        scaler = GradScaler("cpu", init_scale=2.0**16, enabled=way != "off")
        sam = sgd(model, RULES[name], scaler=None if way == "none" else scaler)
        for _ in range(4):
            if way in ("none", "closure", "off"):
                sam.step(lambda m=model, x=x, y=y: F.cross_entropy(m(x), y))
            elif way == "scaler.step":
                scaler.step(sam, lambda m=model, x=x, y=y: F.cross_entropy(m(x), y))
            else:
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                if sam.ascends:
                    with sam.perturbed():
                        scaler.scale(F.cross_entropy(model(x), y)).backward()
                if way == "unscaled by hand":
                    scaler.unscale_(sam)
                scaler.step(sam)
            if way != "none":
                scaler.update()
        ends.append(flat(model))
    for end in ends[1:]:
        np.testing.assert_allclose(end, ends[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("way", ["closure", "two steps", "own step"])
def test_infinite_gradients_skip_the_step_and_lower_the_scale(at: int, way: str) -> None:
    # Kills: a scaler that never hears of the first pass, a step with infinite gradients, weights left perturbed.
    model, x, y = build()
    scaler = GradScaler("cpu", init_scale=2.0**16)
    sam, before, calls = sgd(model, scaler=scaler), flat(model), 0

    def loss() -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(model(x), y) * (float("inf") if calls == at else 1.0)

    def once() -> None:
        if way == "closure":
            sam.step(loss)
            return
        scaler.scale(loss()).backward()
        with sam.perturbed():
            scaler.scale(loss()).backward()
        scaler.step(sam) if way == "two steps" else sam.step()

    once()
    scaler.update()
    assert np.array_equal(flat(model), before)
    if at == 2 or way != "two steps":  # there torch looks at the second gradients alone; see below
        assert scaler.get_scale() == 2.0**15
    assert sam.steps == 0
    once()
    scaler.update()
    assert sam.steps == 1
    assert not np.array_equal(flat(model), before)


def test_autocast_to_bfloat16() -> None:
    # Kills: a perturbation in bfloat16, which the weights would swallow.
    model, x, y = noisy(p=0.0)
    sam = sgd(model, rules.Plain(0.05), lr=0.05)

    def closure() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    losses = [float(sam.step(closure)) for _ in range(30)]
    assert sam.radius == pytest.approx(0.05, rel=1e-4)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses[-1] < 0.7 * losses[0]


def test_a_scaler_needs_to_be_known_and_to_be_asked_in_time() -> None:
    model, x, y = build()
    scaler = GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ArgumentError, match="expected the GradScaler as SAM"):
        scaler.step(sgd(model), lambda: F.cross_entropy(model(x), y))
    sam = sgd(model, scaler=scaler)

    def own() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.raises(ArgumentError, match="leaves backward to the step where a GradScaler is used"):
        sam.step(own)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.unscale_(sam)
    with pytest.raises(ArgumentError, match=r"unscale_\(sam\) after the second pass only"):
        sam.first_step()


# ---------------------------------------------------------------------------- frozen, sparse, clipped, scheduled


def test_frozen_parameters_stay_out_of_it() -> None:
    # Kills: a norm over gradients that are not there, a crash on None.
    model, x, y = build()
    model.first.weight.requires_grad_(False)
    before = model.first.weight.clone()
    sgd(model).step(lambda: F.cross_entropy(model(x), y))
    assert torch.equal(model.first.weight, before)


@pytest.mark.parametrize("rule", [rules.Plain(0.3), rules.ASAM(0.3), rules.FisherSAM(0.3), rules.RSAM(0.3)], ids=repr)
def test_sparse_gradients_equal_dense_ones(rule: rules.Rule) -> None:
    # Kills: rows that occur twice counted twice, untouched rows moved, weights of other rows in the scale.
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 3, sparse=sparse), nn.Flatten(), nn.Linear(6, 2)).double()
        sam = SAM(torch.optim.SGD(model.parameters(), lr=0.5), rule, model=model)
        x, y = torch.tensor([[0, 2], [2, 5], [2, 2]]), torch.tensor([0, 1, 1])
        for _ in range(3):
            parts = ((x, y), (x[:1], y[:1]))
            sam.step([lambda a=a, b=b, m=model: F.cross_entropy(m(a), b) for a, b in parts])
        ends.append(flat(model))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["GSAM", "LookSAM", "geodesic"])
def test_sparse_gradients_are_refused_where_they_cannot_work(name: str) -> None:
    model = nn.Sequential(nn.Embedding(7, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))
    before = flat(model)
    with pytest.raises(ArgumentError, match="expected dense gradients"):
        sgd(model, RULES[name]).step(lambda: model(torch.tensor([[0, 2]])).sum())
    assert np.array_equal(flat(model), before)


def test_clipping_is_of_the_update() -> None:
    # Kills: clipping the first gradient, clipping after the step.
    ends = []
    for way in ("setting", "by hand", "hook"):
        model, x, y = build()
        sam = sgd(model, rules.RSAM(0.65), clip_norm=0.01 if way == "setting" else None)
        parameters = list(model.parameters())
        if way == "hook":
            sam.base.register_step_pre_hook(lambda *_, p=parameters: nn.utils.clip_grad_norm_(p, 0.01) and None)
        if way == "by hand":
            F.cross_entropy(model(x), y).backward()
            with sam.perturbed():
                F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(parameters, 0.01)
            sam.step()
        else:
            sam.step(lambda m=model, x=x, y=y: F.cross_entropy(m(x), y))
        assert np.linalg.norm(flat(model) - flat(build()[0])) == pytest.approx(0.1 * 0.01, rel=1e-3)
        ends.append(flat(model))
    assert np.array_equal(ends[0], ends[1])
    assert np.array_equal(ends[0], ends[2])


@pytest.mark.parametrize("on", ["sam", "base"])
@pytest.mark.parametrize("two", [False, True])
def test_schedulers_work_on_either(on: str, two: bool) -> None:
    # Kills: groups that are copies (the rate stays where it was), a false warning about the order of calls.
    model, x, y = build()
    sam = sgd(model, lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(sam if on == "sam" else sam.base, 1, gamma=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            if two:
                F.cross_entropy(model(x), y).backward()
                sam.first_step()
                F.cross_entropy(model(x), y).backward()
                sam.second_step()
            else:
                sam.step(lambda: F.cross_entropy(model(x), y))
            schedule.step()
    assert sam.param_groups[0]["lr"] == sam.base.param_groups[0]["lr"] == pytest.approx(0.01)
    assert sam.param_groups is sam.base.param_groups
    assert sam.state is sam.base.state
    extra = nn.Parameter(torch.zeros(2))
    sam.add_param_group({"params": [extra], "lr": 3.0})
    assert sam.base.param_groups[1]["params"] == [extra]


def test_warm_up_is_the_base_optimizer() -> None:
    model, x, y = build()
    plain, *_ = build()
    sam, base = sgd(model, rules.RSAM(), warmup=3), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        sam.step(lambda: F.cross_entropy(model(x), y))
        base.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        base.step()
        assert np.array_equal(flat(model), flat(plain)) == (step < 3)
    assert sam.passes == 5


# ----------------------------------------------------------------------------------------------------------- saving


@every_rule
@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_resume_is_bitwise(name: str, base: str) -> None:
    # Kills: what a rule remembers left out of the state (LookSAM between its steps, SSAM-D's mask), counters at 0.
    def run(cut: int | None) -> tuple[Any, ...]:
        model, x, y = noisy()
        make = {"sgd": lambda p: torch.optim.SGD(p, 0.1, 0.9), "adamw": lambda p: torch.optim.AdamW(p, 1e-2)}[base]
        sam = SAM(make(model.parameters()), RULES[name], model=model)
        torch.manual_seed(1)
        for step in range(8):
            if step == cut:
                file = io.BytesIO()
                torch.save((model.state_dict(), sam.state_dict(), torch.get_rng_state()), file)
                file.seek(0)
                weights, state, random = torch.load(file, weights_only=True)
                model, *_ = noisy(seed=5)
                model.load_state_dict(weights)
                sam = SAM(make(model.parameters()), RULES[name], model=model)
                sam.load_state_dict(state)
                torch.set_rng_state(random)
            sam.step(lambda m=model: F.cross_entropy(m(x), y))
        return flat(model), sam.steps

    (whole, steps), (resumed, again) = run(None), run(5)
    assert np.array_equal(whole, resumed)
    assert steps == again == 8


def test_a_state_of_something_else_is_refused() -> None:
    model, *_ = build()
    sam = sgd(model)
    with pytest.raises(CheckpointError, match="expected the state of a SAM"):
        sam.load_state_dict(sam.base.state_dict())
    with pytest.raises(CheckpointError, match="expected the state of ASAM, got that of Plain"):
        sgd(model, rules.ASAM()).load_state_dict(sam.state_dict())


def test_copies_and_pickles_go_on_alike() -> None:
    # Kills: roles kept by the ids of parameters that are no more, a scheduler's patch that cannot be pickled.
    model, x, y = build()
    sam = sgd(model, rules.NormOnly(rules.ASAM(0.5, biases=False)))
    torch.optim.lr_scheduler.StepLR(sam, 1)
    sam.step(lambda: F.cross_entropy(model(x), y))
    for other, their in (copy.deepcopy((sam, model)), pickle.loads(pickle.dumps((sam, model)))):
        other.step(lambda m=their: F.cross_entropy(m(x), y))
        mine, own = copy.deepcopy((sam, model))
        mine.step(lambda m=own: F.cross_entropy(m(x), y))
        assert np.array_equal(flat(their), flat(own))


# --------------------------------------------------------------------------------------------------------- wrong use


def test_wrong_use_raises_at_once() -> None:
    # Kills: a plain step of the base optimizer where SAM was asked for.
    model, x, y = build()
    sam, before = sgd(model), flat(model)

    def loss() -> Tensor:
        return F.cross_entropy(model(x), y)

    with pytest.raises(ArgumentError, match="this would be a plain step of the base optimizer"):
        sam.step()
    loss().backward()
    with pytest.raises(ArgumentError, match="this would be a plain step of the base optimizer"):
        sam.step()
    with pytest.raises(ArgumentError, match="got some from a backward outside of it"):
        sam.step(loss)
    sam.zero_grad(set_to_none=False)
    with pytest.raises(ArgumentError, match="cut off and no gradient either"):
        sam.step(lambda: loss().detach())
    with pytest.raises(LossError, match="expected the closure to return the loss as a scalar tensor, got float"):
        sam.step(lambda: loss().item())
    with pytest.raises(LossError, match="got NoneType"):
        sam.step(lambda: None)
    with pytest.raises(ArgumentError, match="expected a closure without arguments that returns the loss"):
        sam.step(loss())
    with pytest.raises(ArgumentError, match="expected a closure without arguments that returns the loss"):
        sam.step([])
    with pytest.raises(ArgumentError, match="expected a closure that can be called without arguments"):
        sam.step(lambda batch: loss())
    with pytest.raises(ArgumentError, match="call backward before first_step"):
        sam.first_step()
    loss().backward()
    sam.first_step()
    with pytest.raises(ArgumentError, match="got first_step again"):
        sam.first_step()
    with pytest.raises(ArgumentError, match="got a closure: the weights are perturbed"):
        sam.step(loss)
    with pytest.raises(ArgumentError, match="expected a state to be saved between steps"):
        sam.state_dict()
    with pytest.raises(ArgumentError, match="expected new gradients for the update"):
        sam.second_step()
    sam.abandon()
    assert np.array_equal(flat(model), before)
    look = sgd(model, rules.LookSAM())
    look.steps = 1
    loss().backward()
    with pytest.raises(ArgumentError, match="expected no second pass at this step"):
        look.first_step()

    def clearing() -> Tensor:
        model.zero_grad()
        value = loss()
        value.backward()
        return value

    sam.zero_grad()
    with pytest.raises(ArgumentError, match="but one cleared them"):
        sam.step([loss, clearing])
    with pytest.raises(ArgumentError, match=r"expected a closure \(rows=None\)"):
        sgd(model, rules.ESAM()).step(loss)
    with pytest.raises(LossError, match="expected one loss for each example"):
        sgd(model, rules.ESAM()).step(lambda rows=None: loss())
    with pytest.raises(ArgumentError, match="expected the rule SSAMF"):
        sam.update_mask([loss])
    with pytest.raises(ArgumentError, match="expected closures of some examples, got none"):
        sgd(model, rules.SSAMF()).update_mask([])
    assert np.array_equal(flat(model), before)


def test_bases_and_settings_that_cannot_work_are_refused() -> None:
    model, *_ = build()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong, message in (
        (torch.optim.SGD, "got the class SGD: build it first"),
        (torch.optim.LBFGS(model.parameters()), "needs no closure, got LBFGS"),
        (SAM(base), "needs no closure, got SAM"),
        (list(model.parameters()), "needs no closure, got list"),
    ):
        with pytest.raises(ArgumentError, match=message):
            SAM(wrong)  # type: ignore[arg-type]
    for settings, message in (
        ({"rule": "SAM"}, "expected a rule such as"),
        ({"model": "net"}, "expected a module as model"),
        ({"sync": "some"}, "expected sync 'global' or 'local'"),
        ({"sync": "local"}, "expected the DistributedDataParallel module"),
        ({"clip_norm": 0.0}, "expected clip_norm above 0"),
        ({"warmup": -1}, "expected warmup to be a whole number"),
        ({"rule": rules.NormOnly()}, "expected the model, because layers are told by their type"),
        ({"rule": rules.GeodesicSAM()}, "a geometry goes by their names"),
    ):
        with pytest.raises(ArgumentError, match=message):
            SAM(base, **settings)  # type: ignore[arg-type]
    model.no_sync = lambda: None  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match="expected sync='global': the update of GSAM"):
        SAM(base, rules.GSAM(), model=model, sync="local")
    sam = SAM(base, rules.ASAM(biases=False))
    model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    with pytest.raises(ArgumentError, match="treats layers by their type"):
        sam.first_step()


def test_memory_is_one_copy_of_the_weights() -> None:
    # Kills: first gradients that live through the second pass, whole perturbations kept.
    model, (x, y) = nn.Linear(1000, 7), (torch.randn(3, 1000), torch.tensor([0, 1, 2]))
    sam, found = sgd(model), []

    def closure() -> Tensor:
        gc.collect()
        tensors = [o for o in gc.get_objects() if type(o) is Tensor and o.shape == (7, 1000)]
        found.append(len({o.untyped_storage().data_ptr() for o in tensors} - {model.weight.data_ptr()}))
        return F.cross_entropy(model(x), y)

    for _ in range(2):
        sam.step(closure)
    # in both passes of the second step: the momentum, and the room for the weights
    assert found[2:] == [2, 2]
