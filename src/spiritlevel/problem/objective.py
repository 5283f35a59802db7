"""The loss pulled back to the coordinates of a chart: what every measure is taken of."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from spiritlevel.geometry import Chart
from spiritlevel.problem.problem import Problem

__all__ = ["Objective"]


class Objective:
    """The loss in the coordinates of a chart: ``z -> f(z)`` and its gradient.

    Args:
        problem: model, loss and data.
        chart: from `Problem.chart`.
        batch: the batch it is the loss of; None for the mean over all batches of the problem, each weighted by its
            number of loss terms.

    Attributes:
        evaluations: how many gradients were computed.
    """

    def __init__(self, problem: Problem, chart: Chart, batch: Any = None) -> None:
        self.problem, self.chart = problem, chart
        self.evaluations = 0
        self._batch = batch
        # Kept from one evaluation to the next, as training keeps gradients from step to step: without anything behind
        # the activations, the C library gives their pages back, and fetching them anew costs 5 % of a pass.
        self._last: dict[str, Tensor] | None = None

    def __call__(self, z: Tensor) -> tuple[float, Tensor]:
        """Value and gradient at ``z``. Either may be non-finite: that is for the caller to judge."""
        self.evaluations += 1
        self._last = None
        moved, pull_back = self.chart.evaluate(z)
        weights = {n: w.detach().requires_grad_() for n, w in moved.items()}
        names, total = list(weights), 0.0
        gradient: dict[str, Tensor] = {}
        for part, share in self.problem.shares(self._batch):
            with torch.enable_grad():
                loss = self.problem.tensor(weights, part) * share
            total += float(loss.detach())
            pulled = torch.autograd.grad(loss, [weights[n] for n in names], materialize_grads=True)
            for n, g in zip(names, pulled, strict=True):
                gradient[n] = gradient[n] + g if n in gradient else g
            del loss, pulled
        if not gradient:  # a rank without examples
            gradient = {n: torch.zeros_like(w) for n, w in moved.items()}
        del weights, moved
        self._last = gradient
        return self.problem.joined("a gradient", total, pull_back(gradient))

    def value(self, z: Tensor) -> float:
        """``f(z)`` alone, by one forward pass; may be non-finite."""
        with torch.no_grad():
            weights = self.chart.weights(z)
            total = math.fsum(
                share * float(self.problem.tensor(weights, part)) for part, share in self.problem.shares(self._batch)
            )
        return self.problem.joined("a value", total)[0]
