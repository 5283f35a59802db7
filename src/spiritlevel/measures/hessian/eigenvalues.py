"""Extreme eigenvalues of the curvature: how steep is the steepest direction?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import HessianOperator, PerLayer
from spiritlevel.measures.hessian.run import Found, How, LayeredMeasurement, Run, check_counts, directions
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine
from spiritlevel.solvers import Eigenpairs, Which, extreme_eigenpairs

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

    @property
    def drawable(self) -> bool:
        """Whether there is a figure of it."""
        return True

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
    per_layer: PerLayer = False,
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
        products: most products for each matrix.
        per_layer: also those of each layer's diagonal block, by a run for each; a function of the layer's name joins
            layers to groups (`by_block`).
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data, or the mean over batches.
        seed: fixes where the search begins.
        seconds: stop after this time with what there is.
        show_progress: force the progress bar on or off.
    """
    check_counts(k=k, products=products)
    if which not in ("top", "bottom", "magnitude"):
        raise ArgumentError(f"expected which='top', 'bottom' or 'magnitude', got {which!r}")
    how = How(matrix, engine, over, seed, seconds, show_progress)
    run = Run(f"Hessian eigenvalues ({which})", problem, geometry, how, 10 * k, per_layer)
    tangents: list[Mapping[str, Tensor]] = []

    def search(operator: HessianOperator, seed: int) -> Found:
        pairs = _search(run, operator, seed, k, which, tolerance, products)
        return Found(float(pairs.values[0]), None, pairs.status, pairs.products, pairs)

    found = run.measure(search)
    pairs: list[Eigenpairs] = [f.detail for f in found]
    only = pairs[0] if len(pairs) == 1 else None
    if only is not None:
        tangents = [run.chart.tangent(v) for v in only.vectors]
    base = run.result(
        {"estimated errors": _mean(pairs, "errors")},
        {"k": k, "which": which, "tolerance": tolerance, "products": products},
        run.layers(lambda each: {"eigenvalues": _mean([x.detail for x in each], "values")}),
    )
    return Eigenvalues(
        **base.__dict__,
        eigenvalues=tuple(_mean(pairs, "values")),
        residuals=tuple(_mean(pairs, "residuals")),
        vectors=torch.zeros(0, run.chart.size) if only is None else only.vectors,
        tangents=tuple(tangents),
    )


def _search(
    run: Run, operator: HessianOperator, seed: int, k: int, which: Which, tolerance: float, products: int
) -> Eigenpairs:
    """Of one matrix, or of one layer of it."""
    whole = operator.dimension == run.chart.dimension
    if whole and k > operator.dimension:
        raise ArgumentError(f"expected k up to the dimension {operator.dimension}, got {k}")
    return extreme_eigenpairs(
        lambda v: operator.project(operator.apply(v)),
        next(directions(operator, seed)),
        min(k, operator.dimension),
        which,
        tolerance=tolerance,
        products=products,
        dimension=operator.dimension,
        seconds=run.left,
        step=run.step(),
    )


def _mean(found: list[Eigenpairs], what: str) -> list[float]:
    """Over matrices, rank by rank (as many as all of them have)."""
    ranks = min(len(p.values) for p in found)
    return [fmean(float(getattr(p, what)[r]) for p in found) for r in range(ranks)]
