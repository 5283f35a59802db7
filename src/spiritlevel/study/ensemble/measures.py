"""Measures of all networks of an ensemble: the numbers that each network has by itself."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from spiritlevel.core.results import Curve, Measurement, Status, standard_error, worst
from spiritlevel.errors import ArgumentError, DerivativeError, LossError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import checked_radii
from spiritlevel.solvers import AutoPGD, L2Ball, LinfBall, Solution
from spiritlevel.solvers.together import maximise_together
from spiritlevel.study.ensemble.chart import StackedChart
from spiritlevel.study.ensemble.stack import Ensemble
from spiritlevel.symmetry import check_blocks

__all__ = ["average_cases", "gradient_norms", "worst_cases"]


class _Objectives:
    """The losses on one batch in the coordinates of the networks: rows of points to values and gradients."""

    def __init__(self, ensemble: Ensemble, chart: StackedChart, batch: Any) -> None:
        self._ensemble, self.chart, self._batch = ensemble, chart, batch

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        moved, back = self.chart.evaluate(rows)
        weights = {n: w.detach().requires_grad_() for n, w in moved.items()}
        total, gradient = torch.zeros(len(rows), dtype=torch.float64, device=rows.device), dict[str, Tensor]()
        for part, share in self._ensemble.problem.parts(self._batch):
            with torch.enable_grad():
                values = self._ensemble.values(weights, part) * share
            total += values.detach().double()
            # networks do not meet: the gradient of the sum holds that of each
            pulled = torch.autograd.grad(values.sum(), list(weights.values()), materialize_grads=True)
            for n, g in zip(weights, pulled, strict=True):
                gradient[n] = gradient[n] + g if n in gradient else g
        return total, back(gradient)

    def values(self, rows: Tensor) -> Tensor:
        """Values alone."""
        with torch.no_grad():
            return self._ensemble.losses(self._batch, self.chart.weights(rows))

    def centre(self) -> tuple[Tensor, Tensor]:
        """Values and gradients at the networks' own weights; all finite."""
        values, gradients = self(self.chart.zeros())
        if not bool(torch.isfinite(values).all()):
            raise LossError("expected a finite loss at every network's own weights: check data and weights")
        if not bool(torch.isfinite(gradients).all()):
            raise DerivativeError(
                "expected a finite gradient at every network's own weights, got NaN or infinity although the losses "
                "are finite: look for square roots, logarithms or divisions at 0 in the model or loss"
            )
        return values, gradients


def _chart(ensemble: Ensemble, geometry: Geometry) -> StackedChart:
    """After the checks that a first measurement makes; symmetries are verified on each network."""
    ensemble.check()
    if not geometry.needs_blocks:
        return StackedChart(geometry, ensemble.weights, (), len(ensemble))
    blocks = ensemble.problem.blocks_of(geometry)
    batch = next(ensemble.batches())
    for model in ensemble.models:
        check_blocks(model, batch, blocks)
    return StackedChart(geometry, ensemble.weights, blocks, len(ensemble))


def _objectives(ensemble: Ensemble, chart: StackedChart) -> Iterator[_Objectives]:
    for batch in ensemble.batches():
        yield _Objectives(ensemble, chart, batch)


def _settings(ensemble: Ensemble, geometry: Geometry) -> dict[str, Any]:
    return {**geometry.settings(), "over": "batches", **ensemble.problem.settings}


def gradient_norms(ensemble: Ensemble, geometry: Geometry) -> list[Measurement]:
    """`gradient_norm` of each network. Costs one gradient of all of them a batch."""
    began, chart = time.perf_counter(), _chart(ensemble, geometry)
    found = [o.centre()[1] for o in _objectives(ensemble, chart)]
    norms = torch.stack([torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for g in found], 1).tolist()
    seconds = (time.perf_counter() - began) / len(ensemble)
    return [
        Measurement(
            name="gradient norm",
            value=fmean(each),
            per_batch=tuple(each),
            standard_error=standard_error(each),
            status=Status.EXACT,
            stats={"evaluations": len(each), "seconds": seconds},
            settings=_settings(ensemble, geometry),
        )
        for each in norms
    ]


