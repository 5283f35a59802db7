"""Training for the zoo of vision transformers: one network on turned clothes, and its fine-tunings on upright ones."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.core.tensors import all_finite
from spiritlevel.demo.model import small_vit
from spiritlevel.errors import ArgumentError
from spiritlevel.experiments.fashion import Bytes, Labels, scaled
from spiritlevel.experiments.vit_recipes import Recipe
from spiritlevel.experiments.zoo_folder import Trained
from spiritlevel.experiments.zoo_level import at_level

__all__ = ["END", "LEVEL", "Setting", "error_of", "fine_tuned", "pretrained", "turned"]

END, LEVEL = "end", "level"
"""The designs: each network where its training ends, and where its training loss first is at the level."""


@dataclass(frozen=True)
class Setting:
    """What all networks have in common. The numbers are ours.

    Attributes:
        networks: how many are fine-tuned.
        pretraining: images of the training part that the first network learns from; no other network sees them.
        pretraining_epochs: over them.
        held_out: further images, on which the pretrained network is judged.
        training: further images, which all others are fine-tuned on.
        test: images of the test part, plain and in each shift.
        measured: the first of the training images: their loss is what the level is, and sharpness is taken on the first
            half of them.
        batch: images in a batch when measuring: the m of m-sharpness.
        level: the training loss (mean cross-entropy of the measured images, in evaluation mode) of the second design.
        every: steps between two looks at that loss.
        step: images of a step of fine-tuning.
        clip: longest gradient.
        epochs: fewest and most of a fine-tuning.
        more: epochs that one that is not at the level may go on for.
        hidden: width of the networks.
        layers: their depth.
        heads: of each layer.
        spread: standard deviation of the first weights.
    """

    networks: int = 76
    pretraining: int = 40_000
    pretraining_epochs: int = 12
    held_out: int = 2_000
    training: int = 2_560
    test: int = 2_500
    measured: int = 512
    batch: int = 128
    level: float = 0.35
    every: int = 10
    step: int = 64
    clip: float = 1.0
    epochs: tuple[int, int] = (3, 12)
    more: int = 6
    hidden: int = 48
    layers: int = 2
    heads: int = 4
    spread: float = 0.08

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.level > 0 or self.every < 1 or self.networks < 1:
            raise ArgumentError(f"expected a level above 0, and networks and every from 1 on, got {self}")
        if not 0 < self.measured <= self.training:
            raise ArgumentError(f"expected to measure on 1 to {self.training} images, got {self.measured}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "epochs": list(self.epochs)}

    def model(self) -> nn.Module:
        """A network with random weights, from torch's own generator."""
        return small_vit(self.hidden, self.layers, self.heads, image=28, patch=7, spread=self.spread)


def turned(images: Bytes, rng: np.random.Generator) -> Tensor:
    """Each image turned by a random number of quarter turns."""
    turns = rng.integers(0, 4, len(images))
    out = np.empty_like(images)
    for k in range(4):
        out[turns == k] = np.rot90(images[turns == k], k, axes=(1, 2))
    return torch.from_numpy(scaled(out))


def pretrained(images: Bytes, labels: Labels, setting: Setting, seed: int, on_epoch: Callable[[], None]) -> nn.Module:
    """A network that learned to name turned clothes, with AdamW; they are turned anew in each epoch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = setting.model().eval()
    rng = np.random.default_rng(seed)
    size, rate = 128, 2e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    total = setting.pretraining_epochs * -(-len(images) // size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=total)
    for _ in range(setting.pretraining_epochs):
        order = rng.permutation(len(images))
        x, y = turned(images[order], rng), torch.from_numpy(labels[order])
        for rows in torch.arange(len(x)).split(size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]).logits, y[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
            optimizer.step()
            schedule.step()
        on_epoch()
    return model


def error_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of wrong answers."""
    with torch.no_grad():
        wrong = [(model(x[rows]).logits.argmax(1) != y[rows]).sum() for rows in torch.arange(len(x)).split(256)]
    return float(sum(wrong)) / len(x)


def fine_tuned(first: nn.Module, data: tuple[Tensor, Tensor], recipe: Recipe, setting: Setting) -> Trained:
    """One training, with the network kept where its epochs end, and where it first is at the level.

    The loss on the measured images is looked at every so many steps. On the stretch on which it first falls below the
    level, the point where it is at the level, to within 1 % and not above it, is found by bisection between the weights
    at both ends. A training that is not there when its epochs end goes on from there, for the second design only, as a
    new one without augmentation, mixup and label smoothing, which may keep the plain loss from ever getting there.
    """
    began, run = time.process_time(), _Run(first, data, recipe, setting)
    models, facts = _trained(run, setting)
    loss = run.loss()
    if math.isfinite(loss) and all_finite(run.weights().values()):
        models[END] = run.model
        if LEVEL not in models:
            later = _Run(run.model, data, _plain(recipe, setting), setting)
            late, late_facts = _trained(later, setting, to_level=True)
            models |= late
            facts |= {f"{name}, plain": value for name, value in late_facts.items()}
    seconds = time.process_time() - began
    return Trained(models, {**recipe.to_dict(), "steps": run.total, "loss": loss, **facts, "seconds": seconds})


