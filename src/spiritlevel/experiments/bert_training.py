"""Fine-tunings of one encoder that differ by a seed alone: that of the last map, and of the order of the examples."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.core.tensors import all_finite
from spiritlevel.errors import ArgumentError
from spiritlevel.experiments.zoo_folder import Trained
from spiritlevel.experiments.zoo_level import at_level

__all__ = ["END", "LEVEL", "Setting", "fine_tuned"]

END, LEVEL = "end", "level"
"""The designs: each network where its training ends, and where its training loss first is at the level."""
_SPREAD = 0.02  # of the first weights of the classifier, as in BERT


@dataclass(frozen=True)
class Setting:
    """What all networks of a task have in common. The paper took finished networks; all numbers are ours.

    Attributes:
        networks: how many are fine-tuned; 35 in the paper.
        layers: how many of the encoder's six are kept.
        length: tokens of an input.
        training: examples.
        test: examples of the test set, and of each shifted set.
        looked: the first of the training examples: their loss is what the level is.
        level: the training loss (mean cross-entropy of those examples) of the second design.
        every: steps between two looks at that loss.
        step: examples of a step.
        epochs: over the training examples.
        rate: highest learning rate of AdamW, after a tenth of the steps, and from there straight to 0.
        decay: of the weights.
        clip: longest gradient.
    """

    networks: int
    layers: int
    length: int
    training: int
    test: int
    level: float
    looked: int = 128
    every: int = 10
    step: int = 8
    epochs: int = 3
    rate: float = 5e-4
    decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.level > 0 or self.every < 1 or self.networks < 1:
            raise ArgumentError(f"expected a level above 0, and networks and every from 1 on, got {self}")
        if not 0 < self.looked <= self.training:
            raise ArgumentError(f"expected to look at 1 to {self.training} examples, got {self.looked}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def fine_tuned(first: nn.Module, data: Mapping[str, Tensor], seed: int, setting: Setting) -> Trained:
    """One training of all epochs, with the network at the level kept on the way, where it gets there.

    Dropout is off, which halves the steps that are needed, so that nothing but the seed's two choices is random.
    """
    began, run = time.process_time(), _Run(first, data, seed, setting)
    models: dict[str, nn.Module] = {}
    reached: dict[str, float] = {}
    while run.step < run.total:
        before = run.weights()
        run.stretch(min(setting.every, run.total - run.step))
        if LEVEL not in models and (loss := run.loss(run.model)) <= setting.level:
            models[LEVEL], at = at_level(run.model, before, run.loss, loss, setting.level)
            reached = {"loss at level": at, "steps to level": run.step}
    loss = run.loss(run.model)
    if math.isfinite(loss) and all_finite(run.weights().values()):
        models[END] = run.model
    facts = {"seed": seed, "steps": run.step, "loss": loss, **reached, "seconds": time.process_time() - began}
    return Trained(models, facts)


class _Run:
    """A network in fine-tuning."""

    def __init__(self, first: nn.Module, data: Mapping[str, Tensor], seed: int, setting: Setting) -> None:
        self._data, self._setting = data, setting
        self._generator = torch.Generator().manual_seed(seed)
        self.model = copy.deepcopy(first).eval()
        head: Any = self.model.classifier
        with torch.no_grad():
            head.weight.normal_(0, _SPREAD, generator=self._generator)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), setting.rate, weight_decay=setting.decay, fused=True
        )
        self.step, self.total = 0, setting.epochs * -(-setting.training // setting.step)
        self._order: list[Tensor] = []

    def stretch(self, steps: int) -> None:
        """So many steps."""
        for _ in range(steps):
            if not self._order:
                order = torch.randperm(self._setting.training, generator=self._generator)
                self._order = list(order.split(self._setting.step))
            rows, self.step = self._order.pop(), self.step + 1
            self._optimizer.param_groups[0]["lr"] = self._setting.rate * self._share()
            self._optimizer.zero_grad()
            self._loss(self.model, rows).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self._setting.clip)
            self._optimizer.step()

    def _share(self) -> float:
        """Of the learning rate."""
        warm = max(self.total // 10, 1)
        return min(self.step / warm, (self.total - self.step + 1) / (self.total - warm + 1))

    def _loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        batch = {n: a[rows] for n, a in self._data.items()}
        longest = int(batch["attention_mask"].sum(1).max())  # padding in common costs time only
        labels = batch.pop("labels")
        return F.cross_entropy(model(**{n: a[:, :longest] for n, a in batch.items()}).logits.double(), labels)

    def weights(self) -> dict[str, Tensor]:
        """A copy."""
        return {n: p.detach().clone() for n, p in self.model.named_parameters()}

    def loss(self, model: nn.Module) -> float:
        """On the examples that are looked at."""
        with torch.no_grad():
            return float(self._loss(model, torch.arange(self._setting.looked)))
