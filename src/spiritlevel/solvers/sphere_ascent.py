"""Ascent on the sphere: fixed-point steps from a gradient predicted by two secants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core import spread
from spiritlevel.core.results import Status
from spiritlevel.core.tensors import dot as dot_here
from spiritlevel.errors import ArgumentError
from spiritlevel.solvers.ball import Ball, L2Ball
from spiritlevel.solvers.base import SOLVERS, Centre, Function, Solution, Solver, Trace
from spiritlevel.solvers.packed import Packed
from spiritlevel.solvers.secants import Frame, Model, Proposal, chunks

__all__ = ["SphereAscent"]

_ROUNDING = 8.0  # ours: values this many roundings apart are the same, and the residual decides


@SOLVERS.register("sphere")
@dataclass(frozen=True)
class SphereAscent(Solver):
    """Ours: the power method for functions, with the gradient extrapolated along what it has seen.

    Maximisers are fixed points of ``z <- rho g(z)/|g(z)|``. The step is ``z <- rho g*/|g*|``, where ``g* = g + Y c`` is
    the gradient predicted at the maximum ``z + S c`` of a quadratic model in the plane of two secants ``Y ~ H S``, to
    the other ends of the last two steps (see `Model.step`). A step that falls serves as a secant; after two in a row
    come short steps ``z <- P(z + g/tau)``, which also lead inside the ball where the function falls outwards. It finds
    local maxima, as does every solver with 20 evaluations. On other balls it is the conditional-gradient method with a
    line search.

    Cost: a gradient per step. During it 2.6 float32 vectors are held: trial and best point in full, the prediction in a
    byte per entry, the older secant in half a byte for each end, which lose nothing as they shrink with the steps.

    Args:
        steps: gradient evaluations of one run, the one at the centre not counted (20 in the sharpness literature).
        tolerance: stop when the residual ``1 - cos(z, g)`` is at most this. About ``2 residual / (1 - q)`` of the rise
            is then missing, ``q`` the rate of the plain iteration: 1e-4 of it at 1e-5 and ``q = 0.8``.
        reach: longest move along the secants, in lengths of the last step (ours: 1 to 2 do the same on a digits ViT).
        restarts: further runs, each from a random point of the sphere.

    >>> curvature = torch.tensor([3.0, 1.0], dtype=torch.float64)
    >>> centre = 0.0, torch.tensor([0.1, 1.0], dtype=torch.float64)
    >>> function = lambda z: (float(centre[1] @ z + curvature @ z**2 / 2), centre[1] + curvature * z)
    >>> SphereAscent(tolerance=1e-12).maximise(function, L2Ball(1.0), centre).value
    1.837377
    """

    steps: int = 20
    tolerance: float = 1e-5
    reach: float = 1.0
    restarts: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.steps < 1 or self.restarts < 0:
            raise ArgumentError(f"expected steps >= 1 and restarts >= 0, got {self.steps} and {self.restarts}")
        if not self.tolerance >= 0 or not self.reach > 0:
            raise ArgumentError(f"expected tolerance >= 0 and reach > 0, got {self.tolerance} and {self.reach}")

    def _maximise(
        self,
        function: Function,
        ball: Ball,
        centre: Centre,
        start: Tensor | None,
        scales: Tensor | None,
        noise: Callable[[], Tensor] | None,
    ) -> Solution:
        if self.restarts and noise is None:
            raise ArgumentError("expected a source of noise for restarts, got none")
        trace = Trace(function, ball, centre)
        if start is None and ball.dual(centre.gradient()) == 0:
            trace.residual = 0.0
            start = None if noise is None else noise()  # a stationary centre: any direction is as good
        run = self._on_sphere if isinstance(ball, L2Ball) else self._conditional
        run(trace, ball, centre, start)
        for _ in range(self.restarts):
            run(trace, ball, centre, noise())  # type: ignore[misc]  # checked above
        return trace.solution(Status.CONVERGED if trace.residual <= self.tolerance else Status.BUDGET)

    def _on_sphere(self, trace: Trace, ball: Ball, centre: Centre, start: Tensor | None) -> None:
        run, left = _Run(trace, ball, self.reach, centre.value), self.steps
        if start is None or not run.begin_at(ball.unit(start) * ball.radius):
            if ball.dual(centre.gradient()) == 0:
                return
            run.begin_from(centre)
        left -= run.spent
        while left > 0 and run.residual > self.tolerance and run.moving:
            run.step()
            left -= 1

    def _conditional(self, trace: Trace, ball: Ball, centre: Centre, start: Tensor | None) -> None:
        """``z <- z + t (rho unit(g) - z)``: t = 1 until that falls, then where a parabola peaks."""
        value, z, g, left, share = centre.value, centre.zero, centre.take(), self.steps, 1.0
        if start is not None:
            at = ball.project(start)
            found, gradient = trace(at)
            left -= 1
            if math.isfinite(found):
                z, value, g = at, found, gradient
        while left > 0 and ball.residual(z, g) > self.tolerance and share > torch.finfo(z.dtype).eps:
            trial = ball.unit(g).mul_(ball.radius * share).add_(z, alpha=1 - share)
            slope = spread.dot(g, trial) - spread.dot(g, z)
            found, gradient = trace(trial)
            left -= 1
            if found > value:
                z, value, g, share = trial, found, gradient, min(1.0, 2 * share)
            else:
                share *= _shorter(slope, found - value)


class _Run:
    """One ascent.

    Attributes:
        z, value: the best point of the run; its gradient is not kept, for the trial says what it was.
        trial: where to evaluate next (see `Proposal`).
        moving: whether the trial differs from z.
    """

    def __init__(self, trace: Trace, ball: Ball, reach: float, floor: float) -> None:
        self._trace, self._radius, self._reach, self._ball, self._floor = trace, ball.radius, reach, ball, floor
        self._past: tuple[Packed, Packed] | None = None
        self._known: Packed | None = None
        self._tau, self._scale, self._falls = 0.0, 1.0, 0
        self.residual, self.moving, self.spent = 1.0, True, 0

    def begin_from(self, centre: Centre) -> None:
        """Start at the centre, along its gradient, whose memory becomes the trial's."""
        self.z, self.value, g = centre.zero, centre.value, centre.take()
        self._scale = self._ball.dual(g) / self._radius
        self.trial = g.div_(self._scale)

    def begin_at(self, z: Tensor) -> bool:
        """Start at a given point; False if the function is not finite there."""
        self.spent = 1
        value, g = self._trace(z)
        if not math.isfinite(value):
            return False
        self.z, self.value, self.residual = z, value, self._ball.residual(z, g)
        self.trial = torch.empty_like(g)
        self._propose(Frame(z, g, z, g, None, False), Proposal())
        return True

    def step(self) -> None:
        """Evaluate the trial, keep the better point, and choose the next trial."""
        value, new = self._trace(self.trial)
        old = self._gradient()
        rises = value > self.value or self._same_but_nearer(value, new)
        ends = (self.trial, new, self.z, old) if rises else (self.z, old, self.trial, new)
        frame = Frame(*ends, self._past, rises)
        gram = frame.gram()
        gain, self._falls = value - self.value, 0 if rises else self._falls + 1
        sure = 1e3 * _ROUNDING * torch.finfo(new.dtype).eps * abs(value) < abs(gain) < math.inf
        model = Model(gram, self._radius, abs(gain) if sure else 0.0)
        self.z, self.value, self.residual = frame.z, value if rises else self.value, model.residual
        self.trial = old  # its memory is ours, and `_propose` reads each chunk before it writes it
        length = math.sqrt(gram[0, 0])
        if self._falls > 1 or not math.isfinite(value):
            slope = gram[0, 4] if math.isfinite(value) else 0.0
            self._propose(frame, model.short(length * _shorter(slope, gain)))
        else:
            self._propose(frame, model.step(self._reach, rises))

    def _same_but_nearer(self, value: float, g: Tensor) -> bool:
        """Whether the trial is as high as z but for rounding, and nearer to a maximum; if so the trace takes it."""
        noise, residual = _ROUNDING * torch.finfo(g.dtype).eps * abs(value), self._ball.residual(self.trial, g)
        if not self._floor <= value >= self._trace.value - noise or residual >= self.residual:
            return False
        self._floor = max(self._floor, self._trace.value - noise)
        self._trace.value, self._trace.z, self._trace.residual = value, self.trial, residual
        return True

    def _gradient(self) -> Tensor:
        """The gradient at z, from the trial that was made of it."""
        g = self.trial * self._scale
        for at in chunks(g):
            part = g[at]
            if self._tau:
                part -= self.z[at] * self._tau
            if self._known is not None:
                part -= self._known[at]
        return g

    def _propose(self, frame: Frame, new: Proposal) -> None:
        """Write the next trial, and keep what it was made of and the last secant."""
        z, tau, square = frame.z, new.tau, 0.0
        past = (Packed(z, 4), Packed(z, 4)) if new.keep else None
        known = Packed(z, 8) if new.predicts else None
        for at in chunks(z):
            g = frame.g[at] + z[at] * tau if tau else frame.g[at].clone()
            s, y = frame.secants(at)
            if known is not None:
                known[at] = new.known(s, y)
                g += known[at]
            if past is not None:
                past[0][at], past[1][at] = s[0], y[0]
            self.trial[at] = g
            square += dot_here(g, g)
        size = math.sqrt(float(spread.total(np.array([square]))[0]))
        self._past, self._known, self._tau = past, known, tau
        self._scale = max(size / self._radius, tau if new.inside else 0.0)
        if size > 0:
            self.trial /= self._scale
        here = sum(float((self.trial[at] - z[at]).square().sum()) for at in chunks(z))
        move = float(spread.total(np.array([here]))[0])
        self.moving = size > 0 and math.sqrt(move) > torch.finfo(z.dtype).eps * self._radius


def _shorter(slope: float, gain: float) -> float:
    """Where the parabola of this slope and gain over a step of length one peaks, between a tenth and a half of it."""
    return min(max(slope / (2 * (slope - gain)), 0.1), 0.5) if slope > max(gain, 0.0) and math.isfinite(gain) else 0.25
