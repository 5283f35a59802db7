"""Ascent on the sphere: fixed-point steps from a gradient predicted by two secants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.core.tensors import dot
from spiritlevel.errors import ArgumentError
from spiritlevel.solvers.ball import Ball, L2Ball
from spiritlevel.solvers.base import SOLVERS, Centre, Function, Solution, Solver, Trace

__all__ = ["SphereAscent"]

_CHUNK = 1 << 16  # entries worked on at a time: no temporary of a whole model's size
_PIECE = 1 << 10  # entries summed in the coordinates' own precision: in float32 within 1e-6 of the longest products
_BLOCK = 64  # entries that share a scale in `_Packed`
_ROUNDING = 8.0  # ours: values this many roundings apart are the same, and the residual decides
_FLAT = 1e-6  # ours: a secant with less of its squared length along the sphere says nothing about it


@SOLVERS.register("sphere")
@dataclass(frozen=True)
class SphereAscent(Solver):
    """Ours: the power method for functions, with the gradient extrapolated along what it has seen.

    Maximisers are fixed points of ``z <- rho g(z)/|g(z)|``. The step is ``z <- rho g*/|g*|``, where ``g* = g + Y c`` is
    the gradient predicted at the maximum ``z + S c`` of a quadratic model in the plane of two secants ``Y ~ H S``: from
    the best point to the other end of the last step, and to the maximum predicted before (as conjugate gradients
    remember one direction). A step that falls serves as a secant; after two in a row come short steps
    ``z <- P(z + g/tau)``, which also lead inside the ball where the function falls outwards. It finds local maxima, as
    does every solver with 20 evaluations. On other balls it is the conditional-gradient method with a line search.

    Cost: a gradient per step. During it 2.5 float32 vectors are held: trial and best point in full, the prediction in
    one byte per entry, which loses nothing in the end, as it shrinks with the steps.

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
            slope = dot(g, trial) - dot(g, z)
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
        trial: where to evaluate next, ``P(z + p + (g + e) / tau)``, for ``tau = 0`` ``rho (g + e)/|g + e|``.
        moving: whether the trial differs from z.
    """

    def __init__(self, trace: Trace, ball: Ball, reach: float, floor: float) -> None:
        self._trace, self._radius, self._reach, self._ball, self._floor = trace, ball.radius, reach, ball, floor
        self._p: _Packed | None = None
        self._e: _Packed | None = None
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
        self._propose(_Frame(z, g, z, g, None, None, False), np.zeros(2), 0.0)
        return True

    def step(self) -> None:
        """Evaluate the trial, keep the better point, and choose the next trial."""
        value, new = self._trace(self.trial)
        old = self._gradient()
        rises = value > self.value or self._same_but_nearer(value, new)
        ends = (self.trial, new, self.z, old) if rises else (self.z, old, self.trial, new)
        frame = _Frame(*ends, self._p, self._e, rises)
        gram = frame.gram()
        model = _Model(gram, self._radius)
        gain, self._falls = value - self.value, 0 if rises else self._falls + 1
        self.z, self.value, self.residual = frame.z, value if rises else self.value, model.residual
        self.trial = old  # its memory is ours, and `_propose` reads each chunk before it writes it
        length = math.sqrt(gram[0, 0])
        if self._falls > 1 or not math.isfinite(value):
            slope = gram[0, 4] if math.isfinite(value) else 0.0
            self._propose(frame, np.zeros(2), model.tau(length * _shorter(slope, gain)))
        else:
            self._propose(frame, model.peak(self._reach), model.shift(rises))

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
        for at in _chunks(g):
            part = g[at]
            if self._tau:
                part -= self.z[at]
                if self._p is not None:
                    part -= self._p[at]
                part *= self._tau
            if self._e is not None:
                part -= self._e[at]
        return g

    def _propose(self, frame: _Frame, c: np.ndarray, tau: float) -> None:
        """Write the next trial, and keep the prediction it rests on."""
        p, e = (_Packed(frame.z), _Packed(frame.z)) if c.any() else (None, None)
        square = 0.0
        for at in _chunks(frame.z):
            z, g = frame.z[at], frame.g[at]
            if p is not None and e is not None:
                s, y = frame.secants(at)
                p[at], e[at] = c[0] * s[0] + c[1] * s[1], c[0] * y[0] + c[1] * y[1]
                g = g + e[at]
            if tau:
                g = (z if p is None else z + p[at]) + g / tau
            self.trial[at] = g
            square += dot(g, g)
        size = math.sqrt(square)
        self._p, self._e, self._tau = p, e, tau
        self._scale = size / self._radius if not tau or size > self._radius else 1.0
        if size > 0:
            self.trial /= self._scale
        move = sum(float((self.trial[at] - frame.z[at]).square().sum()) for at in _chunks(frame.z))
        self.moving = size > 0 and math.sqrt(move) > torch.finfo(frame.z.dtype).eps * self._radius


@dataclass(frozen=True)
class _Frame:
    """The better point, the other end of the step, and the maximum predicted from the old one of the two."""

    z: Tensor
    g: Tensor
    other: Tensor
    other_g: Tensor
    p: _Packed | None
    e: _Packed | None
    rises: bool

    def secants(self, at: slice) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Both displacements from z and both changes of the gradient, one chunk of each."""
        s, y = self.other[at] - self.z[at], self.other_g[at] - self.g[at]
        if self.p is None or self.e is None:
            return (s, torch.zeros_like(s)), (y, torch.zeros_like(y))
        p, e = self.p[at], self.e[at]
        return ((s, s + p), (y, y + e)) if self.rises else ((s, p), (y, e))

    def gram(self) -> np.ndarray:
        """Inner products of both s, both y, g and z, in this order."""
        total = np.zeros((6, 6))
        for at in _chunks(self.z):
            s, y = self.secants(at)
            rows = torch.stack([*s, *y, self.g[at], self.z[at]])
            total += _gram(rows).cpu().numpy()
        return total


