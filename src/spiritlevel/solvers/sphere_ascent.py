"""Fixed-point ascent on the sphere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.core.shapes import Flat
from spiritlevel.solvers.ball import Ball
from spiritlevel.solvers.base import SOLVERS, Function, Solution, Solver, Trace

__all__ = ["SphereAscent"]


@SOLVERS.register("sphere")
@dataclass(frozen=True)
class SphereAscent(Solver):
    """Interim: the fixed-point step only."""

    steps: int = 20
    tolerance: float = 1e-5

    def maximise(
        self,
        function: Function,
        ball: Ball,
        centre: tuple[float, Flat],
        *,
        start: Flat | None = None,
        scales: Flat | None = None,
        noise: Callable[[], Tensor] | None = None,
    ) -> Solution:
        trace = Trace(function, ball, centre)
        z = ball.unit(centre[1]) * ball.radius if start is None else start
        for _ in range(self.steps):
            _, g = trace(z)
            if trace.residual <= self.tolerance:
                return trace.solution(Status.CONVERGED)
            z = ball.unit(g) * ball.radius
        return trace.solution(Status.BUDGET)
