"""Started by torchrun? Then there are other processes like this one, and only the first of them speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from spiritlevel.errors import RanksError

__all__ = ["device_of_rank", "launched", "process_group", "speaks"]


def launched() -> int:
    """How many processes torchrun started together; 1 where it did not start this one."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def speaks() -> bool:
    """Whether this process prints and writes: it is alone, or the first."""
    return launched() == 1 or os.environ.get("RANK", "0") == "0"


def device_of_rank(name: str) -> str:
    """``cuda`` is another device for each process of a machine."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" and launched() > 1 else name


@contextmanager
def process_group(device: torch.device, timeout: float) -> Iterator[bool]:
    """The process group of a command under torchrun; whether there is one. Somebody else's is used and left.

    Args:
        device: where the model will be.
        timeout: seconds to wait for the other processes.
    """
    if launched() == 1:
        yield False
        return
    if dist.is_initialized():
        yield True
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise RanksError(
            f"expected {launched()} processes to meet within {timeout:g} s, but: {str(error).strip().splitlines()[0]}. "
            "Start all of them with the same torchrun command (--nnodes, --nproc-per-node, --rdzv-endpoint)"
        ) from error
    try:
        yield True
    finally:
        dist.destroy_process_group()
