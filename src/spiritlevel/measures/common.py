"""What all measures share: checked radii, the batches to go over, and the value at the centre."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from torch import Tensor

from spiritlevel.core.spread import all_finite
from spiritlevel.errors import ArgumentError, DerivativeError, LossError
from spiritlevel.geometry import Chart, Geometry
from spiritlevel.problem import Objective, Problem

__all__ = ["Over", "base_settings", "centre_of", "checked_radii", "objectives"]

Over = Literal["batches", "union"]
"""Measure on each batch and average (the literature's m-sharpness), or once on all data together."""


def checked_radii(rho: float | Sequence[float]) -> list[float]:
    """One or more radii, each finite and above 0."""
    radii = [rho] if isinstance(rho, int | float) else list(rho)
    for r in radii:
        if isinstance(r, bool) or not isinstance(r, int | float) or not math.isfinite(r) or r <= 0:
            raise ArgumentError(f"expected a radius rho that is finite and above 0, got {r!r}")
    if not radii:
        raise ArgumentError("expected at least one radius, got an empty list")
    return [float(r) for r in radii]


def objectives(problem: Problem, chart: Chart, over: Over) -> Iterator[Objective]:
    """The functions to measure, one at a time."""
    if over not in ("batches", "union"):
        raise ArgumentError(f"expected over='batches' or over='union', got {over!r}")
    if over == "union":
        yield Objective(problem, chart)
        return
    for batch in problem.batches():
        yield Objective(problem, chart, batch)


def centre_of(objective: Objective) -> tuple[float, Tensor]:
    """Value and gradient at the model's own weights; both finite."""
    value, gradient = objective(objective.chart.zeros())
    if not math.isfinite(value):
        raise LossError(f"expected a finite loss at the model's own weights, got {value}: check data and weights")
    if not all_finite([gradient]):
        raise DerivativeError(
            "expected a finite gradient at the model's own weights, got NaN or infinity although the loss is finite: "
            "look for square roots, logarithms or divisions at 0 in the model or loss"
        )
    return value, gradient


def base_settings(problem: Problem, geometry: Geometry, chart: Chart, over: Over) -> dict[str, Any]:
    """What fixes the number, apart from the measure's own settings."""
    return {**geometry.settings(), "dimension": chart.dimension, "over": over, **problem.settings}
