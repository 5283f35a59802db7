"""The proposers by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spiritlevel.core.blocks import Block
from spiritlevel.core.registry import Registry
from spiritlevel.symmetry.trace import Trace

__all__ = ["FLOWS", "Proposer"]

Proposer = Callable[[Trace], Sequence[Block]]
"""From a traced forward pass to groups that may act."""

FLOWS: Registry[Proposer] = Registry("kind of symmetry")
