"""Auto-PGD on many functions at once: one row for each, every step a few operations on all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.errors import ArgumentError
from spiritlevel.solvers.autopgd import AutoPGD, _checkpoints
from spiritlevel.solvers.ball import Ball, L2Ball
from spiritlevel.solvers.base import Solution

__all__ = ["Functions", "maximise_together"]

Functions = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Values (rows,) and gradients (rows, coordinates) at one point for each function."""


def maximise_together(
    solver: AutoPGD,
    functions: Functions,
    ball: Ball,
    values: Tensor,
    gradients: Tensor,
    starts: Tensor | None = None,
) -> list[Solution]:
    """What ``solver.maximise`` finds for each function by itself, up to rounding.

    Every row keeps its own step, its own best point and its own decisions. Cost: ``solver.steps`` evaluations of all
    functions; a row that has ended is evaluated on, and what comes is not looked at.

    Args:
        solver: without restarts, and not the public baseline.
        functions: values and gradients of all rows.
        ball: where to look, for all rows.
        values: at 0, computed before.
        gradients: at 0.
        starts: points to begin at; a row of zeros begins at the centre.
    """
    if solver.baseline or solver.restarts:
        raise ArgumentError(f"expected Auto-PGD as published and without restarts, got {solver}: run it one by one")
    run = _Rows(functions, ball, values, gradients)
    state = _begin(run, starts)
    left = torch.where(state.started, solver.steps - 1, solver.steps)
    tables = {n: _checkpoints(n) for n in set(left.tolist())}
    eta = torch.full_like(run.best, solver.step * ball.radius)
    last, rising = torch.zeros_like(left), torch.zeros_like(left)
    kept = eta, run.best.clone()
    run.live = left > 0
    previous, best, best_g = state.z, state.z, state.g
    best_value = state.value
    for k in range(1, int(left.max()) + 1):
        run.live &= k <= left
        if not bool(run.live.any()):
            break
        y = run.project(state.z + eta[:, None] * run.unit(state.g))
        pushed = run.project(state.z + solver.momentum * (y - state.z) + (1 - solver.momentum) * (state.z - previous))
        previous, z = state.z, y if k == 1 else pushed
        value, g = run(z)
        rising = rising + (value > state.value)
        better = value > best_value
        best, best_g = torch.where(better[:, None], z, best), torch.where(better[:, None], g, best_g)
        best_value = torch.where(better, value, best_value)
        state = _State(z, value, g, state.started)
        if solver.tolerance:
            run.converge(solver.tolerance)
        here = torch.tensor([k in tables[n] for n in left.tolist()], device=value.device)
        if not bool(here.any()):
            continue
        same = (eta == kept[0]) & (best_value == kept[1])
        before = eta, best_value
        halve = here & ((rising < solver.ratio * (k - last)) | same)
        eta = torch.where(halve, eta / 2, eta)
        back = halve[:, None]
        state = _State(
            torch.where(back, best, state.z),
            torch.where(halve, best_value, state.value),
            torch.where(back, best_g, state.g),
            state.started,
        )
        previous = torch.where(back, best, previous)
        last, rising = torch.where(here, k, last), torch.where(here, 0, rising)
        kept = torch.where(here, before[0], kept[0]), torch.where(here, before[1], kept[1])
    return run.solutions()


@dataclass(frozen=True)
class _State:
    """Where each row is; ``started`` where it began at a given point rather than at the centre."""

    z: Tensor
    value: Tensor
    g: Tensor
    started: Tensor


def _begin(run: _Rows, starts: Tensor | None) -> _State:
    zeros = torch.zeros_like(run.z)
    started = torch.zeros_like(run.live) if starts is None else starts.ne(0).any(1)
    if starts is None or not bool(started.any()):
        return _State(zeros, run.best.clone(), run.gradients, started)
    run.live = started
    z = run.project(starts)
    centre = run.best.clone()
    value, g = run(z)
    mask = started[:, None]
    return _State(
        torch.where(mask, z, zeros),
        torch.where(started, value, centre),
        torch.where(mask, g, run.gradients),
        started,
    )


@dataclass
class _Rows:
    """Evaluates all rows, counts for those that are live, and keeps the best point of each."""

    functions: Functions
    ball: Ball
    best: Tensor
    gradients: Tensor
    z: Tensor = field(init=False)
    residual: Tensor = field(init=False)
    live: Tensor = field(init=False)
    nonfinite: Tensor = field(init=False)
    converged: Tensor = field(init=False)
    history: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the centre."""
        self.best = self.best.double()
        self.z, self.residual = torch.zeros_like(self.gradients), torch.ones_like(self.best)
        self.live = torch.ones_like(self.best, dtype=torch.bool)
        self.nonfinite, self.converged = torch.zeros_like(self.live), torch.zeros_like(self.live)
        self.history = [[] for _ in self.best]

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = self.functions(z)
        values, sizes = values.double(), self.dual(gradients)
        bad = ~(torch.isfinite(values) & torch.isfinite(sizes))
        for row, value in zip(self.live.nonzero().view(-1).tolist(), values[self.live].tolist(), strict=True):
            self.history[row].append(value)
        self.nonfinite |= bad & self.live
        values = torch.where(bad, -torch.inf, values)
        gradients = torch.where(bad[:, None], torch.zeros_like(gradients), gradients)
        better = self.live & (values > self.best)
        if bool(better.any()):
            scale = self.ball.radius * sizes
            along = (z.double() * gradients.double()).sum(1)
            residual = torch.where(scale == 0, 0.0, 1 - along / torch.where(scale == 0, 1.0, scale))
            self.best = torch.where(better, values, self.best)
            self.z = torch.where(better[:, None], z, self.z)
            self.residual = torch.where(better, residual, self.residual)
        return values, gradients

    def dual(self, g: Tensor) -> Tensor:
        """The dual norm of each row."""
        order = 2 if isinstance(self.ball, L2Ball) else 1
        sizes: Tensor = torch.linalg.vector_norm(g, order, dim=1, dtype=torch.float64)
        return sizes

    def unit(self, g: Tensor) -> Tensor:
        """The furthest point of the unit ball along each row; zero where that is."""
        if not isinstance(self.ball, L2Ball):
            return g.sign()
        size = self.dual(g)
        return g / torch.where(size > 0, size, 1.0)[:, None].to(g.dtype)

    def project(self, z: Tensor) -> Tensor:
        """The nearest point of the ball, for each row."""
        if not isinstance(self.ball, L2Ball):
            return z.clamp(-self.ball.radius, self.ball.radius)
        size = torch.linalg.vector_norm(z, dim=1, dtype=torch.float64)
        shrink = torch.where(size > self.ball.radius, self.ball.radius / size, 1.0)
        return z * shrink[:, None].to(z.dtype)

    def converge(self, tolerance: float) -> None:
        """End the rows whose best point is good enough."""
        self.converged |= self.live & (self.residual <= tolerance)
        self.live = self.live & ~self.converged

    def solutions(self) -> list[Solution]:
        """What was found."""
        found = []
        for row, history in enumerate(self.history):
            status = Status.CONVERGED if self.converged[row] else Status.BUDGET
            status = Status.NONFINITE if self.nonfinite[row] else status
            value, residual = float(self.best[row]), float(self.residual[row])
            found.append(Solution(self.z[row], value, residual, status, len(history), tuple(history)))
        return found
