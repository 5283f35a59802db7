"""What a reading consists of: measures that begin where they ended at the last reading, and so need few gradients.

``loss`` and ``gradient norm`` come with the gradient at the weights that the rise in the same geometry starts from
anyway. A worst case needs about 20 gradients from scratch; from the last maximiser, carried to the new weights
(`Chart.carry`), a few. The value is a lower bound on the maximum as ever, and the residual says how good a one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from spiritlevel.core.registry import Registry
from spiritlevel.core.results import Measurement, Status, standard_error, worst
from spiritlevel.core.tensors import norm
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Chart, Elementwise, Geometry, Kept, Quotient
from spiritlevel.measures import MEASURES, HessianOperator, Options
from spiritlevel.measures.common import base_settings, centre_of, objectives
from spiritlevel.problem import Objective, Problem
from spiritlevel.solvers import Centre, L2Ball, Solution, SphereAscent, extreme_eigenpairs

__all__ = ["PROBES", "Catalogued", "Memory", "Probe", "Rise", "TopEigenvalue", "probes_of"]

Memory = dict[int, Kept]
"""For each batch where the last search ended; a probe reads and writes it."""


class Probe(ABC):
    """One or more measures that share their work."""

    @property
    @abstractmethod
    def name(self) -> str:
        """In logs and curves."""

    @property
    @abstractmethod
    def gradients(self) -> int:
        """About how many gradients a batch costs: what the first reading is budgeted by."""

    @abstractmethod
    def read(self, problem: Problem, memory: Memory) -> dict[str, Measurement]:
        """Measure at the weights as they are now; the keys are names of curves."""


@dataclass(frozen=True)
class Rise(Probe):
    """The largest rise of the loss in a ball, its gradient's length, and on request the loss itself.

    Args:
        label: what the geometry is called in curves.
        geometry: what a unit length is.
        rho: the radius.
        steps: gradients for one search, besides one at the last maximiser. Four find what 20 from scratch do, on
            average and give or take a tenth (docs/training_monitor.md); more is better and dearer.
        loss: also report the loss of the fixed batch and the gradient norm.
    """

    label: str
    geometry: Geometry
    rho: float
    steps: int = 4
    loss: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        if not (isinstance(self.rho, int | float) and math.isfinite(self.rho) and self.rho > 0):
            raise ArgumentError(f"expected a radius rho that is finite and above 0, got {self.rho!r}")
        if self.steps < 1:
            raise ArgumentError(f"expected steps >= 1, got {self.steps}")

    @property
    def name(self) -> str:
        return f"{self.label}@{self.rho:g}"

    @property
    def gradients(self) -> int:
        return self.steps + 2

    def read(self, problem: Problem, memory: Memory) -> dict[str, Measurement]:
        chart, solver = problem.chart(self.geometry), SphereAscent(steps=self.steps)
        losses, norms, found, warm = [], [], [], 0
        for i, objective in enumerate(objectives(problem, chart, "batches")):
            value, gradient = centre_of(objective)
            losses.append(value)
            norms.append(norm(gradient))
            start = chart.carry(memory[i]) if i in memory else None
            warm += start is not None
            solution = _search(objective, solver, self.rho, value, gradient, start)
            if bool(solution.z.any()):
                memory[i] = chart.keep(solution.z)
            found.append((solution.value - value, solution))
        base = base_settings(problem, self.geometry, chart, "batches")
        out = {}
        if self.loss:
            out["loss"] = _exact("loss", losses, base)
            out["gradient-norm"] = _exact("gradient norm", norms, base)
        out[self.name] = self._rise(chart, found, warm, base)
        return out

    def _rise(
        self, chart: Chart, found: Sequence[tuple[float, Solution]], warm: int, base: dict[str, Any]
    ) -> Measurement:
        gains, states = [gain for gain, _ in found], [s.status for _, s in found]
        facts = chart.describe(self.rho)
        stopped = sum(chart.stopped(s.z) for _, s in found)
        if stopped or facts.get("rho / s_min", 0.0) > 1:
            states.append(Status.EDGE)
        stats = {
            "residual": max(s.residual for _, s in found),
            "evaluations": sum(s.evaluations for _, s in found),
            "warm starts": warm,
            **facts,
        }
        settings = {"rho": self.rho, "steps": self.steps, **base}
        return Measurement(
            f"{self.label} sharpness", fmean(gains), tuple(gains), standard_error(gains), worst(states), stats, settings
        )


def _search(
    objective: Objective,
    solver: SphereAscent,
    rho: float,
    value: float,
    gradient: Tensor,
    start: Tensor | None,
) -> Solution:
    """From the last maximiser or from the gradient, whichever point of the sphere is the higher.

    The last maximiser alone is not enough: on a ViT in training it sometimes led to another, much lower maximum.
    """
    ball, centre = L2Ball(rho), Centre(value, gradient, keep=True)
    size = ball.dual(gradient)
    if start is None or not bool(start.any()) or size == 0:
        return solver.maximise(objective, ball, centre)
    last, along = ball.unit(start) * ball.radius, gradient / (size / ball.radius)  # as the solver itself begins
    at_last, at_along = objective(last), objective(along)
    warm = math.isfinite(at_last[0]) and not at_along[0] > at_last[0]
    first = [at_last if warm else at_along]

    def remembered(z: Tensor) -> tuple[float, Tensor]:
        return first.pop() if first else objective(z)

    found = solver.maximise(remembered, ball, centre, start=start if warm else None)
    return replace(found, evaluations=found.evaluations + 1)


def _exact(name: str, values: Sequence[float], settings: dict[str, Any]) -> Measurement:
    return Measurement(name, fmean(values), tuple(values), standard_error(values), Status.EXACT, {}, settings)


@dataclass(frozen=True)
class TopEigenvalue(Probe):
    """The largest eigenvalue of the Hessian, by Lanczos from the last eigenvector.

    Args:
        label: what the geometry is called in curves.
        geometry: what a unit length is.
        products: most Hessian products for each batch, each about the price of two gradients.
    """

    label: str
    geometry: Geometry = field(default_factory=Quotient)
    products: int = 8

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.products < 2:
            raise ArgumentError(f"expected products >= 2, got {self.products}")

    @property
    def name(self) -> str:
        return self.label

    @property
    def gradients(self) -> int:
        return 2 + 2 * self.products

    def read(self, problem: Problem, memory: Memory) -> dict[str, Measurement]:
        chart = problem.chart(self.geometry.osculating())
        values, states, residuals, products, warm = [], [], [], 0, 0
        for i, batch in enumerate(problem.batches()):
            operator = HessianOperator(problem, self.geometry, batch, chart=chart)
            noise = chart.gaussian(torch.Generator().manual_seed(i))
            last = chart.carry(memory[i]) if i in memory else None
            warm += last is not None
            start = noise if last is None else last + noise * (_NOISE / norm(noise))
            pairs = extreme_eigenpairs(
                lambda v, h=operator: h.project(h.apply(v)),  # type: ignore[misc]
                start,
                products=self.products,
                dimension=chart.dimension,
            )
            memory[i] = chart.keep(pairs.vectors[0])
            values.append(float(pairs.values[0]))
            residuals.append(float(pairs.residuals[0]))
            states.append(pairs.status)
            products += pairs.products
        stats = {"residual": max(residuals), "products": products, "warm starts": warm}
        settings = {"products": self.products, **base_settings(problem, self.geometry, chart, "batches")}
        measured = Measurement(
            "largest Hessian eigenvalue", fmean(values), tuple(values), standard_error(values), worst(states), stats,
            settings,
        )  # fmt: skip
        return {self.name: measured}


_NOISE = 0.03  # ours: of the last eigenvector's length, so that directions it has no part in are seen too


@dataclass(frozen=True)
class Catalogued(Probe):
    """A measure of the catalogue by its name, from scratch each time and with its own defaults.

    Args:
        measure: as in ``spiritlevel measure --measure``.
        options: radii, samples and the like.
    """

    measure: str
    options: Options = field(default_factory=Options)

    @property
    def name(self) -> str:
        return self.measure

    @property
    def gradients(self) -> int:
        return 20 * max(1, len(self.options.rho or MEASURES[self.measure].radii))

    def read(self, problem: Problem, memory: Memory) -> dict[str, Measurement]:
        del memory
        found = MEASURES[self.measure].run(problem, self.options)
        names = [f"{self.measure}@{m.settings['rho']:g}" if "rho" in m.settings else self.measure for m in found]
        return dict(zip(names, found, strict=True))


PROBES: Registry[Probe] = Registry("measure of the monitor")
# Radii: the middle of each measure's grid (`spiritlevel.measures.catalogue`).
PROBES.register("geodesic")(Rise("geodesic", Quotient(), 0.1, loss=True))
PROBES.register("adaptive")(Rise("adaptive", Elementwise(), 1.0))
PROBES.register("hessian-top")(TopEigenvalue("hessian-top"))


def probes_of(wanted: Sequence[str | Probe]) -> tuple[Probe, ...]:
    """Probes by name: one of ours, else a measure of the catalogue."""
    found = tuple(w if isinstance(w, Probe) else PROBES[w] if w in PROBES else Catalogued(_known(w)) for w in wanted)
    if not found:
        raise ArgumentError(f"expected at least one measure out of {', '.join({**PROBES, **MEASURES})}; got none")
    names = [p.name for p in found]
    if len(set(names)) < len(names):
        raise ArgumentError(f"expected each measure once, got {', '.join(names)}")
    return found


def _known(name: str) -> str:
    if name not in MEASURES:
        raise ArgumentError(f"expected measures out of {', '.join({**PROBES, **MEASURES})}; got {name!r}")
    return name
