"""What the reparametrisation experiments share: digits, small networks, training, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from scipy.stats import t as student
from torch import Tensor, nn

from spiritlevel.errors import MissingDependencyError

__all__ = ["Split", "accuracy", "digits", "interval", "lenet", "mean", "train"]

Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def digits(examples: int) -> Split:
    """Scikit-learn's 8 x 8 digits, shuffled once: so many for training, the next 500 for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'scikit-learn' for this experiment: pip install 'spiritlevel[demo]'"
        ) from error
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return (images[:examples], labels[:examples]), (images[-500:], labels[-500:])


def lenet(seed: int) -> nn.Module:
    """LeNet, cut down to 8 x 8 images: two convolutions, three linear layers, 7 832 weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 42), nn.ReLU(), nn.Linear(42, 10),
        )  # fmt: skip


def train(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    make: Callable[[Any], torch.optim.Optimizer],
    epochs: int,
    seed: int,
    batch: int = 32,
) -> torch.optim.Optimizer:
    """Cosine annealing over all steps, as in the paper; returns the optimiser with its state."""
    optimiser = make(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    images, labels = data
    steps = epochs * -(-len(labels) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(batch):
            optimiser.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimiser.step()
            schedule.step()
    model.eval()
    return optimiser


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """In per cent."""
    with torch.no_grad():
        return 100 * float((model(data[0]).argmax(-1) == data[1]).float().mean())


def mean(values: Sequence[float]) -> float:
    """Of some numbers."""
    return math.fsum(values) / len(values)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the mean, by Student's t.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    n, centre = len(values), mean(values)
    if n < 2:
        return -math.inf, math.inf
    spread = math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (n - 1) / n)
    half = float(student.ppf(0.975, n - 1)) * spread
    return centre - half, centre + half