class _Model:
    """The quadratic model in the plane of the secants: along the sphere where that holds z, in space elsewhere."""

    def __init__(self, gram: np.ndarray, radius: float) -> None:
        g, z = 4, 5
        self.residual = 1.0 - gram[g, z] / (radius * math.sqrt(gram[g, g])) if gram[g, g] > 0 else 0.0
        held = gram[z, z] > (1 - _FLAT) * radius**2 and gram[g, z] > 0
        self._mu = gram[g, z] / radius**2 if held else 0.0
        flat = gram - np.outer(gram[z], gram[z]) / gram[z, z] if held else gram
        self._metric = flat[:2, :2]
        self._curvature = (flat[:2, 2:4] + flat[:2, 2:4].T) / 2 - self._mu * self._metric
        self._slope = flat[:2, g]
        self._steep = math.sqrt(max(flat[g, g], 0.0))
        self._useful = np.diag(flat)[:2] > _FLAT * np.diag(gram)[:2]
        self._concavity = max(-gram[0, 2] / gram[0, 0], 0.0) if gram[0, 0] > 0 else 0.0

    def shift(self, rises: bool) -> float:
        """``tau`` of the next step: none on the sphere, but after a fall half of what it saw, so as not to flip again.

        With ``H = -kappa`` across, the shifted iteration turns errors by ``(tau - kappa)/(tau + mu)``: above -1 from
        ``tau = (kappa - mu)/2`` on. Inside the ball it is the curvature, as in Newton's method.
        """
        return self._concavity if self._mu == 0 else 0.0 if rises else self._concavity / 2

    def tau(self, length: float) -> float:
        """The shift that makes the plain step so long."""
        return max(self._steep / length - self._mu, 0.0) if length > 0 else math.inf

    def peak(self, reach: float) -> np.ndarray:
        """Coefficients of the maximum, no further away than ``reach`` times the last step."""
        c, use = np.zeros(2), np.flatnonzero(self._useful)
        if not len(use):
            return c
        scale = np.sqrt(np.diag(self._metric)[use])
        length, basis = np.linalg.eigh(self._metric[np.ix_(use, use)] / np.outer(scale, scale))
        basis = basis[:, length > _FLAT] / np.sqrt(length[length > _FLAT]) / scale[:, None]
        curvature, turn = np.linalg.eigh(basis.T @ self._curvature[np.ix_(use, use)] @ basis)
        slope, limit = turn.T @ basis.T @ self._slope[use], reach * scale[0]
        low = max(curvature[-1], 0.0)
        if curvature[-1] >= 0 or np.linalg.norm(slope / curvature) > limit:
            high = low + float(np.linalg.norm(slope)) / limit
            for _ in range(60):
                middle = (low + high) / 2
                inside = np.linalg.norm(slope) == 0 or np.linalg.norm(slope / (middle - curvature)) <= limit
                low, high = (low, middle) if inside else (middle, high)
            low = high
        if low > curvature[-1]:
            c[use] = basis @ turn @ (slope / (low - curvature))
        return c


class _Packed:
    """A vector in one byte for each entry: blocks share a scale, entries are off by 0.4 % of it at most."""

    def __init__(self, like: Tensor) -> None:
        self._size, blocks = like.numel(), -(-like.numel() // _BLOCK)
        self._codes = torch.zeros(blocks, _BLOCK, dtype=torch.int8, device=like.device)
        self._scales = like.new_zeros(blocks, 1)

    def __setitem__(self, at: slice, x: Tensor) -> None:
        rows = slice(at.start // _BLOCK, -(-at.stop // _BLOCK))
        blocks = torch.nn.functional.pad(x, (0, -len(x) % _BLOCK)).view(-1, _BLOCK)
        scale = blocks.abs().amax(1, keepdim=True) / 127
        self._scales[rows] = scale
        self._codes[rows] = (blocks / scale.clamp(min=torch.finfo(x.dtype).tiny)).round().to(torch.int8)

    def __getitem__(self, at: slice) -> Tensor:
        rows = slice(at.start // _BLOCK, -(-at.stop // _BLOCK))
        return (self._codes[rows] * self._scales[rows]).view(-1)[: at.stop - at.start]


def _chunks(x: Tensor) -> Iterator[slice]:
    for i in range(0, x.numel(), _CHUNK):
        yield slice(i, min(i + _CHUNK, x.numel()))


def _gram(rows: Tensor) -> Tensor:
    """All inner products of a few long rows: short pieces in their own precision, their sums in float64."""
    whole = rows.shape[1] // _PIECE * _PIECE
    pieces = rows[:, :whole].unflatten(1, (-1, _PIECE)).transpose(0, 1)
    rest = rows[:, whole:].double()
    total: Tensor = (pieces @ pieces.mT).double().sum(0) + rest @ rest.T
    return total


def _shorter(slope: float, gain: float) -> float:
    """Where the parabola of this slope and gain over a step of length one peaks, between a tenth and a half of it."""
    return min(max(slope / (2 * (slope - gain)), 0.1), 0.5) if slope > max(gain, 0.0) and math.isfinite(gain) else 0.25
