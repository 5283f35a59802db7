"""The point of a training at which its loss is at a given level: to within 1 %, and not above it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

__all__ = ["at_level"]

_HALVINGS = 24  # as many as float32 has bits
_CLOSE = 0.99  # of the level


def at_level(
    model: nn.Module,
    before: Mapping[str, Tensor],
    loss_of: Callable[[nn.Module], float],
    loss: float,
    level: float,
) -> tuple[nn.Module, float]:
    """A network between earlier weights, where the loss was above the level, and the present: as early as it is there.

    Found by bisection on the straight line between the two.

    Args:
        model: as it is now, with a loss of the level or below; it is not changed.
        before: its parameters some steps earlier.
        loss_of: the loss of a network.
        loss: that of ``model``.
        level: to be met.
    """
    after, low, high = dict(model.named_parameters()), 0.0, 1.0
    found = copy.deepcopy(model)
    for _ in range(_HALVINGS):
        if loss >= _CLOSE * level:
            break
        middle = (low + high) / 2
        _between(found, before, after, middle)
        there = loss_of(found)
        low, high, loss = (low, middle, there) if there <= level else (middle, high, loss)
    _between(found, before, after, high)
    return found, loss


def _between(model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor], share: float) -> None:
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(torch.lerp(before[n], after[n], share))
