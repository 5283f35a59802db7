"""The measures by name, for the command line and for studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spiritlevel.core.registry import Registry
from spiritlevel.core.results import Measurement
from spiritlevel.geometry import Elementwise, Euclidean, Geometry, Quotient
from spiritlevel.measures.average_case import average_case
from spiritlevel.measures.gradient_norm import gradient_norm
from spiritlevel.measures.hessian.options import CurvatureOptions
from spiritlevel.measures.shortcuts import adaptive_sharpness
from spiritlevel.measures.worst_case import worst_case
from spiritlevel.problem import Problem
from spiritlevel.solvers import Solver

__all__ = ["MEASURES", "NamedMeasure", "Options"]


@dataclass(frozen=True)
class Options:
    """Settings of a measure called by name; each takes what concerns it.

    Attributes:
        rho: the radii; empty for the measure's own default.
        geometry: for measures that leave it open; by default the quotient.
        quotient: the quotient geometry, for the measures that have it in their name.
        solver: for worst cases.
        samples: for averages.
        seed: for everything random.
        curvature: for the measures of curvature.
    """

    rho: Sequence[float] = ()
    geometry: Geometry | None = None
    quotient: Quotient = field(default_factory=Quotient)
    solver: Solver | None = None
    samples: int = 20
    seed: int = 0
    curvature: CurvatureOptions = field(default_factory=CurvatureOptions)


@dataclass(frozen=True)
class NamedMeasure:
    """A measure and what it is in one line.

    Attributes:
        summary: for help texts.
        run: problem and options to one measurement for each radius.
        radii: the default radii; empty for measures that have none.
    """

    summary: str
    run: Callable[[Problem, Options], list[Measurement]]
    radii: tuple[float, ...] = ()


MEASURES: Registry[NamedMeasure] = Registry("measure")
_GEODESIC = (0.05, 0.1, 0.2)  # ours: from barely to clearly outside the quadratic range on trained ViTs
_ADAPTIVE = (0.5, 1.0, 2.0)  # Andriushchenko et al. 2023, ViT grid (0.5 to 4)
_LINF = (0.001, 0.002, 0.004)  # the same, l-infinity


def _geodesic(problem: Problem, options: Options) -> list[Measurement]:
    radii = options.rho or _GEODESIC
    return list(worst_case(problem, options.quotient, radii, options.solver, options.seed, name="geodesic sharpness"))


def _adaptive(problem: Problem, options: Options) -> list[Measurement]:
    return list(adaptive_sharpness(problem, options.rho or _ADAPTIVE, "l2", options.solver, options.seed))


def _adaptive_linf(problem: Problem, options: Options) -> list[Measurement]:
    return list(adaptive_sharpness(problem, options.rho or _LINF, "linf", options.solver, options.seed))


def _worst_case(problem: Problem, options: Options) -> list[Measurement]:
    geometry = options.geometry or options.quotient
    return list(worst_case(problem, geometry, options.rho or _default_radii(geometry), options.solver, options.seed))


def _average_case(problem: Problem, options: Options) -> list[Measurement]:
    geometry = options.geometry or options.quotient
    radii = options.rho or (0.1,)
    return [average_case(problem, geometry, rho, options.samples, options.seed) for rho in radii]


def _gradient_norm(problem: Problem, options: Options) -> list[Measurement]:
    return [gradient_norm(problem, options.geometry or options.quotient)]


def _default_radii(geometry: Geometry) -> tuple[float, ...]:
    if isinstance(geometry, Elementwise):
        return _ADAPTIVE
    return (0.05, 0.1, 0.2) if isinstance(geometry, Euclidean) else _GEODESIC


for _name, _measure in {
    "geodesic": NamedMeasure("largest rise in a geodesic ball of the quotient", _geodesic, _GEODESIC),
    "adaptive": NamedMeasure("largest rise when every weight moves relatively (l2)", _adaptive, _ADAPTIVE),
    "adaptive-linf": NamedMeasure("the same in the largest coordinate", _adaptive_linf, _LINF),
    "worst-case": NamedMeasure("largest rise in a ball of --geometry", _worst_case, _GEODESIC),
    "average-case": NamedMeasure("mean rise at Gaussian points of --geometry", _average_case, (0.1,)),
    "gradient-norm": NamedMeasure("length of the gradient in --geometry", _gradient_norm),
}.items():
    MEASURES.register(_name)(_measure)
