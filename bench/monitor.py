"""What the monitor costs in training, at its defaults, on the bench ViT: the share of one run's CPU time."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import spiritlevel as sl
from bench.costs import small

LIMIT = 0.03
_READINGS = 2  # the run ends with so many; the budget says how many steps that takes


def monitor(readings: int = _READINGS, most: int = 3000) -> dict[str, Any]:
    """Train with the monitor at its defaults until it has read so often; all shares are within this one run.

    The share is taken when the last reading has just been paid for, which is when it is largest. Time in `Monitor.step`
    is counted from outside, and the monitor's own account of it is given beside.
    """
    model, (x, y) = small()
    model.train()
    base = torch.optim.AdamW(model.parameters(), lr=1e-4)
    watched = sl.Monitor(model, (x, y), clock=time.process_time)

    def step() -> Tensor:
        loss = F.cross_entropy(model(x).logits, y)
        loss.backward()
        base.step()
        base.zero_grad()
        return loss.detach()

    step()  # the first step of AdamW makes its state
    watched.begin()
    training = inside = 0.0
    worst, steps = 0.0, 0
    while len(watched.readings) < readings and steps < most:
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
