"""The loss pulled back to the coordinates of a chart: what every measure is taken of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from spiritlevel.errors import DerivativeError
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
        self._terms = 0 if batch is not None else sum(problem.terms(b) for b in problem.batches())

    def _parts(self) -> Iterator[tuple[Any, float]]:
        """Micro-batches and the share each has in the mean."""
        if self._batch is not None:
            yield from self.problem.parts(self._batch)
            return
        for batch in self.problem.batches():
            weight = self.problem.terms(batch) / self._terms
            yield from ((part, share * weight) for part, share in self.problem.parts(batch))

    def __call__(self, z: Tensor) -> tuple[float, Tensor]:
        """Value and gradient at ``z``. Either may be non-finite: that is for the caller to judge."""
        self.evaluations += 1
        self._last = None
        moved, pull_back = self.chart.evaluate(z)
        weights = {n: w.detach().requires_grad_() for n, w in moved.items()}
        names, total = list(weights), 0.0
        gradient: dict[str, Tensor] = {}
        for part, share in self._parts():
            with torch.enable_grad():
                loss = self.problem.tensor(weights, part) * share
            total += float(loss.detach())
            pulled = torch.autograd.grad(loss, [weights[n] for n in names], materialize_grads=True)
            for n, g in zip(names, pulled, strict=True):
                gradient[n] = gradient[n] + g if n in gradient else g
            del loss, pulled
        del weights, moved
        self._last = gradient
        return total, pull_back(gradient)

    def curvature(self, z: Tensor, v: Tensor) -> Tensor:
        """The Hessian of ``f`` at ``z`` times ``v``, by reverse over reverse; about three gradients.

        At ``z = 0`` this is the Riemannian Hessian on the horizontal space.

        Raises:
            DerivativeError: where a part of the model has no second derivative, with what to switch.
        """
        product = torch.zeros_like(z)
        for part, share in self._parts():
            with torch.enable_grad():
                point = z.detach().requires_grad_()
                loss = self.problem.tensor(self.chart.weights(point), part) * share
                (gradient,) = torch.autograd.grad(loss, point, create_graph=True)
                with _second_derivatives():
                    (piece,) = torch.autograd.grad(gradient, point, v, materialize_grads=True)
            product += piece
        return product

    def value(self, z: Tensor) -> float:
        """``f(z)`` alone, by one forward pass; may be non-finite."""
        with torch.no_grad():
            weights = self.chart.weights(z)
            return math.fsum(share * float(self.problem.tensor(weights, part)) for part, share in self._parts())


@contextmanager
def _second_derivatives() -> Iterator[None]:
    """A missing second derivative comes out as one of our errors, with the way around it."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "attention" in text and "not implemented" in text:
            raise DerivativeError(
                "expected an attention kernel with second derivatives, got torch's fused one: run inside 'with "
                "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):', or load the model with "
                "attn_implementation='eager'"
            ) from error
        if "not implemented" in text or "does not require grad" in text:
            raise DerivativeError(
                f"expected every part of the model to have a second derivative, but: {text.splitlines()[0]}"
            ) from error
        raise
