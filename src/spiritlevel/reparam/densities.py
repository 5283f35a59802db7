"""Densities and their modes: under the Lebesgue measure of some coordinates, and under a Riemannian volume.

A density ``q`` under ``d theta`` becomes ``q |det J^-1|`` under ``d psi``: another function, with other modes. Under
the volume ``sqrt(det G) d theta`` of a metric, ``q^G = q / sqrt(det G)`` moves as a function does and keeps its modes
(paper, Eqs. 3 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.core.tensors import norm
from spiritlevel.errors import ArgumentError, LossError
from spiritlevel.problem import Problem
from spiritlevel.reparam.flat import Layout, Weights
from spiritlevel.reparam.maps import Reparametrisation

__all__ = ["Density", "Mode", "Under", "jeffreys", "mode", "posterior"]

LogDensity = Callable[[Weights], Tensor]
Under = Literal["volume", "lebesgue"]


def _no_volume(weights: Weights) -> Tensor:
    first = next(iter(weights.values()))
    return torch.zeros((), dtype=first.dtype, device=first.device)


@dataclass(frozen=True)
class Density:
    """A density in some coordinates, with the volume of a metric there.

    Attributes:
        log: ``log q`` under the Lebesgue measure of these coordinates, up to a constant; differentiable.
        log_volume: ``log det G / 2``; 0 for the Euclidean metric of these coordinates.

    >>> normal = Density(lambda w: -(w["x"] - 2).square().sum() / 2)
    >>> from spiritlevel.reparam import Log
    >>> new = normal.transported(Log())
    >>> psi = {"x": torch.tensor([2.0]).log()}
    >>> float(normal.under_volume({"x": torch.tensor([2.0])})), float(new.under_volume(psi))
    (-0.0, 0.0)
    """

    log: LogDensity
    log_volume: LogDensity = _no_volume

    def under_volume(self, weights: Weights) -> Tensor:
        """``log q^G``: under the Riemannian volume. The same number in all coordinates."""
        return self.log(weights) - self.log_volume(weights)

    def transported(self, change: Reparametrisation) -> Density:
        """The same distribution and the same metric, for somebody whose parameters are ``change`` of these."""

        def moved(of: LogDensity) -> LogDensity:
            def log(psi: Weights) -> Tensor:
                theta = change.inverse(psi)
                return of(theta) - change.log_abs_det(theta)

            return log

        return Density(moved(self.log), moved(self.log_volume))


def jeffreys(log_det_fisher: LogDensity) -> Density:
    """Jeffreys' prior: ``sqrt(det F)``, the uniform density under the volume of the Fisher metric.

    Args:
        log_det_fisher: ``log det F``, differentiable.
    """

    def half(weights: Weights) -> Tensor:
        return log_det_fisher(weights) / 2

    return Density(half, half)


def posterior(problem: Problem, prior_precision: float, scale: float) -> Density:
    """The posterior of a problem's weights under an isotropic Gaussian prior, Euclidean metric.

    Args:
        problem: model, loss and data; the loss is a mean over terms.
        prior_precision: of the Gaussian prior, above 0.
        scale: the negative log-likelihood is so many times the mean loss (the number of terms, for cross-entropy).
    """
    if not (prior_precision > 0 and scale > 0):
        raise ArgumentError(f"expected prior precision and scale above 0, got {prior_precision!r} and {scale!r}")

    def log(weights: Weights) -> Tensor:
        loss = torch.stack([problem.tensor(weights, part) * share for part, share in problem.shares()]).sum()
        square = torch.stack([w.square().sum() for w in weights.values()]).sum()
        return -scale * loss - prior_precision / 2 * square

    return Density(log)


@dataclass(frozen=True)
class Mode:
    """A local maximum of a density.

    Attributes:
        weights: where.
        log_density: there, under the measure asked for.
        gradient_norm: there; 0 at a mode.
        status: converged, or the budget was spent.
    """

    weights: Weights
    log_density: float
    gradient_norm: float
    status: Status


def mode(
    density: Density, start: Weights, under: Under = "volume", *, tolerance: float = 1e-10, rounds: int = 50
) -> Mode:
    """The nearest mode: L-BFGS, then damped Newton steps for few parameters.

    Args:
        density: in the coordinates of ``start``.
        start: where the search begins.
        under: ``volume`` (invariant), or ``lebesgue``, what maximising ``log q`` in these coordinates finds.
        tolerance: wanted norm of the gradient, relative to that at the start (at least 1).
        rounds: most rounds of 20 L-BFGS iterations, and most Newton steps.
    """
    if under not in ("volume", "lebesgue"):
        raise ArgumentError(f"expected under='volume' or 'lebesgue', got {under!r}")
    layout = Layout(start)
    log = density.under_volume if under == "volume" else density.log

    def cost(x: Tensor) -> Tensor:
        return -log(layout.named(x))

    x = layout.flat(start).detach().clone()
    wanted = tolerance * max(1.0, norm(torch.func.grad(cost)(x)))
    x = _lbfgs(cost, x, rounds, wanted)
    if layout.size <= _FEW:
        x = _newton(cost, x, rounds, wanted)
    value, left = float(cost(x)), norm(torch.func.grad(cost)(x))
    status = Status.CONVERGED if left <= wanted else Status.BUDGET
    return Mode(layout.named(x), -value, left, status)


_FEW = 300  # ours: a dense Hessian of this size takes about a second


def _lbfgs(cost: Callable[[Tensor], Tensor], start: Tensor, rounds: int, wanted: float) -> Tensor:
    x = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [x],
        lr=1.0,
        max_iter=20,
        history_size=20,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimiser.zero_grad()
        value = cost(x)
        if not bool(torch.isfinite(value)):
            raise LossError("expected a finite density on the way to its mode, got NaN or infinity: start nearer to it")
        value.backward()
        return float(value.detach())

    before = math.inf
    for _ in range(rounds):
        value = float(optimiser.step(closure))
        if x.grad is None or norm(x.grad) <= wanted or value >= before:
            break
        before = value
    return x.detach()


def _newton(cost: Callable[[Tensor], Tensor], x: Tensor, rounds: int, wanted: float) -> Tensor:
    """Newton steps with a damping that grows where a step does not help."""
    damping = 0.0
    for _ in range(rounds):
        slope = torch.func.grad(cost)(x)
        if norm(slope) <= wanted:
            return x
        bend = torch.func.hessian(cost)(x)
        low = float(torch.linalg.eigvalsh(bend)[0])
        shift = max(damping, 1e-6 - low if low <= 0 else 0.0)
        step = torch.linalg.solve(bend + shift * torch.eye(len(x), dtype=x.dtype, device=x.device), slope)
        trial = x - step
        better = _better(cost, trial, x, norm(slope))
        if not better and damping > 1e6:
            return x
        x = trial if better else x
        damping = damping / 10 if better else max(10 * damping, 1e-3)
    return x


def _better(cost: Callable[[Tensor], Tensor], trial: Tensor, x: Tensor, slope: float) -> bool:
    """Lower by more than rounding; or no higher, and flatter: saddles are left, and the last digits are found."""
    there, here = float(cost(trial)), float(cost(x))
    slack = 1e-13 * (1 + abs(here))
    return there < here - slack or (there <= here + slack and norm(torch.func.grad(cost)(trial)) < slope)
