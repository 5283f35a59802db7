"""What the monitor costs in training, at its defaults, on the bench ViT: a reading in steps, and the share of a run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from bench.costs import seconds, small

LIMIT = 0.03
_READINGS = 2  # the run ends with so many; the budget says how many steps that takes


def _batch() -> tuple[Tensor, Tensor]:
    return small()[1]


def _training() -> tuple[nn.Module, Callable[[], None]]:
    """The bench ViT and a step of its training."""
    model, (x, y) = small()
    model.train()
    base = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        F.cross_entropy(model(x).logits, y).backward()
        base.step()
        base.zero_grad()

    return model, step


def readings(rounds: int = 3) -> dict[str, Any]:
    """What a reading costs in training steps, and the share that makes at the interval the budget then chooses.

    Steps and readings take turns, so that a machine that slows down slows both. Short; `monitor` is the whole run.
    """
    model, step = _training()
    watched = sl.Monitor(model, _batch(), every=1, budget=None, clock=time.process_time)
    seconds(step)
    first = seconds(watched.measure)
    rows = []
    for _ in range(rounds):
        before, reading, after = seconds(step), seconds(watched.measure), seconds(step)
        rows.append(reading / ((before + after) / 2))
    cost = statistics.median(rows)
    interval = -(-cost // (LIMIT * 100)) * 100
    return {
        "model": "ViT 192 x 6, batch 128, float32, one thread, AdamW",
        "a training step, CPU seconds": before,
        "the first reading with its set-up, in training steps": first / before,
        "a reading, in training steps": cost,
        "all ratios": rows,
        "steps between readings at 3 %": interval,
        "share of training time": cost / interval,
        "limit": LIMIT,
    }


def monitor(wanted: int = _READINGS, most: int = 3000) -> dict[str, Any]:
    """Train with the monitor at its defaults until it has read so often; all shares are within this one run.

    The share is taken when the last reading has just been paid for, which is when it is largest. Time in `Monitor.step`
    is counted from outside, and the monitor's own account of it is given beside.
    """
    model, step = _training()
    watched = sl.Monitor(model, _batch(), clock=time.process_time)
    step()  # the first step of AdamW makes its state
    watched.begin()
    training = inside = 0.0
    worst, steps = 0.0, 0
    while len(watched.readings) < wanted and steps < most:
        began = time.process_time()
        step()
        between = time.process_time()
        watched.step()
        training, inside, steps = training + between - began, inside + time.process_time() - between, steps + 1
        worst = max(worst, inside / training)
    each = training / steps
    return {
        "model": "ViT 192 x 6, batch 128, float32, one thread, AdamW",
        "steps": steps,
        "readings at steps": [r.step for r in watched.readings],
        "a training step, CPU seconds": each,
        "a reading, in training steps": watched.readings[-1].seconds / each if watched.readings else None,
        "share of training time at the end": inside / training,
        "largest share at any step": worst,
        "the monitor's own account": watched.budget.share,
        "limit": LIMIT,
    }
