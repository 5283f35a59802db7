"""Average-case sharpness: how far does the loss rise in a random direction?"""

from __future__ import annotations

import math
import time
from statistics import fmean

import torch

from spiritlevel.core.progress import Advance, progress
from spiritlevel.core.results import Measurement, Status, standard_error
from spiritlevel.errors import ArgumentError, LossError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over, base_settings, checked_radii, objectives
from spiritlevel.problem import Objective, Problem

__all__ = ["average_case"]


def average_case(
    problem: Problem,
    geometry: Geometry,
    rho: float = 0.1,
    samples: int = 20,
    seed: int = 0,
    *,
    antithetic: bool = True,
    over: Over = "batches",
    show_progress: bool | None = None,
) -> Measurement:
    """The mean rise of the loss at a Gaussian point: ``E f(rho z) - f(0)``, ``z`` standard on the horizontal space.

    ``rho`` is the standard deviation of each coordinate (not of the whole vector), as in the literature: the expected
    length is ``rho sqrt(dimension)``. To second order the value is ``rho^2 / 2`` times the trace of the Riemannian
    Hessian.

    Invariant under whatever the geometry is invariant under: the distribution does not depend on the point of the
    orbit (a single sample does). Costs ``samples + 1`` forward passes a batch.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        rho: standard deviation of each coordinate.
        samples: points evaluated on each batch.
        seed: fixes the points; each batch has its own.
        antithetic: take points in pairs ``z, -z``, which cancels the linear part of the noise; needs even ``samples``.
        over: each batch by itself, or all data together.
        show_progress: force the progress bar on or off.

    Returns:
        A `Measurement` whose standard error is that of the sampling (for the given batches).
    """
    (radius,) = checked_radii(rho)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise ArgumentError(f"expected at least 2 samples, got {samples!r}")
    if antithetic and samples % 2:
        raise ArgumentError(
            f"expected an even number of samples in antithetic pairs, got {samples}: add one, or antithetic=False"
        )
    began = time.perf_counter()
    found: list[list[float]] = []
    what = f"average-case sharpness, {geometry}, rho {radius}, {samples} samples, {antithetic}, {over}, seed {seed}"
    with problem.measuring(what):
        chart = problem.chart(geometry)
        count = problem.count() if over == "batches" else 1
        with progress("average-case sharpness", None if count is None else count * samples, show_progress) as advance:
            for i, objective in enumerate(objectives(problem, chart, over)):
                found.append(_rises(objective, radius, samples, seed + i, antithetic, advance))
        facts = chart.describe(radius)
    finite = [[d for d in draws if math.isfinite(d)] for draws in found]
    if not all(finite):
        raise LossError(
            f"expected a finite loss at some of {samples} random points, got none: take rho below {radius:g}"
        )
    complete = [len(f) for f in finite] == [len(d) for d in found]
    means, errors = [fmean(f) for f in finite], [standard_error(f) or 0.0 for f in finite]
    return Measurement(
        name="average-case sharpness",
        value=fmean(means),
        per_batch=tuple(means),
        standard_error=math.sqrt(math.fsum(e * e for e in errors)) / len(errors),
        status=Status.ESTIMATE if complete else Status.NONFINITE,
        stats={"evaluations": len(means) * samples, "seconds": time.perf_counter() - began, **facts},
        settings={
            "rho": radius,
            "samples": samples,
            "antithetic": antithetic,
            "seed": seed,
            **base_settings(problem, geometry, chart, over),
        },
    )


def _rises(
    objective: Objective, radius: float, samples: int, seed: int, antithetic: bool, advance: Advance
) -> list[float]:
    """At each random point, or the mean over each pair of them."""
    generator, chart = torch.Generator().manual_seed(seed), objective.chart
    centre, signs = objective.value(chart.zeros()), (1.0, -1.0) if antithetic else (1.0,)
    rises: list[float] = []
    for _ in range(samples // len(signs)):
        z = chart.gaussian(generator).mul_(radius)
        rises.append(fmean(objective.value(z if sign > 0 else z.neg_()) - centre for sign in signs))
        advance(steps=len(signs))
    return rises
