"""Training that stops at a given training loss, so that minima are compared and not how far training went."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.core.tensors import all_finite

__all__ = ["Trained", "train_to_level"]

_EVERY = 10  # steps between two looks at the training loss
_WARM_UP = 20  # steps in which the rate rises to its value
_BATCH = 32
_HALVINGS = 24  # as many as float32 has bits


@dataclass(frozen=True)
class Trained:
    """What came of a training.

    Attributes:
        model: in evaluation mode.
        optimizer: with its state.
        steps: that were made.
        loss: the mean cross-entropy of the training data.
        reached: whether that is the level.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    steps: int
    loss: float
    reached: bool


def train_to_level(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    make: Callable[[Any], torch.optim.Optimizer],
    level: float,
    limit: int,
    seed: int,
) -> Trained:
    """Train until the loss of the training data is at the level: not above it, and within 1 % of it.

    On the stretch of ten steps on which the loss first falls below the level, the point where it is at the level is
    found by bisection between the weights at both ends. The optimiser's state is that of the last step.

    Args:
        model: with its first weights; it is trained in place.
        data: images and labels.
        make: the optimiser of some parameters, at its full rate.
        level: the wanted loss.
        limit: most steps.
        seed: of the order of the examples.
    """
    optimizer = make(model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    batches, step, loss = _batches(len(data[1]), seed), 0, math.inf
    while step < limit:
        before = _weights(model)
        for _ in range(min(_EVERY, limit - step)):
            step += 1
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * min(1.0, step / _WARM_UP)
            rows = next(batches)
            optimizer.zero_grad()
            F.cross_entropy(model(data[0][rows]), data[1][rows]).backward()
            optimizer.step()
        loss = _loss(model, data)
        if loss <= level:
            return Trained(model.eval(), optimizer, step, _back(model, data, before, loss, level), True)
        if not math.isfinite(loss) or not all_finite(_weights(model).values()):
            break
    return Trained(model.eval(), optimizer, step, loss, False)


def _batches(count: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).split(_BATCH)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def _loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model(data[0]).double(), data[1]))


def _back(model: nn.Module, data: tuple[Tensor, Tensor], before: dict[str, Tensor], loss: float, level: float) -> float:
    """Go back towards earlier weights, where the loss was above the level, as far as it stays at or below it."""
    after, low, high = _weights(model), 0.0, 1.0
    for _ in range(_HALVINGS):
        if loss >= 0.99 * level:
            break
        middle = (low + high) / 2
        _put(model, before, after, middle)
        found = _loss(model, data)
        low, high, loss = (low, middle, found) if found <= level else (middle, high, loss)
    _put(model, before, after, high)
    return loss


def _put(model: nn.Module, before: dict[str, Tensor], after: dict[str, Tensor], share: float) -> None:
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(torch.lerp(before[n], after[n], share))
