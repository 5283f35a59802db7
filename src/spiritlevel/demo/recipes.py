"""How each network of the zoo is trained."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Literal

from spiritlevel.errors import ArgumentError

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of one network.

    Attributes:
        optimizer: AdamW, or gradient descent with Nesterov momentum 0.9.
        learning_rate: as a multiple of the optimiser's base rate (`spiritlevel.demo.training.Settings`).
        weight_decay: pull towards 0 in each step, as a multiple of the step size (decoupled, with both optimisers).
        augmentation: whether digits are turned and moved a little, each time anew.
        label_noise: share of wrong labels among the training digits that are not `spiritlevel.demo.data.CLEAN`.
        seed: of the first weights, the batches and the noise.

    >>> Recipe("adamw", 1.0, 0.0, False, 0.1, 0).name
    'adamw-lr1-wd0-plain-noise0.1-seed0'
    """

    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    weight_decay: float
    augmentation: bool
    label_noise: float
    seed: int

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.optimizer not in ("adamw", "sgd"):
            raise ArgumentError(f"expected the optimizer 'adamw' or 'sgd', got {self.optimizer!r}")
        if not self.learning_rate > 0 or not self.weight_decay >= 0 or not 0 <= self.label_noise < 1:
            raise ArgumentError(
                f"expected learning_rate > 0, weight_decay >= 0 and label_noise from 0 to below 1, got {self}"
            )

    @property
    def name(self) -> str:
        """Of its folder."""
        return (
            f"{self.optimizer}-lr{self.learning_rate:g}-wd{self.weight_decay:g}-"
            f"{'moved' if self.augmentation else 'plain'}-noise{self.label_noise:g}-seed{self.seed}"
        )

    def to_dict(self) -> dict[str, float | str]:
        """Plain data; whether there is augmentation as 0 or 1."""
        return {**asdict(self), "augmentation": int(self.augmentation)}


_RATES, _DECAYS, _AUGMENTED, _NOISE = (1.0, 2.5), (0.0, 0.3), (False, True), (0.0, 0.1)

RECIPES: tuple[Recipe, ...] = (
    # All 16 of four choices; another seed for 8 of them, and the other optimiser for these 8: along each of the six
    # axes there are networks that differ in nothing else, which is what granulated statistics need.
    *(Recipe("adamw", *rest, 0) for rest in itertools.product(_RATES, _DECAYS, _AUGMENTED, _NOISE)),
    *(Recipe("adamw", r, 0.0, a, n, 1) for r, a, n in itertools.product(_RATES, _AUGMENTED, _NOISE)),
    *(Recipe("sgd", r, 0.0, a, n, 0) for r, a, n in itertools.product(_RATES, _AUGMENTED, _NOISE)),
)
"""The 32 networks of the demonstration."""
