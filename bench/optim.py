"""What a step of each rule costs beside the base optimizer's, on the bench ViT: CPU time and memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import spiritlevel as sl
from bench.costs import peak, seconds, small
from spiritlevel.optim import SAM, EMATeacherLoss, TrajectoryLoss, rules

LIMITS = {"SAM": 2.05, "LookSAM(5)": 1.3, "SAF": 1.05, "MESA": 1.4}
GEODESIC_LIMIT = 1.15  # of SAM


class _Setting:
    """A model of its own, AdamW, and one way to make a step."""

    def __init__(self, make: Callable[[_Setting], Callable[[], Any]]) -> None:
        self.model, (self.x, self.y) = small()
        self.base = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.step = make(self)

    def loss(self) -> Tensor:
        return F.cross_entropy(self.model(self.x).logits, self.y)

    def update(self, loss: Tensor) -> None:
        loss.backward()
        self.base.step()
        self.base.zero_grad()  # at the end, as SAM does: memory is compared from the same start


def _plain(s: _Setting) -> Callable[[], Any]:
    return lambda: s.update(s.loss())


def _sam(rule: rules.Rule) -> Callable[[_Setting], Callable[[], Any]]:
    def make(s: _Setting) -> Callable[[], Any]:
        sam = SAM(s.base, rule, model=s.model)
        return lambda: sam.step(s.loss)

    return make


def _esam(s: _Setting) -> Callable[[], Any]:
    sam = SAM(s.base, rules.ESAM(), model=s.model)

    def closure(rows: Tensor | None = None) -> Tensor:
        x, y = (s.x, s.y) if rows is None else (s.x[rows], s.y[rows])
        return F.cross_entropy(s.model(x).logits, y, reduction="none")

    return lambda: sam.step(closure)


def _saf(s: _Setting) -> Callable[[], Any]:
    extra = TrajectoryLoss(len(s.y), 10, lag=1, start=0)
    indices, epoch = torch.arange(len(s.y)), iter(range(1_000_000))

    def step() -> None:
        extra.set_epoch(next(epoch))
        logits = s.model(s.x).logits
        s.update(F.cross_entropy(logits, s.y) + extra(logits, indices))

    return step


def _mesa(s: _Setting) -> Callable[[], Any]:
    extra = EMATeacherLoss(s.model, s.base, start=0)

    def step() -> None:
        logits = s.model(s.x).logits
        s.update(F.cross_entropy(logits, s.y) + extra(logits, s.x))

    return step


SETTINGS: dict[str, Callable[[_Setting], Callable[[], Any]]] = {
    "SAM": _sam(rules.Plain()),
    "ASAM": _sam(rules.ASAM()),
    "LookSAM(5)": _sam(rules.LookSAM(every=5)),
    "SAM-ON": _sam(rules.NormOnly()),
    "ESAM": _esam,
    "SAF": _saf,
    "MESA": _mesa,
    "geodesic SAM": _sam(rules.GeodesicSAM(0.05, sl.Quotient())),
    "geodesic SAM, Riemannian": _sam(rules.GeodesicSAM(0.05, sl.Quotient(), riemannian=True)),
}


def optim(rounds: int = 3) -> dict[str, Any]:
    """Medians of ratios to the base step before and after each, five steps of every method a round (LookSAM's period).

    Memory is the peak of tensors within a step over that of the base step, in parameters. What stays between steps
    comes on top: one copy of the weights for the rules that move all of them, another for LookSAM, a teacher for MESA.
    """
    base = _Setting(_plain)
    base.step()
    parameters = sum(p.numel() * p.element_size() for p in base.model.parameters())
    alone = peak(base.step)
    ratios: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for name, make in SETTINGS.items():
        setting, ratios[name] = _Setting(make), []
        for _ in range(5 if name.startswith("Look") else 1):  # the first step of AdamW makes its state
            setting.step()
        memory[name] = (peak(setting.step) - alone) / parameters
        for _ in range(rounds):
            steps = 5 if name.startswith("Look") else 1
            pairs = [(seconds(setting.step), seconds(base.step)) for _ in range(steps)]
            ratios[name].append(sum(a for a, _ in pairs) / sum(b for _, b in pairs))
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    over = {name: medians[name] / medians["SAM"] for name in medians if name.startswith("geodesic")}
    return {
        "model": "ViT 192 x 6, batch 128, AdamW, float32, one thread",
        "step / base step": medians,
        "step / SAM step": over,
        "within": {
            **{name: medians[name] <= limit for name, limit in LIMITS.items()},
            **{name: ratio <= GEODESIC_LIMIT for name, ratio in over.items()},
        },
        "peak memory within a step above the base step, in parameters": memory,
        "all ratios": ratios,
    }
