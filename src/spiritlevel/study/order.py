"""A plan on its way to another process, with what that process needs to import the user's code."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass

import torch

from spiritlevel.errors import ArgumentError
from spiritlevel.study.plan import Plan

__all__ = ["Order", "cores_here"]


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Order:
    """What a worker gets to begin with.

    Attributes:
        plan: pickled, and unpickled only where the user's modules can be found.
        paths: where modules are found here.
        threads: of torch.
    """

    plan: bytes
    paths: tuple[str, ...]
    threads: int

    @classmethod
    def of(cls, plan: Plan, threads: int, engine: str) -> Order:
        """Packed; refused where the plan holds a function that another process cannot import."""
        try:
            packed = pickle.dumps(plan)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ArgumentError(
                f"expected functions that a new process can import, for engine {engine!r}, but {error}: name them as "
                "package.module:function, or take engine 'serial'"
            ) from error
        return cls(packed, (str(plan.config.folder.absolute()), *sys.path), threads)

    def opened(self) -> Plan:
        """Unpacked in the process that works on it, which from now on finds modules as they are found here."""
        there = set(sys.path)
        ours, others = self.paths[0], [p for p in self.paths[1:] if p and p not in there]
        sys.path[:] = [ours, *sys.path, *others]
        torch.set_num_threads(self.threads)
        plan: Plan = pickle.loads(self.plan)
        return plan
