"""Does a claimed symmetry hold on data?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.batches import batch_size, cut, tensors_in
from spiritlevel.core.blocks import Block
from spiritlevel.core.evaluation import forward, measurable
from spiritlevel.core.tensors import natural_dtype
from spiritlevel.errors import ModelError, SymmetryError
from spiritlevel.symmetry.orbit import moved

__all__ = ["check_blocks", "verify_symmetries"]

_STRENGTH = 0.5
_EXAMPLES = 4
_ALLOWED = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest relative output change taken for rounding. Exact symmetries drift by at most 3e-6 in float32 and, because
many models round to float32 inside, 3e-7 in float64; wrong claims by 0.1 and more (measured on 46 architectures)."""


def verify_symmetries(model: nn.Module, batch: Any, blocks: Sequence[Block], seed: int = 0) -> dict[str, float]:
    """The largest relative change of the model's output under a random group element, block by block.

    Rounding shows as 1e-15 to 1e-6, a symmetry that does not hold as 0.1 and more. Costs a forward pass per block.

    Args:
        model: the model; it is not changed.
        batch: ``(inputs, targets)`` or a dict.
        blocks: from `find_symmetries`, or your own.
        seed: fixes the group elements.
    """
    weights = measurable(model)
    before = _outputs(model, weights, batch)
    drifts = {}
    for i, block in enumerate(blocks):
        after = _outputs(model, {**weights, **moved(weights, [block], _STRENGTH, seed + i)}, batch)
        drifts[block.name] = _drift(before, after)
    return drifts


def check_blocks(model: nn.Module, batch: Any, blocks: Sequence[Block], seed: int = 0) -> float:
    """Refuse blocks that do not hold on a few examples; returns the drift of a move of all of them together.

    Costs two forward passes of at most four examples.
    """
    if not blocks:
        return 0.0
    size = batch_size(batch)
    few = cut(batch, 0, min(size, _EXAMPLES), size)
    weights = measurable(model)
    allowed = _ALLOWED[natural_dtype(weights.values())]
    before = _outputs(model, weights, few)
    drift = _drift(before, _outputs(model, {**weights, **moved(weights, blocks, _STRENGTH, seed)}, few))
    if drift <= allowed:
        return drift
    drifts = verify_symmetries(model, few, blocks, seed)
    name = max(drifts, key=lambda n: drifts[n])
    raise SymmetryError(
        f"expected the model's output to stay within {allowed:g} along the orbit of every block, but it changes by "
        f"{drifts[name]:.2g} along {name!r} ({drift:.2g} along all together): leave that block out with "
        "Quotient(blocks=[b for b in find_symmetries(model) if b.name != ...])"
    )


def _outputs(model: nn.Module, weights: Mapping[str, Tensor], batch: Any) -> list[Tensor]:
    """All floating tensors a model returns, but for caches and the loss."""
    with torch.no_grad():
        output = forward(model, weights, batch)
    if isinstance(output, Mapping):
        output = {k: v for k, v in output.items() if k not in ("past_key_values", "loss")}
    found = [t for t in tensors_in(output) if t.is_floating_point()]
    if not found:
        raise ModelError(f"expected tensors in the model's output, got {type(output).__name__}")
    return found


def _drift(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Largest change over the largest entry, over all outputs; infinite where something is not finite."""
    drift = 0.0
    for x, y in zip(before, after, strict=True):
        if x.numel():
            change = float((x - y).abs().max() / x.abs().max().clamp_min(torch.finfo(x.dtype).tiny))
            drift = max(drift, change if change == change else float("inf"))
    return drift
