"""The curvature measures by name, for the command line and for studies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spiritlevel.core.results import Measurement
from spiritlevel.measures.catalogue import MEASURES, NamedMeasure, Options
from spiritlevel.measures.hessian.diagonal import hessian_diagonal, root_diagonal_trace
from spiritlevel.measures.hessian.eigenvalues import hessian_eigenvalues
from spiritlevel.measures.hessian.renyi import renyi_sharpness
from spiritlevel.measures.hessian.spectrum import effective_dimension, hessian_density, hessian_logdet
from spiritlevel.measures.hessian.trace import hessian_norm, hessian_trace
from spiritlevel.problem import Problem

__all__ = ["CURVATURE"]

_Own = Callable[[Options], dict[str, Any]]


def _common(options: Options) -> dict[str, Any]:
    c = options.curvature
    names = ("matrix", "engine", "over", "per_layer", "seconds")
    chosen = {n: getattr(c, n) for n in names if getattr(c, n) is not None}
    return {**chosen, "seed": options.seed}


def _given(**settings: Any) -> dict[str, Any]:
    """Those that were set; the others keep the measure's default."""
    return {n: x for n, x in settings.items() if x is not None}


def _samples(o: Options) -> dict[str, Any]:
    return _given(samples=o.curvature.vectors, tolerance=o.curvature.tolerance)


def _probes(o: Options) -> dict[str, Any]:
    return _given(steps=o.curvature.steps, probes=o.curvature.probes)


def _named(measure: Callable[..., Measurement], own: _Own) -> Callable[[Problem, Options], list[Measurement]]:
    """One measurement in the geometry of the options."""

    def run(problem: Problem, options: Options) -> list[Measurement]:
        return [measure(problem, options.geometry or options.quotient, **own(options), **_common(options))]

    return run


def _extreme(which: str) -> Callable[[Problem, Options], list[Measurement]]:
    return _named(hessian_eigenvalues, lambda o: _given(k=o.curvature.k, which=which, tolerance=o.curvature.tolerance))


CURVATURE: dict[str, NamedMeasure] = {
    "hessian-trace": NamedMeasure(
        "trace of the curvature in --geometry",
        _named(hessian_trace, lambda o: {**_samples(o), "method": o.curvature.estimator}),
    ),
    "hessian-top": NamedMeasure("its largest eigenvalues", _extreme("top")),
    "hessian-bottom": NamedMeasure("its smallest eigenvalues", _extreme("bottom")),
    "hessian-norm": NamedMeasure("its Frobenius norm", _named(hessian_norm, _samples)),
    "hessian-diagonal": NamedMeasure(
        "its diagonal, summed by layer", _named(hessian_diagonal, lambda o: {"samples": o.curvature.vectors})
    ),
    "density": NamedMeasure("the density of its eigenvalues", _named(hessian_density, _probes)),
    "logdet": NamedMeasure(
        "log det(curvature + damping), of magnitudes",
        _named(hessian_logdet, lambda o: {**_probes(o), "damping": o.curvature.damping, "absolute": True}),
    ),
    "effective-dimension": NamedMeasure(
        "how many directions are curved by more than the damping",
        _named(effective_dimension, lambda o: {**_probes(o), "damping": o.curvature.damping}),
    ),
    "renyi": NamedMeasure(
        "Rényi sharpness, layer by layer",
        _named(renyi_sharpness, lambda o: {**_probes(o), "alpha": o.curvature.alpha}),
    ),
    "root-diagonal": NamedMeasure(
        "sum of the roots of the diagonal",
        _named(root_diagonal_trace, lambda o: {"samples": o.curvature.vectors}),
    ),
}
for _name, _measure in CURVATURE.items():
    MEASURES.register(_name)(_measure)
