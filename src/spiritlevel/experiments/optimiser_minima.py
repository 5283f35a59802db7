"""The small zoo behind `spiritlevel.experiments.adaptive_optimisers`: Adam's and SGD's minima, and measures of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from spiritlevel.core.progress import Advance
from spiritlevel.experiments.level_training import Trained, train_to_level
from spiritlevel.experiments.reparam_common import accuracy, digits, lenet
from spiritlevel.experiments.sam_methods import SmallViT
from spiritlevel.geometry import Diagonal, Elementwise, Euclidean, Geometry, Quotient
from spiritlevel.measures import by_block, hessian_trace, renyi_sharpness
from spiritlevel.problem import Problem

__all__ = ["NETWORKS", "OPTIMISERS", "Design", "Minimum", "Setting", "chosen_rate", "minimum", "root_diagonal"]


def _vit(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallViT(16)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"LeNet": lenet, "small ViT": _vit}

OPTIMISERS: dict[str, Callable[[float, Any], torch.optim.Optimizer]] = {
    "SGD": lambda rate, p: torch.optim.SGD(p, lr=rate, momentum=0.9),
    "Adam": lambda rate, p: torch.optim.Adam(p, lr=rate),
}

RATES: dict[str, tuple[float, ...]] = {
    "SGD": (0.003, 0.01, 0.03, 0.1),
    "Adam": (1e-3, 3e-3, 1e-2, 3e-2),
}


@dataclass(frozen=True)
class Setting:
    """Everything that fixes the zoo; all of it chosen here, as the papers compare other networks on other data.

    Attributes:
        examples: digits to train on; 500 others to test on.
        measured: training digits that the measures are taken on.
        networks: which.
        seeds: of first weights and order of examples: the same ones for both optimisers.
        pilots: further seeds, on which rates are chosen and which nothing is measured on.
        limit: most steps.
        samples: random vectors of a trace.
        steps: Lanczos steps of a Rényi entropy.
        probes: random directions of it.
    """

    examples: int = 1024
    measured: int = 128
    networks: tuple[str, ...] = ("LeNet", "small ViT")
    seeds: int = 5
    pilots: int = 1
    limit: int = 1000
    samples: int = 40
    steps: int = 8
    probes: int = 2


@dataclass(frozen=True)
class Design:
    """How a zoo is trained.

    Attributes:
        name: in tables.
        level: the training loss at which all stop.
        slowed: what the chosen rates are divided by.
    """

    name: str
    level: float
    slowed: float = 1.0


@dataclass(frozen=True)
class Minimum:
    """One network, where it stopped.

    Attributes:
        steps: that were made.
        loss: on the training data.
        test: share of errors on the test data.
        values: measures by name.
        layers: Rényi sharpness by layer.
    """

    steps: int
    loss: float
    test: float
    values: Mapping[str, float]
    layers: Mapping[str, float]


def _train(setting: Setting, network: str, optimiser: str, rate: float, level: float, seed: int) -> Trained:
    model = NETWORKS[network](seed)
    make = partial(OPTIMISERS[optimiser], rate)
    return train_to_level(model, digits(setting.examples)[0], make, level, setting.limit, seed)


def chosen_rate(
    setting: Setting, network: str, optimiser: str, level: float, seed: int, advance: Advance
) -> tuple[float, dict[float, float]]:
    """The rate with which pilot seeds reach the level in the fewest steps, and the mean steps of every rate."""
    steps: dict[float, float] = {}
    for rate in RATES[optimiser]:
        runs = [_train(setting, network, optimiser, rate, level, seed + 1000 + i) for i in range(setting.pilots)]
        steps[rate] = sum(r.steps for r in runs) / len(runs) if all(r.reached for r in runs) else math.inf
        advance(f"{network}, {optimiser}, rate {rate:g}")
    return min(steps, key=lambda r: steps[r]), steps


def minimum(setting: Setting, network: str, optimiser: str, rate: float, level: float, seed: int) -> Minimum | None:
    """Train and measure; None where the level is not reached within the limit."""
    found = _train(setting, network, optimiser, rate, level, seed)
    if not found.reached:
        return None
    train, test = digits(setting.examples)
    images, labels = train[0][: setting.measured], train[1][: setting.measured]
    problem = Problem(found.model, [(images, labels)])
    values = {name: _trace(setting, problem, g) for name, g in _geometries(found, optimiser, network).items()}
    values["own metric, det 1"] = values["own metric"] * _scale(found, optimiser)
    values["root-diagonal"] = root_diagonal(found.model, images)
    renyi = renyi_sharpness(
        problem, Euclidean(), per_layer=by_block, steps=setting.steps, probes=setting.probes, show_progress=False
    )
    values["Rényi"] = renyi.value
    layers = {layer.name: layer.value for layer in renyi.layers}
    return Minimum(found.steps, found.loss, 1 - accuracy(found.model, test) / 100, values, layers)


def _geometries(found: Trained, optimiser: str, network: str) -> dict[str, Geometry]:
    own = _own(found, optimiser)
    shared: dict[str, Geometry] = {"trace": Euclidean(), "own metric": own, "adaptive": Elementwise()}
    return {**shared, "geodesic": Quotient()} if network == "small ViT" else shared


def _trace(setting: Setting, problem: Problem, geometry: Geometry) -> float:
    return hessian_trace(problem, geometry, samples=setting.samples, tolerance=0.0, show_progress=False).value


def _own(found: Trained, optimiser: str) -> Diagonal | Euclidean:
    return Diagonal.from_optimizer(found.optimizer, found.model) if optimiser == "Adam" else Euclidean()


def _scale(found: Trained, optimiser: str) -> float:
    """The geometric mean of the metric's entries: divided by it, the metric has determinant 1, as SGD's has."""
    own = _own(found, optimiser)
    if isinstance(own, Euclidean):
        return 1.0
    entries = torch.cat([g.double().flatten() for g in own.metric.values()])
    return float(entries.log().mean().exp())


def root_diagonal(model: nn.Module, images: Tensor) -> float:
    """``sum_j sqrt(F_jj)`` of the Fisher matrix, exactly: the Gauss-Newton part of the Hessian's diagonal.

    ``F_jj = mean_i sum_c p_c(x_i) (d log p_c(x_i) / d w_j)^2``. The library's estimate by random vectors has a noise
    floor that its root turns into a bias; entries of the exact diagonal have none. Costs a gradient for each example
    and class.
    """
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def logs(w: dict[str, Tensor], image: Tensor) -> Tensor:
        out: Tensor = functional_call(model, w, image.unsqueeze(0)).squeeze(0).log_softmax(-1)
        return out

    total = {n: torch.zeros_like(w, dtype=torch.float64) for n, w in weights.items()}
    for part in images.split(16):  # ours: some tens of megabytes
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            each = vmap(jacrev(logs), (None, 0))(weights, part)
            shares = vmap(logs, (None, 0))(weights, part).exp()
        for n, g in each.items():
            total[n] += torch.einsum("ec,ec...->...", shares, g.square()).double()
    return float(sum((t / len(images)).sqrt().sum() for t in total.values()))
