"""The Riemannian gradient norm: how steep is it here?"""

from __future__ import annotations

import time
from statistics import fmean

from spiritlevel.core.progress import progress
from spiritlevel.core.results import Measurement, Status, standard_error
from spiritlevel.core.spread import norm
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over, base_settings, centre_of, objectives
from spiritlevel.problem import Problem

__all__ = ["gradient_norm"]


def gradient_norm(
    problem: Problem, geometry: Geometry, *, over: Over = "batches", show_progress: bool | None = None
) -> Measurement:
    """The length ``|grad f(0)|`` of the gradient in the geometry's metric.

    It is the slope of worst-case sharpness at radius 0. Exact; one gradient a batch.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        over: the mean over batches of the norm on each, or the norm of the gradient on all data (``"union"``).
        show_progress: force the progress bar on or off.
    """
    began, norms = time.perf_counter(), []
    with problem.measuring(f"gradient norm, {geometry}, {over}"):
        chart = problem.chart(geometry)
        with progress("gradient norm", problem.count() if over == "batches" else 1, show_progress) as advance:
            for objective in objectives(problem, chart, over):
                norms.append(norm(centre_of(objective)[1]))
                advance()
    return Measurement(
        name="gradient norm",
        value=fmean(norms),
        per_batch=tuple(norms),
        standard_error=standard_error(norms),
        status=Status.EXACT,
        stats={"evaluations": len(norms), "seconds": time.perf_counter() - began},
        settings=base_settings(problem, geometry, chart, over),
    )
