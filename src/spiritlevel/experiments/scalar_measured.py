"""What the library measures of two scalar weights: at a point, on a grid, along orbits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.core.blocks import Block
from spiritlevel.core.progress import Advance
from spiritlevel.experiments.products import pairs, problem_of
from spiritlevel.experiments.scalar_forms import FIELDS
from spiritlevel.geometry import Euclidean, Geometry, Quotient
from spiritlevel.measures import gradient_norm, hessian_trace, worst_case
from spiritlevel.problem import Problem
from spiritlevel.solvers import SphereAscent
from spiritlevel.symmetry import move_along_orbit

__all__ = ["ONCE", "QUICK", "SIX", "Data", "Grid", "Setting", "along_orbits", "fields_at", "mesh", "quotient",
           "scalar_problem", "sharpnesses", "trace", "unit"]  # fmt: skip

F64 = torch.float64
Data = tuple[Tensor, Tensor]
ONCE = SphereAscent(tolerance=1e-13)
SOLVER = SphereAscent(tolerance=1e-13, restarts=12)  # a geodesic has two ends: one of 4096 points would miss one


@dataclass(frozen=True)
class Setting:
    """The paper states none of these numbers: chosen.

    Attributes:
        example: the training point (x, y) of Eq. 22 to 24; x is not 1, so that its powers can be told apart.
        more: the training points of Eq. 25 and 26.
        box: the range of both weights.
        grid: points per axis at which everything but sharpness is measured.
        coarse: points per axis at which sharpness is.
        radii: paper's rho, ``|B|``.
        orbits: moves along orbits at each of the six points of the figure.
        strength: their standard deviation, of the logarithm.
    """

    example: tuple[float, float] = (1.5, 1.2)
    more: tuple[tuple[float, float], ...] = ((1.5, 1.2), (-0.7, 0.4), (0.5, 2.0), (2.0, 1.0))
    box: tuple[float, float] = (0.05, 2.5)
    grid: int = 21
    coarse: int = 9
    radii: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    orbits: int = 20
    strength: float = 0.7

    @property
    def point(self) -> Data:
        """The training point as tensors."""
        return tuple(torch.tensor([c], dtype=F64) for c in self.example)  # type: ignore[return-value]

    @property
    def points(self) -> Data:
        """The training points as tensors."""
        x, y = zip(*self.more, strict=True)
        return torch.tensor(x, dtype=F64), torch.tensor(y, dtype=F64)


QUICK = Setting(grid=9, coarse=4, orbits=4)
_BLOCKS: list[Block] = list(pairs(1))
SIX = ((0.3, 0.5), (0.9, 0.6), (0.7, 1.0), (1.2, 1.3), (1.6, 1.7), (2.1, 2.2))


def scalar_problem(g: float, h: float, data: Data) -> Problem:
    """The mean square of a network with these two weights."""
    u, v = (torch.tensor([w], dtype=F64) for w in (g, h))
    return problem_of(u, v, data[0].unsqueeze(1), data[1], average=True)


def quotient() -> Quotient:
    """By the rescaling of the two weights."""
    return Quotient(blocks=_BLOCKS)


def trace(problem: Problem, geometry: Geometry) -> float:
    """Exact: in at most two dimensions the sketch of Hutch++ is the whole space."""
    return hessian_trace(problem, geometry, method="hutch++", samples=6, tolerance=0.0).value


def fields_at(g: float, h: float, data: Data) -> dict[str, float]:
    """What the library measures at one point."""
    problem = scalar_problem(g, h, data)
    batch = next(problem.batches())
    return {
        "loss": problem.value(problem.weights, batch),
        "Euclidean gradient": gradient_norm(problem, Euclidean()).value,
        "Riemannian gradient": gradient_norm(problem, quotient()).value,
        "Euclidean trace": trace(problem, Euclidean()),
        "Riemannian trace": trace(problem, quotient()),
    }


def sharpnesses(g: Tensor, h: Tensor, data: Data, radii: Sequence[float], solver: SphereAscent = SOLVER) -> Tensor:
    """Worst cases at some points, (points, radii)."""
    places = zip(g.flatten().tolist(), h.flatten().tolist(), strict=True)
    rows = [[m.value for m in worst_case(scalar_problem(a, b, data), quotient(), radii, solver)] for a, b in places]
    return torch.tensor(rows, dtype=F64)


@dataclass(frozen=True)
class Grid:
    """Measured values, one for each pair of weights."""

    axis: list[float]
    g: Tensor
    h: Tensor
    fields: dict[str, Tensor]

    @classmethod
    def measured(cls, setting: Setting, advance: Advance) -> Grid:
        axis, g, h = mesh(setting, setting.grid)
        found: dict[str, list[float]] = {name: [] for name in FIELDS}
        for a, b in zip(g.flatten().tolist(), h.flatten().tolist(), strict=True):
            for name, value in fields_at(a, b, setting.point).items():
                found[name].append(value)
            advance()
        fields = {name: torch.tensor(v, dtype=F64).view_as(g) for name, v in found.items()}
        return cls(axis.tolist(), g, h, fields)


def mesh(setting: Setting, points: int) -> tuple[Tensor, Tensor, Tensor]:
    """So many points on each axis: the axis, G and H."""
    axis = torch.linspace(*setting.box, points, dtype=F64)
    g, h = torch.meshgrid(axis, axis, indexing="ij")
    return axis, g, h


def along_orbits(setting: Setting, seed: int, advance: Advance) -> dict[str, float]:
    """The largest of a field on an orbit over the smallest, minus 1; the largest over six orbits."""
    spread = dict.fromkeys(FIELDS, 0.0)
    for k, (g, h) in enumerate(SIX):
        seen: dict[str, list[float]] = {name: [] for name in FIELDS}
        model = scalar_problem(g, h, setting.point).model
        for i in range(setting.orbits):
            moved = move_along_orbit(model, _BLOCKS, strength=setting.strength, seed=seed + k * setting.orbits + i)
            for name, value in fields_at(float(moved["u"]), float(moved["v"]), setting.point).items():
                seen[name].append(abs(value))
        for name, values in seen.items():
            spread[name] = max(spread[name], max(values) / min(values) - 1)
        advance()
    return spread


def unit(values: Tensor) -> Tensor:
    """Scaled to [0, 1]."""
    return (values - values.min()) / (values.max() - values.min())
