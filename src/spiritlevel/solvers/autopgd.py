"""Auto-PGD (Croce & Hein 2020, Algorithm 1): projected gradient ascent with momentum that halves its step by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.core.spread import norm
from spiritlevel.errors import ArgumentError
from spiritlevel.solvers.ball import Ball, L2Ball
from spiritlevel.solvers.base import SOLVERS, Centre, Function, Solution, Solver, Trace

__all__ = ["AutoPGD"]


@SOLVERS.register("autopgd")
@dataclass(frozen=True)
class AutoPGD(Solver):
    """The published algorithm, right, in chart coordinates.

    ``y = P(z + eta g/|g|)``, then ``z <- P(z + alpha (y - z) + (1 - alpha)(z - z_previous))`` with ``alpha = 0.75`` and
    ``eta = 2 rho`` at first. At checkpoints the step is halved and the search goes back to the best point, where either
    too few of the last steps went up (condition 1) or neither step nor best value changed since the last checkpoint
    (condition 2).

    `AutoPGD.epfl` follows the public baseline instead (tml-epfl/sharpness-vs-generalization), for comparison.

    Args:
        steps: gradient evaluations, the one at the centre not counted (20 in the sharpness literature).
        momentum: alpha of the paper.
        step: first step as a multiple of the radius (Croce & Hein: 2).
        ratio: share of rising steps below which the step is halved (Croce & Hein: 0.75).
        tolerance: stop when the residual ``1 - cos(z, g)`` is below this; 0 never stops early, as published.
        restarts: further runs, each from a random point of the ball.
        baseline: imitate the public code (see `epfl`).
    """

    steps: int = 20
    momentum: float = 0.75
    step: float = 2.0
    ratio: float = 0.75
    tolerance: float = 0.0
    restarts: int = 0
    baseline: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.steps < 1 or self.restarts < 0:
            raise ArgumentError(f"expected steps >= 1 and restarts >= 0, got {self.steps} and {self.restarts}")
        if not 0 < self.momentum <= 1 or not 0 < self.ratio <= 1 or self.step <= 0 or self.tolerance < 0:
            raise ArgumentError(f"expected 0 < momentum, ratio <= 1, step > 0 and tolerance >= 0, got {self}")

    @classmethod
    def epfl(cls, steps: int = 20) -> AutoPGD:
        """The choices of the public baseline, those that make it find less included.

        Momentum pulls back to the previous iterate (and so shortens the first step), only new best values count as
        rising steps, halving takes the gradient at the best point but steps on from the last one, the direction is
        ``g |w|`` in weight space (steepest in Euclidean and not in adaptive length), and points outside go back by the
        Euclidean projection in weight space.
        """
        return cls(steps=steps, baseline=True)

    def _maximise(
        self,
        function: Function,
        ball: Ball,
        centre: Centre,
        start: Tensor | None,
        scales: Tensor | None,
        noise: Callable[[], Tensor] | None,
    ) -> Solution:
        trace = Trace(function, ball, centre)
        run = self._run_baseline if self.baseline else self._run
        status = run(trace, ball, centre, start, scales)
        for _ in range(self.restarts):
            if noise is None:
                raise ArgumentError("expected a source of noise for restarts, got none")
            status = run(trace, ball, None, ball.unit(noise()) * ball.radius, scales)
        return trace.solution(status)

    def _run(
        self,
        trace: Trace,
        ball: Ball,
        centre: Centre | None,
        start: Tensor | None,
        scales: Tensor | None,
    ) -> Status:
        del scales
        (z, value, g), left = _begin(trace, ball, centre, start, self.steps)
        if left == 0:
            return Status.BUDGET
        best, best_g, previous = z, g, z
        best_value, eta, rising = value, self.step * ball.radius, 0
        checkpoints, last, kept = _checkpoints(left), 0, (eta, best_value)
        for k in range(1, left + 1):
            y = ball.project(z + eta * ball.unit(g))
            pushed = z + self.momentum * (y - z) + (1 - self.momentum) * (z - previous)
            previous, z = z, y if k == 1 else ball.project(pushed)
            new_value, g = trace(z)
            rising += new_value > value
            value = new_value
            if value > best_value:
                best, best_g, best_value = z, g, value
            if self.tolerance and trace.residual <= self.tolerance:
                return Status.CONVERGED
            if k in checkpoints:
                state = (eta, best_value)
                if rising < self.ratio * (k - last) or state == kept:
                    # momentum starts anew: from the last iterate to the best one is no direction of ascent
                    eta, z, g, value, previous = eta / 2, best, best_g, best_value, best
                last, kept, rising = k, state, 0
        return Status.BUDGET

    def _run_baseline(
        self,
        trace: Trace,
        ball: Ball,
        centre: Centre | None,
        start: Tensor | None,
        scales: Tensor | None,
    ) -> Status:
        (z, _, g), left = _begin(trace, ball, centre, start, self.steps)
        scale = torch.ones_like(z) if scales is None else scales
        best_g, best_value, previous = g, trace.value, torch.zeros_like(z)
        eta, rising = self.step * ball.radius, 0
        checkpoints, last, kept = _checkpoints(left, rounded=False), 0, (eta, best_value)
        for k in range(1, left + 1):
            y = _euclidean_projection(z + eta * _unscaled(ball, g, scale), ball, scale)
            previous, z = z, self.momentum * y + (1 - self.momentum) * previous
            value, g = trace(z)
            if value > best_value:
                best_g, best_value, rising = g, value, rising + 1
            if k in checkpoints:
                state = (eta, best_value)
                if rising < self.ratio * (k - last) or state == kept:
                    eta, g = eta / 2, best_g
                last, kept, rising = k, state, 0
        return Status.BUDGET


def _begin(
    trace: Trace, ball: Ball, centre: Centre | None, start: Tensor | None, steps: int
) -> tuple[tuple[Tensor, float, Tensor], int]:
    """First point with value and gradient, and how many evaluations are left."""
    if start is None:
        assert centre is not None
        gradient = centre.take()
        return (torch.zeros_like(gradient), centre.value, gradient), steps
    z = ball.project(start)
    return (z, *trace(z)), steps - 1


def _checkpoints(steps: int, rounded: bool = True) -> set[int]:
    """``w_j = ceil(p_j n)``, ``p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)``.

    The public baseline takes 0.7 * 20 for more than 14 and checks one step later, as does ``rounded=False``.

    >>> sorted(_checkpoints(20)), sorted(_checkpoints(20, rounded=False))
    ([5, 9, 12, 14, 16, 18, 19, 20], [5, 9, 12, 15, 16, 18, 19, 20])
    """
    before, now, found = 0.0, 0.22, set()
    while now <= 1:
        found.add(math.ceil(round(now * steps, 9) if rounded else now * steps))
        before, now = now, now + max(now - before - 0.03, 0.06)
    return found


def _unscaled(ball: Ball, g: Tensor, scale: Tensor) -> Tensor:
    """The baseline's direction: with ``g_w = g / s`` the step in z is ``g_w / |g_w|``."""
    if not isinstance(ball, L2Ball):
        return ball.unit(g)
    steep = torch.where(scale > 0, g / torch.where(scale > 0, scale, 1), 0)
    return steep / (norm(steep) + 1e-12)


def _euclidean_projection(z: Tensor, ball: Ball, scale: Tensor) -> Tensor:
    """The point of the ball nearest in ``sum s^2 (x - z)^2``: ``x = z s^2 / (s^2 + mu)`` by bisection on mu."""
    if not isinstance(ball, L2Ball) or norm(z) <= ball.radius:
        return ball.project(z)
    square, low, high = scale**2, 0.0, 1.0
    while norm(z * square / (square + high)) > ball.radius:
        high *= 10
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if norm(z * square / (square + middle)) > ball.radius else (low, middle)
    return z * square / (square + high)
