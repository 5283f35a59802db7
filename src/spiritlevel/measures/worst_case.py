"""Worst-case sharpness: how far can the loss rise inside a ball?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import torch
from torch import Tensor

from spiritlevel.core.progress import Advance, progress
from spiritlevel.core.results import Curve, Measurement, Status, standard_error, worst
from spiritlevel.core.spread import any_entry
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Chart, Geometry
from spiritlevel.measures.common import Over, base_settings, centre_of, checked_radii, objectives
from spiritlevel.problem import Objective, Problem
from spiritlevel.solvers import AutoPGD, Ball, Centre, L2Ball, LinfBall, Solution, Solver, SphereAscent

__all__ = ["Norm", "worst_case"]

Norm = Literal["l2", "linf"]
_BALLS: dict[str, type[Ball]] = {"l2": L2Ball, "linf": LinfBall}


@dataclass
class _Radius:
    """What was found at one radius, batch after batch."""

    rho: float
    gains: list[float] = field(default_factory=list)
    states: list[Status] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    stopped: int = 0


@overload
def worst_case(
    problem: Problem,
    geometry: Geometry,
    rho: float = 0.1,
    solver: Solver | None = None,
    seed: int = 0,
    *,
    norm: Norm = "l2",
    over: Over = "batches",
    name: str = "worst-case sharpness",
    show_progress: bool | None = None,
) -> Measurement: ...


@overload
def worst_case(
    problem: Problem,
    geometry: Geometry,
    rho: Sequence[float],
    solver: Solver | None = None,
    seed: int = 0,
    *,
    norm: Norm = "l2",
    over: Over = "batches",
    name: str = "worst-case sharpness",
    show_progress: bool | None = None,
) -> Curve: ...


def worst_case(
    problem: Problem,
    geometry: Geometry,
    rho: float | Sequence[float] = 0.1,
    solver: Solver | None = None,
    seed: int = 0,
    *,
    norm: Norm = "l2",
    over: Over = "batches",
    name: str = "worst-case sharpness",
    show_progress: bool | None = None,
) -> Measurement | Curve:
    """The largest rise of the loss inside a ball: ``max f(z) - f(0)`` over ``|z| <= rho``.

    ``f`` is the loss pulled back to orthonormal coordinates of the geometry, so with `Quotient` the ball is a geodesic
    ball on the quotient manifold (Hide & Seek, Eq. 6), with `Elementwise` it is adaptive sharpness (Eq. 33 there), with
    `Euclidean` the classical one. The value is a lower bound on the maximum; the residual ``1 - cos(z, grad f)`` in the
    stats is 0 at a maximiser.

    Invariant under whatever the geometry is invariant under. Costs, for each batch, one gradient at the centre and what
    the solver takes (about 5 to 15), each about the price of a plain forward and backward pass.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is. Radii mean different things in different geometries.
        rho: the radius; for a sequence, the whole curve in one pass over the data, each radius started from the
            maximiser at the one below it (so that the curve never falls).
        solver: by default `SphereAscent` (`AutoPGD` for ``norm="linf"``).
        seed: fixes restarts, where the solver makes any.
        norm: shape of the ball, ``linf`` only for geometries that move weights one by one.
        over: the mean over batches of the maximum on each, or one maximum on all data.
        name: the name the result carries.
        show_progress: force the progress bar on or off.

    Returns:
        A `Measurement`; for several radii a `Curve` of them, in the order given.
    """
    radii = checked_radii(rho)
    if norm not in _BALLS:
        raise ArgumentError(f"expected norm 'l2' or 'linf', got {norm!r}")
    if norm == "linf" and geometry.needs_blocks:
        raise ArgumentError(
            "expected norm='l2' for a quotient: the largest coordinate depends on the choice of basis there"
        )
    if solver is None:
        solver = SphereAscent() if norm == "l2" else AutoPGD()
    began = time.perf_counter()
    with problem.measuring(f"{name}, {geometry}, rho {radii}, {solver}, {norm}, {over}, seed {seed}"):
        chart = problem.chart(geometry)
        found = {r: _Radius(r) for r in sorted(set(radii))}
        count = problem.count()
        total = None if over == "batches" and count is None else (count or 1 if over == "batches" else 1)
        with progress(name, None if total is None else total * len(found) * solver.steps, show_progress) as advance:
            for i, objective in enumerate(objectives(problem, chart, over)):
                _one_function(objective, found, _BALLS[norm], solver, seed + i, advance)
        settings = {**base_settings(problem, geometry, chart, over), "norm": norm, "solver": str(solver), "seed": seed}
        seconds = time.perf_counter() - began
        results = {r: _measurement(name, x, chart, settings, seconds / len(found)) for r, x in found.items()}
    if isinstance(rho, int | float):
        return results[radii[0]]
    return Curve(tuple(results[r] for r in radii))


def _one_function(
    objective: Objective, found: dict[float, _Radius], ball: type[Ball], solver: Solver, seed: int, advance: Advance
) -> None:
    """All radii on one batch, from small to large."""
    chart, generator = objective.chart, torch.Generator().manual_seed(seed)
    centre = Centre(*centre_of(objective), again=lambda: objective(chart.zeros())[1])
    scales = chart.scales() if isinstance(solver, AutoPGD) and solver.baseline else None
    before: Solution | None = None
    for rho, at in found.items():
        spent = 0

        def counted(z: Tensor, rho: float = rho) -> tuple[float, Tensor]:
            nonlocal spent
            value, gradient = objective(z)
            spent += 1
            advance(f"rho {rho:g}: {value - centre.value:+.4g}")
            return value, gradient

        start = None if before is None or not any_entry(before.z) else before.z * (rho / ball(rho).norm(before.z))
        solution = solver.maximise(
            counted, ball(rho), centre, start=start, scales=scales, noise=lambda: chart.gaussian(generator)
        )
        advance(steps=max(solver.steps - spent, 0))
        if before is not None and before.value > solution.value:  # its point lies in this ball too
            solution = Solution(before.z, before.value, before.residual, solution.status, solution.evaluations)
        at.gains.append(solution.value - centre.value)
        at.states.append(solution.status)
        at.residuals.append(solution.residual)
        at.evaluations.append(solution.evaluations)
        at.stopped += chart.stopped(solution.z)
        before = solution


def _measurement(name: str, at: _Radius, chart: Chart, settings: dict[str, Any], seconds: float) -> Measurement:
    facts = chart.describe(at.rho)
    states = list(at.states)
    if at.stopped or facts.get("rho / s_min", 0.0) > 1:
        states.append(Status.EDGE)
    if at.stopped:
        facts["geodesics that ended early"] = at.stopped
    stats = {
        "residual": max(at.residuals),
        "evaluations": sum(at.evaluations),
        "residual per batch": at.residuals,
        "evaluations per batch": at.evaluations,
        "seconds": seconds,
        **facts,
    }
    return Measurement(
        name=name,
        value=sum(at.gains) / len(at.gains),
        per_batch=tuple(at.gains),
        standard_error=standard_error(at.gains),
        status=worst(states),
        stats=stats,
        settings={"rho": at.rho, **settings},
    )
