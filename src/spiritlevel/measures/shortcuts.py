"""The two everyday measures: adaptive sharpness and geodesic sharpness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from spiritlevel.core.blocks import Block
from spiritlevel.core.results import Curve, Measurement
from spiritlevel.geometry import Elementwise, Quotient
from spiritlevel.measures.common import Over
from spiritlevel.measures.worst_case import Norm, worst_case
from spiritlevel.problem import Problem
from spiritlevel.solvers import Solver

__all__ = ["adaptive_sharpness", "geodesic_sharpness"]


@overload
def adaptive_sharpness(
    problem: Problem,
    rho: float = 0.1,
    norm: Norm = "l2",
    solver: Solver | None = None,
    seed: int = 0,
    *,
    over: Over = "batches",
    show_progress: bool | None = None,
) -> Measurement: ...


@overload
def adaptive_sharpness(
    problem: Problem,
    rho: Sequence[float],
    norm: Norm = "l2",
    solver: Solver | None = None,
    seed: int = 0,
    *,
    over: Over = "batches",
    show_progress: bool | None = None,
) -> Curve: ...


def adaptive_sharpness(
    problem: Problem,
    rho: float | Sequence[float] = 0.1,
    norm: Norm = "l2",
    solver: Solver | None = None,
    seed: int = 0,
    *,
    over: Over = "batches",
    show_progress: bool | None = None,
) -> Measurement | Curve:
    """``max L(w + |w| z) - L(w)`` over ``|z| <= rho``: worst-case sharpness with weights measured relatively.

    Invariant under rescaling of single weights, not under the GL(h) of attention: use `geodesic_sharpness` there.
    Usual radii: 0.5 to 4 for ``l2``, 0.0005 to 0.008 for ``linf`` (Andriushchenko et al. 2023). For the arguments see
    `worst_case`.
    """
    return worst_case(
        problem,
        Elementwise(),
        rho,
        solver,
        seed,
        norm=norm,
        over=over,
        name=f"adaptive sharpness ({norm})",
        show_progress=show_progress,
    )


@overload
def geodesic_sharpness(
    problem: Problem,
    rho: float = 0.1,
    metric: Literal["inverse_gram", "cross_gram"] = "inverse_gram",
    blocks: Sequence[Block] | None = None,
    solver: Solver | None = None,
    seed: int = 0,
    *,
    over: Over = "batches",
    show_progress: bool | None = None,
) -> Measurement: ...


@overload
def geodesic_sharpness(
    problem: Problem,
    rho: Sequence[float],
    metric: Literal["inverse_gram", "cross_gram"] = "inverse_gram",
    blocks: Sequence[Block] | None = None,
    solver: Solver | None = None,
    seed: int = 0,
    *,
    over: Over = "batches",
    show_progress: bool | None = None,
) -> Curve: ...


def geodesic_sharpness(
    problem: Problem,
    rho: float | Sequence[float] = 0.1,
    metric: Literal["inverse_gram", "cross_gram"] = "inverse_gram",
    blocks: Sequence[Block] | None = None,
    solver: Solver | None = None,
    seed: int = 0,
    *,
    over: Over = "batches",
    show_progress: bool | None = None,
) -> Measurement | Curve:
    """The largest rise of the loss in a geodesic ball of the quotient by the model's symmetries (Hide & Seek, Eq. 6).

    Invariant under every GL(h) of the blocks: it measures the function, not the weights it happens to be written with.
    Radii are smaller than adaptive ones, because a unit of length can sit in one direction of one head: 0.05 to 0.5 is
    usual. For the arguments see `worst_case` and `Quotient`.
    """
    return worst_case(
        problem,
        Quotient(metric, blocks=blocks),
        rho,
        solver,
        seed,
        over=over,
        name="geodesic sharpness",
        show_progress=show_progress,
    )
