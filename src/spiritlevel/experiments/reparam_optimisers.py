"""Table 3, Figure 5 and Table 2 of the reparametrisation paper at the scale of a CPU: SGD and Adam on digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from spiritlevel.core.drawing import BLUE, GREEN, ORANGE, panels
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.reparam_common import accuracy, digits, interval, lenet, mean, train
from spiritlevel.geometry import Diagonal, Euclidean, Geometry
from spiritlevel.problem import Problem
from spiritlevel.reparam import Scaling, reparametrised, sharpness

__all__ = ["optimisers", "trace"]

_MAKE: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),  # 0.1 in App. E.2: see settings
    "Adam": lambda p: torch.optim.Adam(p),  # its default, as in App. E.2
}


_TRAINED = 80.0  # per cent of the training data; below it there is no minimum to speak of, and no verdict


@dataclass(frozen=True)
class _Run:
    """One trained network."""

    problem: Problem
    metric: Geometry
    train: float
    test: float

    @property
    def loss(self) -> float:
        """On the training data."""
        return math.fsum(share * self.problem.value(self.problem.weights, b) for b, share in self.problem.shares())


def _sizes(quick: bool) -> dict[str, int]:
    return {"examples": 512, "epochs": 30, "seeds": 3} if quick else {"examples": 1280, "epochs": 100, "seeds": 5}


@cache
def _runs(quick: bool, seed: int) -> dict[str, tuple[_Run, ...]]:
    """All networks, trained once for both experiments."""
    size = _sizes(quick)
    train_data, test_data = digits(size["examples"])
    found: dict[str, tuple[_Run, ...]] = {}
    for name, make in _MAKE.items():
        runs = []
        for one in range(seed, seed + size["seeds"]):
            model = lenet(one)
            optimiser = train(model, train_data, make, size["epochs"], one)
            metric = Euclidean() if name == "SGD" else Diagonal.from_optimizer(optimiser, model)
            right = accuracy(model, train_data), accuracy(model, test_data)
            # where the loss is 1e-5 an example, float32 leaves no digits of its curvature
            problem = Problem(model.double(), _batches(train_data))
            runs.append(_Run(problem, metric, *right))
        found[name] = tuple(runs)
    return found


def _batches(data: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(data[0].split(640), data[1].split(640), strict=True))


def _trace_of(problem: Problem, metric: Geometry, quick: bool) -> float:
    return sharpness(problem, metric, samples=60 if quick else 200, tolerance=0.02).value


def _settings(quick: bool, seed: int) -> dict[str, Any]:
    return {
        "network": "LeNet for 8 x 8 images (chosen; the paper: LeNet on MNIST, WideResNet-16-4 on CIFAR)",
        "data": "scikit-learn's digits (chosen)", **_sizes(quick), "batch": 32,
        "precision": "trained in float32, measured in float64",
        "SGD": "0.02 (chosen: with the paper's 0.1 this small network dies), Nesterov 0.9, cosine",
        "Adam": "defaults, cosine", "trace": "Hutchinson, standard error 2 %", "seed": seed,
    }  # fmt: skip


def trace(quick: bool, seed: int) -> Report:
    """The trace of the Hessian of the same minima, in three parametrisations."""
    runs = _runs(quick, seed)
    scales = {"theta": 1.0, "theta / 2": 0.5, "2 theta": 2.0}
    traces: dict[str, list[float]] = {"Adam, theta": [_trace_of(r.problem, Euclidean(), quick) for r in runs["Adam"]]}
    moved: list[float] = []
    for name, c in scales.items():
        change = Scaling(c)
        here = [reparametrised(r.problem, change) for r in runs["SGD"]]
        traces[f"SGD, {name}"] = [_trace_of(p, Euclidean(), quick) for p in here]
        kept = [_trace_of(p, Euclidean().transported(change), quick) for p in here]
        moved += [abs(a / b - 1) for a, b in zip(kept, traces["SGD, theta"], strict=True)]
    means = {n: mean(v) for n, v in traces.items()}
    gaps = {n: [r.train - r.test for r in each] for n, each in runs.items()}
    logs = [math.log(a / b) for a, b in zip(traces["Adam, theta"], traces["SGD, theta"], strict=True)]
    low, high = interval(logs)
    losses = " and ".join(f"{mean(v):.2g} ({n})" for n, v in _losses(runs).items())
    trained = min(r.train for each in runs.values() for r in each) > _TRAINED
    per_loss = _per_loss(logs, _losses(runs))
    claims = (
        Claim("tr H falls by c^2 under psi = c theta: theta / 2 (Table 3)", "6143.7 / 1531.8 = 4.01",
              means["SGD, theta / 2"] / means["SGD, theta"],
              abs(means["SGD, theta / 2"] / means["SGD, theta"] - 4) < 1e-3),
        Claim("the same, 2 theta", "383.6 / 1531.8 = 0.250", means["SGD, 2 theta"] / means["SGD, theta"],
              abs(means["SGD, 2 theta"] / means["SGD, theta"] - 0.25) < 1e-4),
        Claim("ours: with the metric transported it stays", "-", max(moved), max(moved) < 1e-3,
              note="largest relative difference over maps and seeds"),
        Claim("tr H: Adam above SGD in plain weights", "1929.8 / 1531.8 = 1.26", math.exp(mean(logs)),
              low > 0 if trained and (low > 0 or high < 0) else None, (math.exp(low), math.exp(high)),
              f"geometric mean of the ratio; another data set; training loss {losses}"),
        Claim("ours: the same ratio per unit of training loss", "-", *per_loss),
        Claim("generalisation gap in %: Adam above SGD", "7.2 and 5.2",
              f"{mean(gaps['Adam']):.2f} and {mean(gaps['SGD']):.2f}", _above(gaps["Adam"], gaps["SGD"]),
              interval([a - b for a, b in zip(gaps["Adam"], gaps["SGD"], strict=True)]), "interval of the difference"),
    )  # fmt: skip
    figure, axes = panels(1, 1, 6, 3.6)
    axis = axes[0, 0]
    for i, (_, each) in enumerate(traces.items()):
        axis.plot([i] * len(each), each, "o", color=ORANGE if i == 0 else BLUE, alpha=0.7)
    axis.axhline(means["SGD, theta"], color=GREEN, ls="--", lw=1.2, label="SGD, metric transported: in all three")
    axis.set_yscale("log")
    axis.set_xlim(-0.6, len(traces) - 0.4)
    axis.set_xticks(range(len(traces)), [n.replace(", ", "\n") for n in traces])
    axis.set_ylabel("trace of the Hessian")
    axis.legend(frameon=False)
    return Report(
        "reparam-trace", "Table 3: the trace of the Hessian under psi = c theta", claims, _settings(quick, seed),
        {"traces": traces, "generalisation gaps": gaps, "training loss": _losses(runs)}, {"reparam-trace": figure},
        "The same minimum of the same network can be given any trace. Whether Adam's is above SGD's in plain weights "
        "depends on how far each was trained: near interpolation the trace falls with the training loss.",
    )  # fmt: skip


def _losses(runs: dict[str, tuple[_Run, ...]]) -> dict[str, list[float]]:
    return {n: [r.loss for r in each] for n, each in runs.items()}


def _per_loss(logs: list[float], losses: dict[str, list[float]]) -> tuple[float, bool | None, tuple[float, float], str]:
    """The ratio of traces over the ratio of losses; whether it is above 1; its interval; a note."""
    each = [x - math.log(a / b) for x, a, b in zip(logs, losses["Adam"], losses["SGD"], strict=True)]
    low, high = interval(each)
    holds = True if low > 0 else (False if high < 0 else None)
    note = "near interpolation the trace falls with the loss; holds if above 1 with 95 %"
    return math.exp(mean(each)), holds, (math.exp(low), math.exp(high)), note


def _above(a: list[float], b: list[float]) -> bool | None:
    low, high = interval([x - y for x, y in zip(a, b, strict=True)])
    return True if low > 0 else (False if high < 0 else None)


def optimisers(quick: bool, seed: int) -> Report:
    """``tr(G^-1 H)`` with each optimiser's own metric: the second moment for Adam, the identity for SGD."""
    runs = _runs(quick, seed)
    own = {n: [_trace_of(r.problem, r.metric, quick) for r in each] for n, each in runs.items()}
    plain = {n: [_trace_of(r.problem, Euclidean(), quick) for r in each] for n, each in runs.items()}
    logs = [math.log(a / b) for a, b in zip(own["Adam"], own["SGD"], strict=True)]
    low, high = interval(logs)
    losses = " and ".join(f"{mean(v):.2g} ({n})" for n, v in _losses(runs).items())
    trained = min(r.train for each in runs.values() for r in each) > _TRAINED
    per_loss = _per_loss(logs, _losses(runs))
    adam = runs["Adam"][0]
    change = Scaling(3.0)
    new = reparametrised(adam.problem, change)
    stays = abs(_trace_of(new, adam.metric.transported(change), quick) / own["Adam"][0] - 1)
    tests = {n: [r.test for r in each] for n, each in runs.items()}
    claims = (
        Claim("tr(G^-1 H): Adam far above SGD (Fig. 5)", "well above on all four data sets", math.exp(mean(logs)),
              math.exp(low) > 2 if trained and (low > 0 or high < 0) else None, (math.exp(low), math.exp(high)),
              f"geometric mean of the ratio; holds if above 2 with 95 %; training loss {losses}"),
        Claim("ours: the same ratio per unit of training loss", "-", *per_loss),
        Claim("and so in any coordinates", "same values", stays, stays < 1e-3,
              note="relative change under psi = 3 theta"),
        Claim("test accuracy in %, SGD (Table 2, MNIST)", "99.3", mean(tests["SGD"]), None, interval(tests["SGD"]),
              "another data set"),
        Claim("test accuracy in %, Adam", "99.2", mean(tests["Adam"]), None, interval(tests["Adam"]),
              "another data set"),
    )  # fmt: skip
    figure, axes = panels(1, 2, 8, 3.6)
    for axis, numbers, title in ((axes[0, 0], own, "own metric: tr(G⁻¹H)"), (axes[0, 1], plain, "Euclidean: tr H")):
        for i, each in enumerate(numbers.values()):
            axis.plot([i] * len(each), each, "o", color=(BLUE, ORANGE)[i], alpha=0.7)
            axis.plot([i - 0.2, i + 0.2], [mean(each)] * 2, "-", color=(BLUE, ORANGE)[i], lw=2)
        axis.set_xticks(range(2), list(numbers))
        axis.set_xlim(-0.6, 1.6)
        axis.set_yscale("log")
        axis.set_ylabel(title)
    return Report(
        "reparam-optimisers", "Figure 5 and Table 2: sharpness of minima in the metric of their optimiser", claims,
        _settings(quick, seed),
        {"own metric": own, "Euclidean": plain, "test accuracy": tests, "training loss": _losses(runs)},
        {"reparam-optimisers": figure},
        "In the metric an optimiser steps in, Adam's minima are much sharper than SGD's: its metric, the root of the "
        "second moment, is tiny once gradients are. How much of the ratio is the minimum, how much the metric's own "
        "scale and how much the training loss that each reached, this comparison cannot tell.",
    )  # fmt: skip


EXPERIMENTS.register("reparam-trace")(Experiment("Kristiadi et al. 2023, Table 3: the trace under scaling", trace))
EXPERIMENTS.register("reparam-optimisers")(Experiment("Kristiadi et al. 2023, Fig. 5, Tab. 2: SGD, Adam", optimisers))
