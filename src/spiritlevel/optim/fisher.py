"""The diagonal of the empirical Fisher matrix, from the losses of single examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from spiritlevel.errors import ArgumentError
from spiritlevel.optim.held import RandomState, held

__all__ = ["squared_gradients"]


def squared_gradients(
    closures: Iterable[Callable[[], Tensor]], parameters: Sequence[Tensor], model: nn.Module | None, shared: bool
) -> dict[int, Tensor]:
    """``sum_i (d loss_i)^2`` by index of the parameter; gradients, buffers and random state stay as they are.

    Args:
        closures: each returns the loss of one example.
        parameters: of the optimizer; frozen ones are left out.
        model: whose buffers to hold.
        shared: add up over all ranks.
    """
    moving = {i: p for i, p in enumerate(parameters) if p.requires_grad}
    scores = {i: torch.zeros_like(p) for i, p in moving.items()}
    random, count = RandomState({p.device for p in parameters}), 0
    with held(model):
        for closure in closures:
            with torch.enable_grad():
                found = torch.autograd.grad(closure(), list(moving.values()), allow_unused=True)
            for i, g in zip(moving, found, strict=True):
                if g is not None:
                    scores[i] += (g.to_dense() if g.is_sparse else g).square()
            count += 1
    random.bring_back()
    if not count:
        raise ArgumentError("expected closures of some examples, got none")
    if shared:
        for score in scores.values():
            torch.distributed.all_reduce(score)
    return scores
