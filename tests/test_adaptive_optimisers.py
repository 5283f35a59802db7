"""Adam's minima against SGD's: training that stops at a level, the exact Fisher diagonal, and the experiment."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import Euclidean, Problem, root_diagonal_trace
from spiritlevel.experiments import EXPERIMENTS, adaptive_optimisers
from spiritlevel.experiments import optimiser_minima as minima
from spiritlevel.experiments.level_training import train_to_level
from spiritlevel.experiments.reparam_common import digits, lenet


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))


def test_training_stops_at_the_level_and_within_one_per_cent() -> None:
    """Kills: the first loss below the level taken, a loss of the last batch only, weights that are not put back."""
    data = digits(256)[0]
    for make in (partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=1e-2)):
        found = train_to_level(small(), data, make, 0.5, 400, seed=0)
        with torch.no_grad():
            loss = float(F.cross_entropy(found.model(data[0]), data[1]))
        assert found.reached
        assert 0.495 - 1e-6 <= loss <= 0.5 + 1e-6
        assert loss == pytest.approx(found.loss, rel=1e-5)
    again = train_to_level(small(), data, make, 0.5, 400, seed=0)
    assert again.steps == found.steps
    assert not torch.equal(train_to_level(small(), data, make, 0.5, 400, seed=1).model[1].weight, again.model[1].weight)


def test_training_that_does_not_arrive_says_so() -> None:
    data = digits(256)[0]
    slow = train_to_level(small(), data, partial(torch.optim.SGD, lr=1e-4), 0.5, 30, seed=0)
    assert (slow.reached, slow.steps) == (False, 30)
    wild = train_to_level(small(), data, partial(torch.optim.SGD, lr=1e38), 0.5, 300, seed=0)
    assert not wild.reached
    assert wild.steps < 300


def test_the_rate_rises_in_twenty_steps() -> None:
    """Kills: a warm-up that never ends, or that is left out."""
    data, model = digits(64)[0], small()
    found = train_to_level(model, data, partial(torch.optim.SGD, lr=0.2), 1e-9, 10, seed=0)
    assert found.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    found = train_to_level(model, data, partial(torch.optim.SGD, lr=0.2), 1e-9, 40, seed=0)
    assert found.optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_the_fisher_diagonal_is_the_gauss_newton_one() -> None:
    """Against the library's unit vectors: another way to the same number. Kills: true labels for the model's own."""
    model, images = small().double(), digits(40)[0][0].double()
    problem = Problem(model, [(images, digits(40)[0][1])])
    exact = root_diagonal_trace(problem, Euclidean(), method="exact", matrix="gauss_newton").value
    assert minima.root_diagonal(model, images) == pytest.approx(exact, rel=1e-8)


def test_the_rate_is_the_one_that_arrives_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the largest rate, the one of lowest loss, a rate that fails on one pilot, pilots among the seeds."""
    steps = {(0.003, 1000): 300, (0.003, 1001): 320, (0.01, 1000): 100, (0.01, 1001): None, (0.03, 1000): 200}
    steps |= {(0.03, 1001): 180, (0.1, 1000): 250, (0.1, 1001): 250}

    class Ended:
        def __init__(self, steps: int | None) -> None:
            self.reached, self.steps = steps is not None, steps or 999

    monkeypatch.setattr(minima, "_train", lambda s, n, o, rate, level, seed: Ended(steps[rate, seed]))
    setting = minima.Setting(pilots=2)
    rate, table = minima.chosen_rate(setting, "LeNet", "SGD", 0.1, 0, lambda *_: None)
    assert rate == 0.03
    assert table == {0.003: 310, 0.01: math.inf, 0.03: 190, 0.1: 250}


def test_minima_are_measured_in_the_metric_of_their_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: Adam's metric for SGD, no scale in the metric of determinant 1, a network that never arrived measured."""
    monkeypatch.setitem(minima.NETWORKS, "LeNet", lenet)
    setting = minima.Setting(examples=128, measured=32, samples=4, steps=3, probes=1, limit=80)
    sgd = minima.minimum(setting, "LeNet", "SGD", 0.03, 1.5, 0)
    adam = minima.minimum(setting, "LeNet", "Adam", 3e-3, 1.5, 0)
    assert sgd is not None
    assert adam is not None
    assert sgd.values["own metric"] == sgd.values["trace"] == sgd.values["own metric, det 1"]
    assert adam.values["own metric"] > 2 * adam.values["trace"]
    assert set(adam.layers) == set(sgd.layers)
    assert 0 < adam.test < 1
    assert minima.minimum(replace(setting, limit=10), "LeNet", "SGD", 1e-4, 0.01, 0) is None
    found = minima._train(setting, "LeNet", "Adam", 3e-3, 1.5, 0)
    scaled = {n: g / minima._scale(found, "Adam") for n, g in minima._own(found, "Adam").metric.items()}
    assert sum(float(g.double().log().sum()) for g in scaled.values()) == pytest.approx(0, abs=1e-3)


def test_the_experiment_says_what_it_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = replace(
        adaptive_optimisers.QUICK, examples=128, measured=32, seeds=2, limit=150, samples=4, steps=3, probes=1
    )
    monkeypatch.setattr(adaptive_optimisers, "QUICK", setting)
    designs = (minima.Design("main", 2.0), minima.Design("slower", 2.0, 1.25))
    monkeypatch.setattr(adaptive_optimisers, "QUICK_DESIGNS", designs)
    monkeypatch.setattr(minima, "RATES", {"SGD": (0.03,), "Adam": (3e-3,)})
    report = EXPERIMENTS["adaptive-optimisers"].run(True, 0)
    assert report.settings["rates"]["LeNet, slower"] == {"SGD": "0.024", "Adam": "0.0024"}
    assert [c.what.split(",")[0] for c in report.claims] == ["LeNet"] * 7
    assert "slower: " in report.claims[0].note
    trace = [p["values"]["trace"] for o in ("Adam", "SGD") for p in report.data["zoos"]["LeNet, main"][o]]
    ratio = math.sqrt(trace[0] * trace[1] / trace[2] / trace[3])
    assert report.claims[0].here == pytest.approx(ratio)
    assert all(p.stat().st_size < 200_000 for p in report.write(tmp_path))
    json.loads((tmp_path / "adaptive-optimisers.json").read_text())


def test_networks_that_do_not_arrive_give_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adaptive_optimisers, "QUICK", replace(adaptive_optimisers.QUICK, examples=64, seeds=2, limit=10)
    )
    monkeypatch.setattr(adaptive_optimisers, "QUICK_DESIGNS", (minima.Design("main", 1e-6),))
    monkeypatch.setattr(minima, "RATES", {"SGD": (0.03,), "Adam": (3e-3,)})
    report = EXPERIMENTS["adaptive-optimisers"].run(True, 0)
    assert [c.holds for c in report.claims] == [None]
    assert "too few networks reached the level" in report.reading


@pytest.mark.slow
def test_the_quick_run_takes_less_than_a_minute_of_one_processor() -> None:
    import time

    began = time.process_time()
    report = EXPERIMENTS["adaptive-optimisers"].run(True, 0)
    assert time.process_time() - began < 60
    assert len(report.claims) == 7
