"""The networks and methods that `spiritlevel.experiments.sam_digits` compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.geometry import Elementwise, Euclidean, Quotient
from spiritlevel.optim import SAM, EMATeacherLoss, TrajectoryLoss, rules
from spiritlevel.symmetry import find_symmetries

__all__ = ["BASE", "METHODS", "NETWORKS", "Evaluating", "Run", "Setting", "SmallNet", "SmallViT", "Step"]


@dataclass(frozen=True)
class Setting:
    """Everything that fixes a run.

    Attributes:
        examples: to train on; 1,297 others to test on.
        wrong: share of training labels that are random, so that there is something to over-fit.
        epochs: of training.
        batch: examples of a step.
        lr: of the base optimizers, SGD with momentum and AdamW, with a cosine to 0.
        seeds: of weights, order of examples, and wrong labels.
    """

    examples: int = 500
    wrong: float = 0.2
    epochs: int = 30
    batch: int = 25
    lr: tuple[float, float] = (0.05, 3e-3)
    seeds: int = 5


class SmallNet(nn.Module):
    """Two convolutions with batch norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.two, self.norm_two = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = torch.relu(self.norm_one(self.one(x)))
        x = torch.relu(self.norm_two(self.two(x)))
        out: Tensor = self.head(x.flatten(1))
        return out


class SmallViT(nn.Module):
    """Sixteen patches, two layers of four heads."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.layers(self.patches(x).flatten(2).mT + self.places)
        out: Tensor = self.head(self.norm(x.mean(1)))
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {"small net": SmallNet, "small ViT": SmallViT}


@dataclass
class Run:
    """A model that trains, and what a method needs."""

    model: nn.Module
    base: torch.optim.Optimizer
    data: tuple[Tensor, Tensor]
    setting: Setting


Step = Callable[[Tensor, int], Any]
"""One step on the examples with these indices, in this epoch."""


def _loss(run: Run, rows: Tensor) -> Tensor:
    x, y = run.data
    return F.cross_entropy(run.model(x[rows]), y[rows])


def _plain(run: Run) -> Step:
    def step(rows: Tensor, epoch: int) -> None:
        run.base.zero_grad()
        _loss(run, rows).backward()
        run.base.step()

    return step


def _with(make: Callable[[Run], rules.Rule], warmup: bool = False) -> Callable[[Run], Step]:
    def build(run: Run) -> Step:
        first = run.setting.epochs // 10 * (run.setting.examples // run.setting.batch) if warmup else 0
        sam = SAM(run.base, make(run), model=run.model, warmup=first)
        return lambda rows, epoch: sam.step(lambda: _loss(run, rows))

    return build


def _ssam(run: Run) -> Step:
    sam, seen = SAM(run.base, rules.SSAMF(0.1, sparsity=0.5), model=run.model), [-1]
    x, y = run.data

    def one(i: int) -> Tensor:
        return F.cross_entropy(run.model(x[i : i + 1]), y[i : i + 1])

    def step(rows: Tensor, epoch: int) -> None:
        if epoch > seen[0]:
            with Evaluating(run.model):  # one example has no batch statistics
                sam.update_mask(lambda i=int(i): one(i) for i in rows[:16])  # type: ignore[misc]
            seen[0] = epoch
        sam.step(lambda: _loss(run, rows))

    return step


class Evaluating:
    """Evaluation mode for a while."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._model.eval()

    def __exit__(self, *_: object) -> None:
        self._model.train()


def _saf(run: Run) -> Step:
    extra = TrajectoryLoss(run.setting.examples, 10, lag=2, start=max(2, run.setting.epochs // 10))

    def step(rows: Tensor, epoch: int) -> None:
        extra.set_epoch(epoch)
        x, y = run.data
        logits = run.model(x[rows])
        run.base.zero_grad()
        (F.cross_entropy(logits, y[rows]) + extra(logits, rows)).backward()
        run.base.step()

    return step


def _mesa(run: Run) -> Step:
    steps = run.setting.examples // run.setting.batch
    extra = EMATeacherLoss(run.model, run.base, beta=0.98, start=max(2, run.setting.epochs // 10) * steps)

    def step(rows: Tensor, epoch: int) -> None:
        x, y = run.data
        logits = run.model(x[rows])
        run.base.zero_grad()
        (F.cross_entropy(logits, y[rows]) + extra(logits, x[rows])).backward()
        run.base.step()

    return step


def _geodesic(run: Run) -> rules.Rule:
    """The heads of the ViT are quotiented; without attention it is the geodesic of the elementwise metric."""
    if not isinstance(run.model, SmallViT):
        return rules.GeodesicSAM(0.3, Elementwise("geodesic"))
    with Evaluating(run.model):
        blocks = find_symmetries(run.model, batch=(run.data[0][:4], run.data[1][:4]))
    return rules.GeodesicSAM(0.1, Quotient(blocks=blocks, rest=Euclidean()))


BASE = "base"
METHODS: dict[str, tuple[str, Callable[[Run], Step]]] = {
    BASE: ("SGD with momentum; AdamW for the ViT", _plain),
    "SAM": ("rho 0.1", _with(lambda run: rules.Plain(0.1))),
    "ASAM": ("rho 0.5, eta 0.01", _with(lambda run: rules.ASAM(0.5))),
    "SAM-ON": ("ASAM on norms, rho 1", _with(lambda run: rules.NormOnly(rules.ASAM(1.0)))),
    "SSAM": ("Fisher mask of half, rho 0.1, 16 examples an epoch", _ssam),
    "RSAM": ("rho 0.65, alpha 1.2, a tenth of the epochs without", _with(lambda run: rules.RSAM(), warmup=True)),
    "SAF": ("lag 2, tau 5, lambda 0.3", _saf),
    "MESA": ("beta 0.98, tau 5, lambda 0.8", _mesa),
    "geodesic SAM": ("ViT: heads quotiented, rho 0.1; else elementwise, rho 0.3", _with(_geodesic)),
}
