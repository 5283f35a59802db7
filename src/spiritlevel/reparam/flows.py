"""Gradient flow and preconditioned steps that take the same path in any coordinates.

The flow ``theta' = -R^-1 dL`` is ``psi' = -J R^-1 J^T dL_psi`` in the parameters ``psi``: the metric ``R`` is
transported, not left behind. A step of size ``h`` in ``psi`` leaves the path that the same step takes in ``theta`` by
``O(h^(p+1))``, where ``p`` is the order of the scheme (paper, Remark 4: first order for plain steps); `image` steps do
not leave it at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.tensors import all_finite
from spiritlevel.errors import ArgumentError, LossError
from spiritlevel.problem import Problem
from spiritlevel.reparam.flat import Weights
from spiritlevel.reparam.maps import Reparametrisation

__all__ = ["SCHEMES", "Flow", "Scheme", "loss_gradient"]

Gradient = Callable[[Weights], Weights]
"""The differential of the loss at a point, as autodiff gives it there."""
Preconditioner = Callable[[Weights, Weights], Weights]
"""``(theta, w) -> R(theta)^-1 w``."""
Velocity = Callable[[Weights], Weights]


def _plus(x: Weights, h: float, v: Weights) -> dict[str, Tensor]:
    return {n: w + h * v[n] for n, w in x.items()}


@dataclass(frozen=True)
class Scheme:
    """An explicit Runge-Kutta rule.

    Attributes:
        name: for settings.
        order: the error over a fixed time falls like ``h^order``.
        nodes: of the velocity before each stage, the stage's own row of the tableau; only the last velocity is used.
        weights: of the stages.
    """

    name: str
    order: int
    nodes: tuple[float, ...]
    weights: tuple[float, ...]

    def __call__(self, velocity: Velocity, x: Weights, h: float) -> dict[str, Tensor]:
        """The point a time ``h`` later."""
        stage = velocity(x)
        total = {n: self.weights[0] * v for n, v in stage.items()}
        for node, weight in zip(self.nodes[1:], self.weights[1:], strict=True):
            stage = velocity(_plus(x, node * h, stage))
            total = _plus(total, weight, stage)
        return _plus(x, h, total)


SCHEMES: Mapping[str, Scheme] = {
    "euler": Scheme("euler", 1, (0.0,), (1.0,)),
    "midpoint": Scheme("midpoint", 2, (0.0, 0.5), (0.0, 1.0)),
    "rk4": Scheme("rk4", 4, (0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


@dataclass(frozen=True)
class Flow:
    """``psi' = -J R^-1 J^T dL``: the flow of ``theta`` in the metric ``R``, written in ``psi``.

    With ``change=None`` the parameters are ``theta`` themselves. What autodiff gives in ``psi`` without this,
    ``-dL_psi``, is the flow of ``theta`` in another metric, ``J^T J``.

    Args:
        change: ``theta -> psi``.
        preconditioner: ``(theta, w) -> R^-1 w``; None for the Euclidean metric of ``theta``.

    >>> from spiritlevel.reparam import Scaling
    >>> flow = Flow(Scaling(2.0))
    >>> flow.step({"w": torch.tensor([2.0])}, lambda psi: {"w": psi["w"] / 4}, 0.1)["w"]  # L = theta^2 / 2
    tensor([1.8000])
    """

    change: Reparametrisation | None = None
    preconditioner: Preconditioner | None = None

    def velocity(self, psi: Weights, covector: Weights) -> dict[str, Tensor]:
        """``-J R^-1 J^T w`` for the differential ``w`` at ``psi``."""
        if self.change is None:
            return {n: -g for n, g in self._direction(psi, covector).items()}
        theta = self.change.inverse(psi)
        direction = self._direction(theta, self.change.vjp(theta, covector))
        return {n: -v for n, v in self.change.jvp(theta, direction).items()}

    def _direction(self, theta: Weights, covector: Weights) -> Weights:
        return covector if self.preconditioner is None else self.preconditioner(theta, covector)

    def step(
        self, psi: Weights, gradient: Gradient, size: float, scheme: Scheme = SCHEMES["euler"]
    ) -> dict[str, Tensor]:
        """A step of an integrator in ``psi``: the same as in ``theta`` up to ``size^(order + 1)``."""
        _check_size(size)
        return _finite(scheme(lambda x: self.velocity(x, gradient(x)), psi, size))

    def image(
        self, psi: Weights, gradient: Gradient, size: float, scheme: Scheme = SCHEMES["euler"]
    ) -> dict[str, Tensor]:
        """The image of the step that the same scheme takes in ``theta``: no error at all, one more pass of the map."""
        _check_size(size)
        if self.change is None:
            return self.step(psi, gradient, size, scheme)
        change = self.change

        def velocity(theta: Weights) -> dict[str, Tensor]:
            pulled = change.vjp(theta, gradient(change.forward(theta)))
            return {n: -v for n, v in self._direction(theta, pulled).items()}

        return _finite(change.forward(scheme(velocity, change.inverse(psi), size)))

    def path(
        self, psi: Weights, gradient: Gradient, size: float, steps: int, scheme: Scheme = SCHEMES["euler"]
    ) -> list[dict[str, Tensor]]:
        """The start and the points after each of so many steps."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ArgumentError(f"expected steps to be a whole number from 1 on, got {steps!r}")
        points = [dict(psi)]
        for _ in range(steps):
            points.append(self.step(points[-1], gradient, size, scheme))
        return points


def loss_gradient(problem: Problem) -> Gradient:
    """The differential of a problem's loss over all its data, as a function of its parameters."""

    def gradient(weights: Weights) -> dict[str, Tensor]:
        at = {n: w.detach().requires_grad_() for n, w in weights.items()}
        total: dict[str, Tensor] = {}
        for part, share in problem.shares():
            with torch.enable_grad():
                loss = problem.tensor(at, part) * share
            pulled = torch.autograd.grad(loss, list(at.values()), materialize_grads=True)
            total = {n: total[n] + g if n in total else g for n, g in zip(at, pulled, strict=True)}
        return total

    return gradient


def _check_size(size: float) -> None:
    if not 0 < size < float("inf"):
        raise ArgumentError(f"expected a step size above 0, got {size!r}")


def _finite(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    if not all_finite(weights.values()):
        bad = [n for n, w in weights.items() if not all_finite([w])]
        raise LossError(f"expected a finite step, got NaN or infinity in {bad[0]!r}: take a smaller step size")
    return weights
