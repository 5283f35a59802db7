"""The fixed batch that every reading is taken on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from spiritlevel.core.batches import tensors_in
from spiritlevel.errors import ArgumentError, DataError

__all__ = ["fixed_batches", "from_loader"]


def fixed_batches(batches: Any) -> list[Any]:
    """One batch, or several, as a list that stays the same: what a list holds, or one batch by itself.

    >>> fixed_batches((torch.zeros(2, 3), torch.zeros(2)))[0][1].tolist()
    [0.0, 0.0]
    """
    if isinstance(batches, dict) or (isinstance(batches, tuple) and len(batches) == 2 and tensors_in(batches[1])):
        return [batches]
    if not isinstance(batches, list) or not batches or not all(tensors_in(b) for b in batches):
        what = f"an empty {type(batches).__name__}" if batches == [] else type(batches).__name__
        raise ArgumentError(
            f"expected one batch, (inputs, targets) or a dict, or a list of batches; got {what}: take some from your "
            "loader, as in [next(iter(loader))], before training"
        )
    return list(batches)


def from_loader(loader: Any, examples: int | None = None) -> list[Any]:
    """A batch of examples spread evenly over the dataset of a loader, put together as the loader does.

    The loader itself is not iterated: its workers and samplers have states of their own, which training goes on with.
    Datasets that augment draw from generators seeded with 0 here, so that a resumed run has the same batch. Call it
    inside `untouched`.

    Args:
        loader: a DataLoader over a dataset that can be indexed.
        examples: how many; by default the loader's batch size.
    """
    dataset: Any = getattr(loader, "dataset", None)
    collate: Any = getattr(loader, "collate_fn", None)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or collate is None:
        raise DataError(
            "expected a DataLoader over a dataset that can be indexed, to take a fixed batch from; got "
            f"{type(loader).__name__} over {type(dataset).__name__}: pass batches="
        )
    count = min(len(dataset), examples or _size(loader))
    if not count:
        raise DataError("expected examples to take a fixed batch from, got an empty dataset: pass batches=")
    _seed()
    return [collate([dataset[i * len(dataset) // count] for i in range(count)])]


def _size(loader: Any) -> int:
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return int(size or 32)


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
