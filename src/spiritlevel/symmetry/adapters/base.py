"""What an adapter is, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from spiritlevel.core.blocks import Block, Leftover
from spiritlevel.core.registry import Registry

__all__ = ["ADAPTERS", "Adapter", "Answer", "Refusal", "join", "label"]


@dataclass(frozen=True)
class Refusal:
    """A module that looks like attention but whose group is not known."""

    reason: str


Answer = Sequence[Block | Leftover] | Refusal | None
"""Blocks, among them perhaps parameters that are left out with a reason; a refusal of the whole module; or nothing."""

Adapter = Callable[[str, nn.Module, nn.Module | None], Answer]
"""``(name, module, parent) -> answer``; parameter names start with ``name``."""

ADAPTERS: Registry[Adapter] = Registry("symmetry adapter")


def join(prefix: str, name: str) -> str:
    """A parameter's full name; the root module has the prefix ""."""
    return f"{prefix}.{name}" if prefix else name


def label(name: str, roles: str) -> str:
    """What a block is called: the module it was found in and what its factors do."""
    return f"{name}: {roles}" if name else roles
