"""Training of one network, up to a stated training loss."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.core.tensors import all_finite
from spiritlevel.demo.data import CLEAN, clean, training
from spiritlevel.demo.model import small_vit
from spiritlevel.demo.recipes import Recipe
from spiritlevel.errors import ArgumentError

__all__ = ["Settings", "Trained", "train_to_level"]

_HALVINGS = 24  # as many as float32 has bits


@dataclass(frozen=True)
class Settings:
    """What all networks of the zoo have in common. The numbers are ours.

    Attributes:
        level: the training loss at which all stop: the mean cross-entropy of the clean training digits, in evaluation
            mode.
        limit: most steps; a network that is not there by then is left out of the zoo.
        batch: digits in a step.
        every: steps between two looks at the training loss.
        warm_up: steps in which the learning rate rises to its value.
        rates: the base learning rate of each optimiser.
        turn: largest angle of the augmentation, in degrees.
        move: largest shift of the augmentation, in pixels.
        clip: longest gradient.
        hidden: width of the network.
        layers: depth of the network.
        spread: standard deviation of the first weights.
    """

    level: float = 0.1
    limit: int = 1000
    batch: int = 32
    every: int = 10
    warm_up: int = 20
    rates: dict[str, float] = field(default_factory=lambda: {"adamw": 1e-3, "sgd": 0.05})
    turn: float = 10.0
    move: float = 0.5
    clip: float = 1.0
    hidden: int = 48
    layers: int = 3
    spread: float = 0.08

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.level > 0 or self.limit < 1 or self.every < 1:
            raise ArgumentError(f"expected a level above 0, and limit and every from 1 on, got {self}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Trained:
    """What came of a recipe.

    Attributes:
        model: in evaluation mode.
        steps: that were made.
        loss: on the clean training digits, in evaluation mode.
        reached: whether that is the level of the settings.
    """

    model: nn.Module
    steps: int
    loss: float
    reached: bool


def train_to_level(recipe: Recipe, settings: Settings | None = None) -> Trained:
    """Train until the clean training loss is at the level, to within 1 % and not above it.

    It is looked at every so many steps. On the stretch on which it first falls below the level, the point where it is
    at the level is found by bisection between the weights at both ends. The result depends on recipe and settings only,
    up to the order of sums in torch's kernels.
    """
    settings = Settings() if settings is None else settings
    run = _Run(recipe, settings)
    while run.step < settings.limit:
        before = run.weights()
        run.stretch(min(settings.every, settings.limit - run.step))
        loss = run.loss()
        if loss <= settings.level:
            return Trained(run.model, run.step, run.back_to_level(before, loss), True)
        if not math.isfinite(loss) or not all_finite(run.weights().values()):
            break
    return Trained(run.model, run.step, run.loss(), False)


class _Run:
    """A network in training."""

    def __init__(self, recipe: Recipe, settings: Settings) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.model = small_vit(settings.hidden, settings.layers, spread=settings.spread).eval()
        self.step, self._recipe, self._settings = 0, recipe, settings
        self._generator = torch.Generator().manual_seed(recipe.seed)
        images, labels = training()
        self._images, self._labels = images, _with_noise(labels, recipe.label_noise, self._generator)
        self._clean = clean()
        self._order: list[Tensor] = []
        self._rate = settings.rates[recipe.optimizer] * recipe.learning_rate
        parameters = list(self.model.parameters())
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, self._rate, weight_decay=0.0)
            if recipe.optimizer == "adamw"
            else torch.optim.SGD(parameters, self._rate, momentum=0.9, nesterov=True)
        )

    def stretch(self, steps: int) -> None:
        """So many steps."""
        for _ in range(steps):
            if not self._order:
                order = torch.randperm(len(self._labels), generator=self._generator)
                self._order = list(order.split(self._settings.batch))
            rows, self.step = self._order.pop(), self.step + 1
            images = self._images[rows]
            if self._recipe.augmentation:
                images = _moved(images, self._settings, self._generator)
            rate = self._rate * min(1.0, self.step / self._settings.warm_up)
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.zero_grad()
            F.cross_entropy(self.model(images).logits, self._labels[rows]).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.clip)
            with torch.no_grad():
                for p in self.model.parameters():
                    if p.dim() > 1:  # gains and biases are left alone, as usual
                        p.mul_(1 - rate * self._recipe.weight_decay)
            self._optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        """A copy."""
        return {n: p.detach().clone() for n, p in self.model.named_parameters()}

    def loss(self) -> float:
        """On the clean training digits."""
        images, labels = self._clean
        with torch.no_grad():
            return float(F.cross_entropy(self.model(images).logits.double(), labels))

    def back_to_level(self, before: dict[str, Tensor], loss: float) -> float:
        """Go back towards earlier weights, where the loss was above the level, as far as it stays at or below it."""
        after, low, high, level = self.weights(), 0.0, 1.0, self._settings.level
        for _ in range(_HALVINGS):
            if loss >= 0.99 * level:
                break
            middle = (low + high) / 2
            self._between(before, after, middle)
            found = self.loss()
            low, high, loss = (low, middle, found) if found <= level else (middle, high, loss)
        self._between(before, after, high)
        return loss

    def _between(self, before: dict[str, Tensor], after: dict[str, Tensor], share: float) -> None:
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                p.copy_(torch.lerp(before[n], after[n], share))


def _with_noise(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Other labels for some of the digits after the clean ones."""
    wrong = torch.rand(len(labels), generator=generator) < share
    wrong[:CLEAN] = False
    others = (labels + torch.randint(1, 10, labels.shape, generator=generator)) % 10
    return torch.where(wrong, others, labels)


def _moved(images: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """Each image turned and moved by its own random amount."""
    draws = torch.rand(len(images), 3, generator=generator) * 2 - 1
    angle, shift = draws[:, 0] * math.radians(settings.turn), draws[:, 1:] * (settings.move * 2 / images.shape[-1])
    rows = torch.stack([angle.cos(), -angle.sin(), shift[:, 0], angle.sin(), angle.cos(), shift[:, 1]], -1)
    grid = F.affine_grid(rows.view(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images + 1, grid, align_corners=False) - 1  # outside there is paper: -1
