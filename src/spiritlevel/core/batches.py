"""Batches as users have them: where their inputs and targets are, how to cut them, how to move them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from spiritlevel.errors import DataError

__all__ = ["batch_size", "cut", "map_tensors", "model_inputs", "tensors_in", "to_device"]


def map_tensors(batch: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``f`` to every tensor in nested tuples, lists and mappings."""
    if isinstance(batch, Tensor):
        return f(batch)
    if isinstance(batch, Mapping):
        return {k: map_tensors(v, f) for k, v in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [map_tensors(v, f) for v in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all tensors on a device."""
    return map_tensors(batch, lambda t: t.to(device, non_blocking=True))


def tensors_in(batch: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and mappings."""
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        found.append(t)
        return t

    map_tensors(batch, note)
    return found


def batch_size(batch: Any) -> int:
    """Length of the first axis of the first tensor that has one."""
    for t in tensors_in(batch):
        if t.dim():
            return int(t.shape[0])
    raise DataError(f"expected a batch with at least one tensor, got {type(batch).__name__}")


def cut(batch: Any, start: int, stop: int, size: int) -> Any:
    """Examples ``start`` to ``stop`` of a batch of ``size``; tensors without that many rows are kept whole."""
    return map_tensors(batch, lambda t: t[start:stop] if t.dim() and t.shape[0] == size else t)


def model_inputs(batch: Any, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for the model; floating inputs are cast to its precision.

    A mapping goes in as keywords, labels included (transformers computes its loss from them). Of ``(inputs, targets)``
    the inputs go in: a mapping as keywords, a tuple or list as positions, anything else as the one argument.
    """

    def cast(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() and t.dtype != dtype else t

    if isinstance(batch, Mapping):
        return (), map_tensors(dict(batch), cast)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise DataError(f"expected a batch (inputs, targets) or a dict with 'labels', got {what}")
    inputs = map_tensors(batch[0], cast)
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}
