"""Moving along an orbit: other weights, the same function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from spiritlevel.core.bare import bare
from spiritlevel.core.blocks import Block
from spiritlevel.errors import ArgumentError

__all__ = ["move_along_orbit", "moved"]


def moved(
    weights: Mapping[str, Tensor],
    blocks: Sequence[Block],
    strength: float,
    seed: int,
    condition: float | None = None,
) -> dict[str, Tensor]:
    """The parameters of the blocks after a random move by one block after the other; new tensors."""
    generator = torch.Generator().manual_seed(seed)
    new: dict[str, Tensor] = {}
    with torch.no_grad():
        for block in blocks:
            new |= block.act({**weights, **new}, block.draw(generator, strength, condition))
    return new


def move_along_orbit(
    model: nn.Module,
    blocks: Sequence[Block],
    strength: float = 1.0,
    seed: int = 0,
    *,
    condition: float | None = None,
) -> dict[str, Tensor]:
    """A state dict of the same function: every head of every block moved by a random group element.

    Load it into a copy of the model. The model itself is not changed.

    Args:
        model: the model the blocks were found in.
        blocks: from `find_symmetries`.
        strength: 0 is no move; 1 mixes thoroughly.
        seed: fixes the move.
        condition: instead of ``strength``, the condition number of the matrix each head is multiplied by.
    """
    if not math.isfinite(strength) or strength < 0:
        raise ArgumentError(f"expected a strength from 0 on, got {strength}")
    if condition is not None and not (math.isfinite(condition) and condition >= 1):
        raise ArgumentError(f"expected a condition number from 1 on, got {condition}")
    model = bare(model)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    new = moved(weights, blocks, strength, seed, condition)
    alias = {id(p): n for n, p in model.named_parameters()}
    state = model.state_dict(keep_vars=True)
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        first = alias.get(id(value), name)
        out[name] = new[first] if first in new else value.detach().clone()
    return out
