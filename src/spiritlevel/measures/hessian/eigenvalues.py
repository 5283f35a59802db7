"""Extreme eigenvalues of the curvature: how steep is the steepest direction?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spiritlevel.core.results import standard_error
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator
from spiritlevel.measures.hessian.run import Layer, LayeredMeasurement, Run, check_counts, directions
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine
from spiritlevel.solvers import Eigenpairs, Which, extreme_eigenpairs
from spiritlevel.solvers.lanczos import Apply

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Eigenvalues", "hessian_eigenvalues"]


@dataclass(frozen=True)
class Eigenvalues(LayeredMeasurement):
    """The extreme eigenvalues; ``value`` is the first, the mean over batches where there are several.

    Attributes:
        eigenvalues: the most extreme first (the mean over batches, rank by rank, where there are several).
        residuals: ``|H x - lambda x|`` of each: an eigenvalue lies within that distance.
        vectors: unit eigenvectors in coordinates, one row for each; none for several batches.
        tangents: the eigenvectors as tangent vectors at the user's weights, by parameter name.
    """

    eigenvalues: tuple[float, ...] = ()
    residuals: tuple[float, ...] = ()
    vectors: Tensor = field(default_factory=lambda: torch.zeros(0, 0), repr=False, compare=False)
    tangents: tuple[Mapping[str, Tensor], ...] = field(default=(), repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; without the vectors."""
        return {**super().to_dict(), "eigenvalues": list(self.eigenvalues), "residuals": list(self.residuals)}

    def figure(self) -> Figure:
        """Eigenvalues by layer, or by rank where no layers were asked for."""
        from spiritlevel.measures.hessian.figures import eigenvalue_figure

        return eigenvalue_figure(self)


def hessian_eigenvalues(
    problem: Problem,
    geometry: Geometry,
    k: int = 1,
    *,
    which: Which = "top",
    tolerance: float = 1e-3,
    products: int = 200,
    per_layer: bool = False,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
    over: Over = "union",
    seed: int = 0,
    seconds: float | None = None,
    show_progress: bool | None = None,
) -> Eigenvalues:
    """Extreme eigenpairs of the Riemannian Hessian on the horizontal space, with residuals.

    Lanczos with full reorthogonalisation and restarts, stopped when each wanted value is known to ``tolerance``
    relative to the largest magnitude (``residual^2 / gap``). Invariant under whatever the geometry is invariant under.
    Costs one gradient and about two for each product: about 8 products for the top one.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        k: how many.
        which: ``top`` (largest), ``bottom`` (smallest) or ``magnitude``.
        tolerance: wanted relative error.
        products: most products for each operator.
        per_layer: also the eigenvalues of each layer's diagonal block (a run for each layer).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes where the search begins.
        seconds: stop after this time with what there is (for each operator and layer).
        show_progress: force the progress bar on or off.
    """
    check_counts(k=k, products=products)
    if which not in ("top", "bottom", "magnitude"):
        raise ArgumentError(f"expected which='top', 'bottom' or 'magnitude', got {which!r}")
    run = Run(f"Hessian eigenvalues ({which})", problem, geometry, over, matrix, engine, 10 * k, show_progress)
    search = _Search(run, k, which, tolerance, products, seconds)
    found: list[Eigenpairs] = []
    layers: list[list[Layer]] = []
    tangents: tuple[Mapping[str, Tensor], ...] = ()
    for i, operator in enumerate(run.operators()):
        found.append(search(operator, seed + i))
        run.add(float(found[-1].values[0]), None, found[-1].status)
        if per_layer:
            layers.append([search.layer(operator, name, seed + i) for name in operator.chart.layers()])
    if len(found) == 1:
        tangents = tuple(operator.chart.tangent(v) for v in found[0].vectors)
    base = run.result(
        {"estimated errors": _mean(found, "errors"), **run.facts(search.spent)},
        run.settings(k=k, which=which, tolerance=tolerance, products=products, seed=seed),
        [_mean_layer(of_one) for of_one in zip(*layers, strict=True)],
    )
    return Eigenvalues(
        **base.__dict__,
        eigenvalues=tuple(_mean(found, "values")),
        residuals=tuple(_mean(found, "residuals")),
        vectors=found[0].vectors if len(found) == 1 else torch.zeros(0, run.chart.size),
        tangents=tangents,
    )


@dataclass
class _Search:
    """The search for eigenpairs of one operator, or of one layer of it."""

    run: Run
    k: int
    which: Which
    tolerance: float
    products: int
    seconds: float | None
    spent: int = 0

    def __call__(self, operator: HessianOperator, seed: int) -> Eigenpairs:
        if self.k > operator.dimension:
            raise ArgumentError(f"expected k up to the dimension {operator.dimension}, got {self.k}")
        project = operator.chart.project
        return self._pairs(operator, next(directions(operator, seed)), lambda v: project(operator.apply(v)), self.k)

    def layer(self, operator: HessianOperator, name: str, seed: int) -> Layer:
        """The same for the diagonal block of one layer."""
        with operator.only(name):
            start, size = next(directions(operator, seed)), operator.dimension
            if not bool(start.any()):  # all weights of it are 0 and do not move
                return Layer(name, 0.0, None, size, {"eigenvalues": [0.0]})
            pairs = self._pairs(operator, start, operator.apply, min(self.k, size))
        values = pairs.values.tolist()
        return Layer(name, values[0], None, size, {"eigenvalues": values, "status": str(pairs.status)})

    def _pairs(self, operator: HessianOperator, start: Tensor, apply: Apply, k: int) -> Eigenpairs:
        pairs = extreme_eigenpairs(
            apply,
            start,
            k,
            self.which,
            tolerance=self.tolerance,
            products=self.products,
            dimension=operator.dimension,
            seconds=self.seconds,
            step=self.run.step(),
        )
        self.spent += pairs.products
        return pairs


def _mean(found: list[Eigenpairs], what: str) -> list[float]:
    """Over operators, rank by rank (as many as all of them have)."""
    ranks = min(len(p.values) for p in found)
    return [fmean(float(getattr(p, what)[r]) for p in found) for r in range(ranks)]


def _mean_layer(of_one: tuple[Layer, ...]) -> Layer:
    """Over operators."""
    return replace(
        of_one[0], value=fmean(x.value for x in of_one), standard_error=standard_error([x.value for x in of_one])
    )