def average_cases(
    ensemble: Ensemble, geometry: Geometry, rho: float = 0.1, samples: int = 20, seed: int = 0
) -> list[Measurement]:
    """`average_case` of each network at the points it would get by itself, in antithetic pairs.

    Costs ``samples + 1`` forward passes of all networks a batch.
    """
    (radius,) = checked_radii(rho)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2 or samples % 2:
        raise ArgumentError(f"expected an even number of samples from 2 on, got {samples!r}")
    began, chart = time.perf_counter(), _chart(ensemble, geometry)
    draws = []  # of each batch: (samples / 2, networks)
    for i, objectives in enumerate(_objectives(ensemble, chart)):
        generator = torch.Generator().manual_seed(seed + i)
        centre, of_batch = objectives.values(chart.zeros()), []
        for _ in range(samples // 2):
            z = chart.gaussian(generator) * radius
            of_batch.append((objectives.values(z) + objectives.values(-z)) / 2 - centre)
        draws.append(torch.stack(of_batch))
    seconds, settings = (time.perf_counter() - began) / len(ensemble), _settings(ensemble, geometry)
    settings = {"rho": radius, "samples": samples, "antithetic": True, "seed": seed, **settings}
    return [_average([d[:, i].tolist() for d in draws], samples, seconds, settings) for i in range(len(ensemble))]


def _average(draws: Sequence[list[float]], samples: int, seconds: float, settings: dict[str, Any]) -> Measurement:
    finite = [[d for d in of_batch if math.isfinite(d)] for of_batch in draws]
    if not all(finite):
        raise LossError(
            f"expected a finite loss at some of {samples} random points, got none: take rho below {settings['rho']:g}"
        )
    means, errors = [fmean(f) for f in finite], [standard_error(f) or 0.0 for f in finite]
    lost = any(len(f) < len(d) for f, d in zip(finite, draws, strict=True))
    return Measurement(
        name="average-case sharpness",
        value=fmean(means),
        per_batch=tuple(means),
        standard_error=math.sqrt(math.fsum(e * e for e in errors)) / len(errors),
        status=Status.NONFINITE if lost else Status.ESTIMATE,
        stats={"evaluations": len(means) * samples, "seconds": seconds},
        settings=settings,
    )


def worst_cases(
    ensemble: Ensemble,
    geometry: Geometry,
    rho: float | Sequence[float] = 0.1,
    solver: AutoPGD | None = None,
    *,
    norm: str = "l2",
    name: str = "worst-case sharpness",
) -> list[Curve]:
    """`worst_case` of each network with Auto-PGD, at all radii in the order given.

    The default solver of `worst_case`, `SphereAscent`, chooses its steps by a small model of its own for each function;
    a stack of networks gains nothing there.

    Costs, for each batch and radius, ``solver.steps`` gradients of all networks.
    """
    radii, solver = checked_radii(rho), AutoPGD() if solver is None else solver
    if norm not in ("l2", "linf"):
        raise ArgumentError(f"expected norm 'l2' or 'linf', got {norm!r}")
    if norm == "linf" and geometry.needs_blocks:
        raise ArgumentError("expected norm='l2' for a quotient: the largest coordinate depends on the basis there")
    if not isinstance(solver, AutoPGD):
        raise ArgumentError(f"expected Auto-PGD for networks together, got {solver}: measure them one by one")
    began, chart, ball = time.perf_counter(), _chart(ensemble, geometry), L2Ball if norm == "l2" else LinfBall
    ladder = sorted(set(radii))
    rises: dict[float, list[list[tuple[float, Solution]]]] = {r: [[] for _ in ensemble.models] for r in ladder}
    for objectives in _objectives(ensemble, chart):
        values, gradients = objectives.centre()
        before: list[Solution] | None = None
        for radius in ladder:
            starts = None if before is None else torch.stack([_onto(s.z, ball(radius)) for s in before])
            found = maximise_together(solver, objectives, ball(radius), values, gradients, starts)
            if before is not None:  # a point of the ball below lies in this ball too
                pairs = zip(before, found, strict=True)
                found = [
                    Solution(b.z, b.value, b.residual, f.status, f.evaluations) if b.value > f.value else f
                    for b, f in pairs
                ]
            for row, solution in enumerate(found):
                rises[radius][row].append((solution.value - float(values[row]), solution))
            before = found
    seconds = (time.perf_counter() - began) / len(ensemble) / len(ladder)
    settings = {**_settings(ensemble, geometry), "norm": norm, "solver": str(solver)}
    return [
        Curve(tuple(_worst(name, rises[r][row], seconds, {"rho": r, **settings}) for r in radii))
        for row in range(len(ensemble))
    ]


def _onto(z: Tensor, ball: L2Ball | LinfBall) -> Tensor:
    """A maximiser of a smaller ball, stretched to the boundary of this one; zero stays zero."""
    size = ball.norm(z)
    return z * (ball.radius / size) if size > 0 else z


def _worst(name: str, found: list[tuple[float, Solution]], seconds: float, settings: dict[str, Any]) -> Measurement:
    gains = [gain for gain, _ in found]
    residuals, counts = [s.residual for _, s in found], [s.evaluations for _, s in found]
    return Measurement(
        name=name,
        value=sum(gains) / len(gains),
        per_batch=tuple(gains),
        standard_error=standard_error(gains),
        status=worst([s.status for _, s in found]),
        stats={
            "residual": max(residuals),
            "evaluations": sum(counts),
            "residual per batch": residuals,
            "evaluations per batch": counts,
            "seconds": seconds,
        },
        settings=settings,
    )
