"""Random hyperparameters for fine-tuning, drawn one by one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from spiritlevel.errors import ArgumentError

__all__ = ["Recipe", "drawn"]


@dataclass(frozen=True)
class Recipe:
    """How one network is fine-tuned.

    Attributes:
        optimizer: AdamW, or gradient descent with Nesterov momentum 0.9.
        learning_rate: at its highest, after a warm-up and before a cosine to 0.
        weight_decay: pull towards 0 in each step, as a multiple of the step size (decoupled, with both optimisers).
        label_smoothing: share of the target that is spread over all classes.
        mixup: the parameter of the Beta distribution that mixes two images; 0 for none.
        augmentation: strength from 0 to 1: shifts up to 2 pixels, turns up to 10 degrees.
        epochs: of the training data.
        seed: of the order of examples, augmentation and mixup.
    """

    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    weight_decay: float
    label_smoothing: float
    mixup: float
    augmentation: float
    epochs: int
    seed: int

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.optimizer not in ("adamw", "sgd"):
            raise ArgumentError(f"expected the optimizer 'adamw' or 'sgd', got {self.optimizer!r}")
        if not (self.learning_rate > 0 and self.weight_decay >= 0 and self.mixup >= 0 and self.epochs >= 1):
            raise ArgumentError(
                f"expected a learning rate above 0, weight decay and mixup from 0 and epochs from 1 on, got {self}"
            )
        if not (0 <= self.label_smoothing < 1 and 0 <= self.augmentation <= 1):
            raise ArgumentError(f"expected label smoothing from 0 to below 1, augmentation from 0 to 1, got {self}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def drawn(index: int, seed: int, epochs: tuple[int, int] = (3, 12)) -> Recipe:
    """The recipe of that index: the same whatever others are drawn. The ranges are ours.

    In the manner of model soups, half of the networks have no mixup, half no label smoothing, a third no augmentation.
    """
    rng = np.random.default_rng([seed, index])
    optimizer: Literal["adamw", "sgd"] = "adamw" if rng.random() < 0.75 else "sgd"
    low, high = (2e-4, 3e-3) if optimizer == "adamw" else (0.005, 0.07)
    rate, decay = low * (high / low) ** rng.random(), 10 ** rng.uniform(-4, -0.3)
    smoothing, mixup, strength = rng.uniform(0, 0.2), rng.uniform(0, 0.8), rng.uniform(0.2, 1)
    smoothed, mixed, augmented = rng.random(3) < (0.5, 0.5, 2 / 3)
    return Recipe(
        optimizer,
        _short(rate),
        _short(decay),
        _short(smoothing) if smoothed else 0.0,
        _short(mixup) if mixed else 0.0,
        _short(strength) if augmented else 0.0,
        int(rng.integers(epochs[0], epochs[1] + 1)),
        index,
    )


def _short(value: float) -> float:
    return float(f"{value:.3g}")
