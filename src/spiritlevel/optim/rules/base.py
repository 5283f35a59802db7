"""What a sharpness-aware rule is: where to take the gradient, and what to make of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spiritlevel.core.registry import Registry
from spiritlevel.errors import ArgumentError
from spiritlevel.optim.slots import Point, Role, Slot

__all__ = ["RULES", "Perturbation", "Rule", "check_share", "ratio"]


@dataclass(frozen=True)
class Rule(ABC):
    """Settings of a rule, and its mathematics.

    A rule says by how much the weights move before the second gradient is taken. What it keeps from step to step is in
    `Point.memory`, which the optimizer saves; the rule itself never changes.

    Attributes:
        rho: the radius.
    """

    rho: float = 0.05

    joins: ClassVar[bool] = False
    """Whether the update depends on the first gradient other than through the second: then all ranks must share it."""
    keeps_first: ClassVar[bool] = False
    """Whether the first gradient itself is wanted after the second pass."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_positive(rho=self.rho)
        self._check()

    def _check(self) -> None:  # noqa: B027  # hooks that need not be filled in
        """Check what a subclass adds."""

    def prepare(self, parameters: Sequence[Tensor], roles: Mapping[int, Role], model: nn.Module | None) -> Any:  # noqa: B027
        """Look at model and parameters once, when the optimizer is built; the result is `Point.fixed`."""

    def ascends(self, step: int) -> bool:
        """Whether this step takes a second pass."""
        del step
        return True

    @property
    def selects(self) -> bool:
        """Whether the second pass runs on some of the examples only."""
        return False

    def chosen(self, before: Tensor, after: Tensor) -> Tensor:
        """The examples of the second pass, from their losses at w and at the perturbed weights."""
        del after
        return torch.arange(before.numel(), device=before.device)

    @abstractmethod
    def move(self, point: Point) -> Iterator[tuple[Slot, Tensor]]:
        """The slots that move, each with its weights for the second pass."""

    def finish(self, point: Point) -> None:  # noqa: B027
        """Change the gradients of the second pass, in ``.grad``, into those of the update."""

    def reuse(self, point: Point) -> None:  # noqa: B027
        """Change the gradients of the only pass of a step that does not ascend."""


@dataclass(frozen=True)
class Perturbation(Rule):
    """A rule that adds a vector to the weights."""

    @abstractmethod
    def perturbation(self, point: Point) -> Iterable[Tensor]:
        """``epsilon`` for every slot, one after the other (each is asked for before its weights are changed)."""

    def move(self, point: Point) -> Iterator[tuple[Slot, Tensor]]:
        for slot, epsilon in zip(point.slots, self.perturbation(point), strict=True):
            yield slot, slot.weight + epsilon.to(slot.weight.dtype)


def check_positive(**settings: float) -> None:
    """Finite numbers above 0."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ArgumentError(f"expected {name} to be finite and above 0, got {value!r}")


def check_share(*, least: float = 0.0, **settings: float) -> None:
    """Numbers between ``least`` and 1."""
    for name, value in settings.items():
        if not isinstance(value, int | float) or not least <= value <= 1:
            raise ArgumentError(f"expected {name} between {least:g} and 1, got {value!r}")


def ratio(above: float | Tensor, below: Tensor) -> Tensor:
    """``above / below``, and 0 where ``below`` is 0: where there is no gradient nothing moves.

    >>> ratio(1.0, torch.tensor(0.0)), ratio(1.0, torch.tensor(4.0))
    (tensor(0.), tensor(0.2500))
    """
    return torch.where(below == 0, torch.zeros_like(below), above / torch.where(below == 0, 1, below))


RULES: Registry[type[Rule]] = Registry("rule")
