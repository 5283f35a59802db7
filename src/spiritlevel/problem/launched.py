"""The problem of a command: of this process alone, or of all that torchrun started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from spiritlevel.core.launched import launched, process_group
from spiritlevel.core.ranks import Ranks
from spiritlevel.errors import ArgumentError
from spiritlevel.problem.distributed import DistributedProblem
from spiritlevel.problem.problem import Problem

__all__ = ["problem_of_command"]


@contextmanager
def problem_of_command(
    model: nn.Module,
    batches: Iterable[Any],
    device: torch.device,
    *,
    sharded: bool = False,
    timeout: float = 300.0,
    normalize_logits: bool = False,
    micro_batch: int | None = None,
) -> Iterator[Problem]:
    """A `Problem`, or under torchrun a `DistributedProblem` of all processes; the process group ends with the context.

    Args:
        model: as loaded, on any device.
        batches: the same in every process.
        device: where to measure.
        sharded: spread the weights over the processes first.
        timeout: seconds to wait for another process.
        normalize_logits: as for `Problem`.
        micro_batch: as for `Problem`.
    """
    if sharded and launched() == 1:
        raise ArgumentError("expected torchrun with two or more processes to shard over, got a single process")
    with process_group(device, timeout) as together:
        model = model.to(device)
        if not together:
            yield Problem(model, batches, normalize_logits=normalize_logits, micro_batch=micro_batch)
            return
        if sharded:
            from torch.distributed.fsdp import fully_shard  # torch 2.6 and later

            fully_shard(model)
        ranks = Ranks(timeout=timeout)
        yield DistributedProblem(
            model, batches, ranks=ranks, normalize_logits=normalize_logits, micro_batch=micro_batch
        )
