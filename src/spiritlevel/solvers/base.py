"""The contract of a solver: maximise a function on a ball, and say how well."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from spiritlevel.core.registry import Registry
from spiritlevel.core.results import Status
from spiritlevel.core.shapes import Flat
from spiritlevel.solvers.ball import Ball

__all__ = ["SOLVERS", "Centre", "Function", "Solution", "Solver", "Trace"]

Function = Callable[[Tensor], tuple[float, Tensor]]
"""Value and gradient at a point; either may be non-finite."""


@dataclass(frozen=True)
class Solution:
    """The best point a solver saw.

    Attributes:
        z: the point, inside the ball.
        value: the function there: a lower bound on the maximum.
        residual: of the point (see `Ball.residual`); 0 at a maximiser on the boundary.
        status: why the solver stopped.
        evaluations: gradients computed, the one at the centre not counted.
        history: every value in the order it was computed.
    """

    z: Tensor
    value: float
    residual: float
    status: Status
    evaluations: int
    history: tuple[float, ...] = field(repr=False, default=())


class Centre:
    """Value and gradient at 0, where a search begins. The gradient can be given away, so that it is held only once.

    Args:
        value: of the function.
        gradient: of the function; None where it was given away before.
        again: computes the gradient once more, should it be needed after all.
        keep: the gradient stays the caller's: `take` gives a copy.
    """

    def __init__(
        self, value: float, gradient: Tensor, again: Callable[[], Tensor] | None = None, *, keep: bool = False
    ) -> None:
        self.value = value
        self.zero = gradient.new_zeros(()).expand(gradient.shape)
        self._gradient: Tensor | None = gradient
        self._again, self._keep = again, keep

    def gradient(self) -> Tensor:
        """The gradient, to look at."""
        if self._gradient is None:
            assert self._again is not None
            self._gradient = self._again()
        return self._gradient

    def take(self) -> Tensor:
        """The gradient, to write over."""
        gradient = self.gradient()
        if self._keep:
            return gradient.clone()
        self._gradient = None
        return gradient


class Solver(ABC):
    """Maximises a function on a ball from its value and gradient. Knows neither models nor metrics."""

    steps: int
    """Most gradient evaluations it makes, the one at the centre not counted."""

    @classmethod
    def limited(cls, steps: int) -> Solver:
        """The solver with its defaults and at most so many evaluations."""
        return replace(cls(), steps=steps)  # type: ignore[type-var]  # every solver is a frozen dataclass

    def maximise(
        self,
        function: Function,
        ball: Ball,
        centre: tuple[float, Flat] | Centre,
        *,
        start: Flat | None = None,
        scales: Flat | None = None,
        noise: Callable[[], Tensor] | None = None,
    ) -> Solution:
        """Look for the maximum.

        Args:
            function: value and gradient at a point of the ball.
            ball: where to look.
            centre: value and gradient at 0, computed before (a `Centre` gives the gradient's memory away).
            start: a point to begin at, such as the maximiser at a smaller radius; it is brought into the ball.
            scales: Euclidean length in weight space of each unit coordinate (only for presets that imitate others).
            noise: draws a random direction, for restarts.
        """
        if not isinstance(centre, Centre):
            centre = Centre(*centre, keep=True)
        return self._maximise(function, ball, centre, start, scales, noise)

    @abstractmethod
    def _maximise(
        self,
        function: Function,
        ball: Ball,
        centre: Centre,
        start: Tensor | None,
        scales: Tensor | None,
        noise: Callable[[], Tensor] | None,
    ) -> Solution: ...


SOLVERS: Registry[type[Solver]] = Registry("solver")


class Trace:
    """Calls the function, counts, and keeps the best point."""

    def __init__(self, function: Function, ball: Ball, centre: Centre) -> None:
        self._function, self._ball = function, ball
        self.value, self.z, self.residual = centre.value, centre.zero, 1.0
        self.history: list[float] = []
        self.nonfinite = False

    def __call__(self, z: Tensor) -> tuple[float, Tensor]:
        """Evaluate; a non-finite result counts as minus infinity with its gradient set to zero."""
        value, gradient = self._function(z)
        size = self._ball.dual(gradient)
        self.history.append(value)
        if not math.isfinite(value) or not math.isfinite(size):
            self.nonfinite = True
            return -math.inf, gradient.new_zeros(gradient.shape)
        if value > self.value:
            self.value, self.z, self.residual = value, z, self._ball.residual(z, gradient, size)
        return value, gradient

    def solution(self, status: Status) -> Solution:
        """What was found."""
        status = Status.NONFINITE if self.nonfinite else status
        return Solution(self.z.contiguous(), self.value, self.residual, status, len(self.history), tuple(self.history))