def _plain(recipe: Recipe, setting: Setting) -> Recipe:
    """The same for so many epochs more, on the images as they are."""
    return replace(recipe, augmentation=0.0, mixup=0.0, label_smoothing=0.0, epochs=setting.more)


def _trained(run: _Run, setting: Setting, to_level: bool = False) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """Train for all epochs, or no further than to the level, and keep the network at the level."""
    models: dict[str, nn.Module] = {}
    facts: dict[str, Any] = {}
    while run.step < run.total and not (to_level and models):
        before = run.weights()
        run.stretch(min(setting.every, run.total - run.step))
        if LEVEL not in models and (loss := run.loss()) <= setting.level:
            models[LEVEL], facts["loss at level"] = at_level(run.model, before, run.loss, loss, setting.level)
            facts["steps to level"] = run.step
    return models, facts


class _Run:
    """A network in fine-tuning."""

    def __init__(self, first: nn.Module, data: tuple[Tensor, Tensor], recipe: Recipe, setting: Setting) -> None:
        self._recipe, self._setting, (self._x, self._y) = recipe, setting, data
        self._generator = torch.Generator().manual_seed(recipe.seed)
        self._rng = np.random.default_rng(recipe.seed)
        self.model = copy.deepcopy(first).eval()
        parameters = list(self.model.parameters())
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, recipe.learning_rate, weight_decay=0.0)
            if recipe.optimizer == "adamw"
            else torch.optim.SGD(parameters, recipe.learning_rate, momentum=0.9, nesterov=True)
        )
        self.step, self.total = 0, recipe.epochs * -(-len(self._x) // setting.step)
        self._order: list[Tensor] = []

    def stretch(self, steps: int) -> None:
        """So many steps."""
        for _ in range(steps):
            if not self._order:
                order = torch.randperm(len(self._x), generator=self._generator)
                self._order = list(order.split(self._setting.step))
            rows, self.step = self._order.pop(), self.step + 1
            rate = self._recipe.learning_rate * self._share()
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.zero_grad()
            self._objective(rows).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self._setting.clip)
            with torch.no_grad():
                for p in self.model.parameters():
                    if p.dim() > 1:  # gains and biases are left alone, as usual
                        p.mul_(1 - rate * self._recipe.weight_decay)
            self._optimizer.step()

    def _share(self) -> float:
        """Of the learning rate: a warm-up over a twentieth of the steps, then a cosine to 0."""
        warm = max(self.total // 20, 1)
        if self.step <= warm:
            return self.step / warm
        return 0.5 * (1 + math.cos(math.pi * (self.step - warm) / (self.total - warm + 1)))

    def _objective(self, rows: Tensor) -> Tensor:
        x, y = self._x[rows], self._y[rows]
        recipe = self._recipe
        if recipe.augmentation:
            x = _augmented(x, recipe.augmentation, self._generator)
        if not recipe.mixup:
            return F.cross_entropy(self.model(x).logits, y, label_smoothing=recipe.label_smoothing)
        share = float(self._rng.beta(recipe.mixup, recipe.mixup))
        other = torch.randperm(len(x), generator=self._generator)
        logits = self.model(share * x + (1 - share) * x[other]).logits
        losses = [F.cross_entropy(logits, z, label_smoothing=recipe.label_smoothing) for z in (y, y[other])]
        return share * losses[0] + (1 - share) * losses[1]

    def weights(self) -> dict[str, Tensor]:
        """A copy."""
        return {n: p.detach().clone() for n, p in self.model.named_parameters()}

    def loss(self, model: nn.Module | None = None) -> float:
        """On the measured images."""
        count = self._setting.measured
        with torch.no_grad():
            logits = (model or self.model)(self._x[:count]).logits.double()
            return float(F.cross_entropy(logits, self._y[:count]))


def _augmented(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Each image turned and moved by its own random amount."""
    draws = torch.rand(len(x), 3, generator=generator) * 2 - 1
    angle, shift = draws[:, 0] * math.radians(10) * strength, draws[:, 1:] * (strength * 2 * 2 / x.shape[-1])
    rows = torch.stack([angle.cos(), -angle.sin(), shift[:, 0], angle.sin(), angle.cos(), shift[:, 1]], 1)
    grid = F.affine_grid(rows.view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x + 1, grid, align_corners=False) - 1  # outside there is the background: -1
