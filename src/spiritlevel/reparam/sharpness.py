"""Sharpness by the Hessian as an operator: trace, determinant and eigenvalues of ``E = G^-1 H``, for any metric."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core.results import Measurement, Status
from spiritlevel.core.tensors import dot
from spiritlevel.errors import ArgumentError, DerivativeError
from spiritlevel.geometry import Chart, Geometry
from spiritlevel.problem import Curvature, Matrix, Problem, check_second_derivatives
from spiritlevel.reparam.metrics import Form, Metric
from spiritlevel.reparam.pencil import extreme_pencil_eigenvalues
from spiritlevel.solvers import Quadrature, extreme_eigenpairs, hutchinson, quadrature

__all__ = ["By", "sharpness"]

By = Literal["trace", "det", "eigenvalues"]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class _Settings:
    k: int
    samples: int
    tolerance: float
    steps: int
    probes: int
    damping: float
    absolute: bool
    seed: int


class _Operator:
    """``H`` by its products in the coordinates of a chart, and the metric there (None: orthonormal already)."""

    def __init__(self, problem: Problem, metric: Metric | Geometry, matrix: Matrix) -> None:
        lines = metric.lines if isinstance(metric, Metric) else metric
        self.chart: Chart = problem.chart(lines.osculating())
        self.form: Form | None = metric.at(problem) if isinstance(metric, Metric) else None
        batch = next(problem.batches()) if problem.count() == 1 else None  # one batch keeps its graph
        self.curvature = Curvature(problem, self.chart, batch, matrix)

    def signs(self, seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            v = torch.randint(0, 2, (self.chart.size,), generator=generator, dtype=torch.int8)
            yield (v * 2 - 1).to(self.chart.device, self.chart.dtype)

    def gaussians(self, seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield self.chart.gaussian(generator)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        """``H`` and ``G``."""
        identity = torch.eye(self.chart.size, dtype=self.chart.dtype, device=self.chart.device)
        h = torch.stack([self.curvature(e) for e in identity])
        return (h + h.mT) / 2, None if self.form is None else self.form.matrix()

    def spectrum(self) -> Array:
        """All eigenvalues of ``E`` on the horizontal space, the largest first."""
        h, g = self.dense()
        if g is not None:
            values, vectors = torch.linalg.eigh(g)
            if not float(values[0]) > 1e-14 * float(values[-1]):
                assert self.form is not None
                raise self.form._singular(vectors[:, 0], float(values[0]))
            factor = torch.linalg.cholesky(g)
            half = torch.linalg.solve_triangular(factor, h, upper=False)
            h = torch.linalg.solve_triangular(factor, half.mT.contiguous(), upper=False)
        found: Array = torch.linalg.eigvalsh((h + h.mT) / 2).flip(0).double().cpu().numpy()
        vertical = self.chart.size - self.chart.dimension
        if vertical:  # directions without coordinates of their own have eigenvalue 0: leave out the smallest magnitudes
            found = np.sort(found[np.argsort(np.abs(found))[vertical:]])[::-1]
        return found


_Found = tuple[float, float | None, Status, dict[str, Any]]


def _trace(e: _Operator, s: _Settings) -> _Found:
    def quadratic(v: Tensor, hv: Tensor) -> tuple[float]:
        return (dot(v, hv if e.form is None else e.form.solve(hv)),)

    found = hutchinson(e.curvature, e.signs(s.seed), tolerance=s.tolerance, samples=s.samples, reduce=quadratic)
    return found.value, found.error, found.status, {"products": found.products}


def _eigenvalues(e: _Operator, s: _Settings) -> _Found:
    start = next(e.gaussians(s.seed))
    if e.form is None:
        pairs = extreme_eigenpairs(
            e.curvature, start, s.k, tolerance=s.tolerance, products=s.samples, dimension=e.chart.dimension
        )
        values, status, products = [float(v) for v in pairs.values], pairs.status, pairs.products
    else:
        values, status, products = extreme_pencil_eigenvalues(
            e.curvature, e.form.product, e.form.solve, start, s.k, tolerance=s.tolerance, products=s.samples
        )
    return values[0], None, status, {"eigenvalues": values, "products": products}


def _quadrature(e: _Operator, apply: Callable[[Tensor], Tensor], s: _Settings) -> Quadrature:
    probes = itertools.islice(e.gaussians(s.seed), s.probes)
    return quadrature(lambda v: e.chart.project(apply(v)), probes, s.steps, e.chart.dimension)


def _logarithms(s: _Settings, damping: float) -> Callable[[Array], Array]:
    def f(x: Array) -> Array:
        if not s.absolute and float(x.min()) <= -damping:
            raise DerivativeError(
                f"expected eigenvalues above {-damping:g} for a log-determinant, got {x.min():.4g}: away from a strict "
                "minimum take damping=, absolute=True, or matrix='gauss_newton'"
            )
        logs: Array = np.log((np.abs(x) if s.absolute else x) + damping)
        return logs

    return f


def _det(e: _Operator, s: _Settings) -> _Found:
    if e.form is None:
        q = _quadrature(e, e.curvature, s)
        value, error = q.trace(_logarithms(s, s.damping))
        return value, error, q.status, {"products": q.products}
    if s.absolute and s.damping > 0:
        raise ArgumentError(
            "expected absolute=True or damping above 0 for a matrix-free determinant in a metric, got both: the "
            "eigenvalues of G^-1 H + damping are not known one by one there; take one of them, or dense=True"
        )
    form = e.form
    upper = _quadrature(e, lambda v: e.curvature(v) + s.damping * form.product(v), s)
    lower = _quadrature(e, form.product, s)
    each = upper.traces(_logarithms(s, 0.0)) - lower.traces(np.log)
    error = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else None
    return float(each.mean()), error, upper.status, {"products": upper.products + lower.products}


def _dense(e: _Operator, s: _Settings, by: By) -> _Found:
    values = e.spectrum()
    facts = {"eigenvalues": values[: s.k].tolist(), "products": e.chart.size}
    if by == "det":
        return float(_logarithms(s, s.damping)(values).sum()), None, Status.EXACT, facts
    return float(values.sum() if by == "trace" else values[0]), None, Status.EXACT, facts


_ESTIMATORS: dict[str, Callable[[_Operator, _Settings], _Found]] = {
    "trace": _trace,
    "det": _det,
    "eigenvalues": _eigenvalues,
}


def sharpness(
    problem: Problem,
    metric: Metric | Geometry,
    by: By = "trace",
    *,
    dense: bool = False,
    k: int = 1,
    samples: int = 100,
    tolerance: float = 0.02,
    steps: int = 40,
    probes: int = 5,
    damping: float = 0.0,
    absolute: bool = False,
    matrix: Matrix = "hessian",
    seed: int = 0,
) -> Measurement:
    """Trace, log-determinant or top eigenvalues of ``E = G^-1 H`` over all data (paper, Sec. 3.1 and App. B).

    ``H`` alone is a bilinear form: its trace and determinant change with the coordinates. As an operator, with the
    metric written out and transported, it does not: ``E -> J E J^-1``. ``H`` is taken along the lines of the metric's
    geometry, so it is the Riemannian Hessian away from minima too where those are geodesics (to second order).

    Invariant under every reparametrisation when metric and problem move together:
    ``sharpness(reparametrised(problem, phi), metric.transported(phi))``.

    Costs one gradient and, for each of ``products``, about two; with a Fisher-like metric also a solve by conjugate
    gradients (for the trace and the eigenvalues), each product of which costs as much. ``dense`` takes one product for
    each weight.

    Args:
        problem: model, loss and data.
        metric: a geometry (`Euclidean`, `Diagonal`, `Diagonal.from_optimizer`, `Dense`, transported ...) or a metric
            known by its products (`fisher`, `gauss_newton`, `empirical_fisher`, `KFAC`).
        by: ``trace``; ``det``, whose logarithm is the value; or ``eigenvalues``, the largest of which is the value.
        dense: from the whole matrix, for small nets: exact.
        k: how many eigenvalues.
        samples: most products, for trace and eigenvalues.
        tolerance: wanted relative error there.
        steps: Lanczos steps for each probe, for the determinant.
        probes: random directions there.
        damping: added to every eigenvalue of ``E`` in the determinant.
        absolute: take magnitudes there; otherwise an eigenvalue at or below 0 is an error.
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        seed: fixes the random vectors.

    Raises:
        ReparametrisationError: where the metric is singular, naming a parameter.
        DerivativeError: for the logarithm of a determinant that is not positive.

    >>> import spiritlevel as sl
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> problem = sl.Problem(model, [(torch.ones(1, 1), torch.zeros(1, 1))], torch.nn.MSELoss())
    >>> sharpness(problem, sl.Diagonal({"weight": torch.tensor(4.0)}), dense=True).value  # L = w^2, 2 / 4
    0.5
    """
    if by not in _ESTIMATORS:
        raise ArgumentError(f"expected by='trace', 'det' or 'eigenvalues', got {by!r}")
    for name, count in (("k", k), ("samples", samples), ("steps", steps), ("probes", probes)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(f"expected {name} to be a whole number from 1 on, got {count!r}")
    if not (damping >= 0 and tolerance >= 0):
        raise ArgumentError(f"expected damping and tolerance from 0 on, got {damping!r} and {tolerance!r}")
    began = time.perf_counter()
    problem.need_whole("sharpness by another metric")
    problem.check()
    check_second_derivatives(problem)
    operator = _Operator(problem, metric, matrix)
    settings = _Settings(k, samples, tolerance, steps, probes, damping, absolute, seed)
    value, error, status, facts = _dense(operator, settings, by) if dense else _ESTIMATORS[by](operator, settings)
    name = {"trace": "trace", "det": "log-determinant", "eigenvalues": "top eigenvalue"}[by]
    return Measurement(
        name=f"{name} of G^-1 H",
        value=value,
        per_batch=(value,),
        standard_error=error,
        status=status,
        stats={**facts, "seconds": time.perf_counter() - began},
        settings={
            "metric": str(metric),
            "by": by,
            "dense": dense,
            **settings.__dict__,
            "matrix": matrix,
            "dimension": operator.chart.dimension,
            **problem.settings,
        },
    )
