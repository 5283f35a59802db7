"""Measures along the orbit of a trained network: which of them are about the function?

Every head of a vision transformer trained on the digits is multiplied by ``c A``, where ``A`` has random singular
directions and a stated condition number, and its partner by the inverse: other weights, the same function. Each measure
is taken before and after, in float64 and in float32. The paper proves that its metrics are invariant (Sec. 5.2, App.
F.2) and shows no such measurement; scales, conditions, network, radii and probes are chosen here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from spiritlevel.core.blocks import Block
from spiritlevel.core.progress import Advance, progress
from spiritlevel.geometry import Elementwise, Euclidean, Geometry, Quotient
from spiritlevel.measures import adaptive_sharpness, gradient_norm, hessian_eigenvalues, hessian_trace, worst_case
from spiritlevel.problem import Problem
from spiritlevel.solvers import SphereAscent
from spiritlevel.study.radii import radius_of_rise
from spiritlevel.symmetry import find_symmetries

__all__ = [
    "ASCENT",
    "CONDITIONS",
    "MEASURES",
    "SCALES",
    "Move",
    "Row",
    "Size",
    "along_the_orbit",
    "invariant",
    "moved",
    "radii_of_rise",
]

SCALES = (1e-2, 1e-1, 1.0, 1e1, 1e2)
CONDITIONS = (1.0, 1e1, 1e2, 1e3, 1e4)
ASCENT = SphereAscent(tolerance=1e-8)  # below the default, so that where it stops is no part of a change


@dataclass(frozen=True)
class Size:
    """How much is measured. All of it is chosen.

    Attributes:
        images: that the measures are taken on, one batch.
        seeds: random moves for each scale and each condition.
        rise: of the loss; the radius of each worst case is where its rise on the unmoved network is this.
        probes: random vectors of each Hessian trace.
    """

    images: int = 64
    seeds: int = 2
    rise: float = 0.2
    probes: int = 6


@dataclass(frozen=True)
class Move:
    """A random group element on every head.

    Attributes:
        scale: the geometric mean of its singular values.
        condition: the largest over the smallest of them.
        seed: of their directions.
    """

    scale: float
    condition: float
    seed: int


@dataclass(frozen=True)
class Row:
    """One measure after one move.

    Attributes:
        measure: its name.
        precision: of weights and measure.
        scale: see `Move`.
        condition: see `Move`.
        seed: see `Move`.
        before: the value on the unmoved network.
        after: the value on the moved one.
        output: relative change of the network's logits by the move: rounding.
        dead: singular values of all products that lie below the rounding of the moved weights, and no longer move.
    """

    measure: str
    precision: str
    scale: float
    condition: float
    seed: int
    before: float
    after: float
    output: float
    dead: int

    @property
    def change(self) -> float:
        """Relative."""
        return abs(self.after / self.before - 1)


Measure = Callable[[Problem, float, int], float]
"""Of a problem, a radius and a number of probes."""


def _rise(geometry: Geometry) -> Measure:
    return lambda p, rho, _: worst_case(p, geometry, rho, ASCENT, show_progress=False).value


def _slope(geometry: Geometry) -> Measure:
    return lambda p, *_: gradient_norm(p, geometry).value


def _trace(geometry: Geometry) -> Measure:
    return lambda p, _, probes: hessian_trace(p, geometry, samples=probes, tolerance=0.0, show_progress=False).value


def _top(geometry: Geometry) -> Measure:
    return lambda p, *_: hessian_eigenvalues(p, geometry, tolerance=1e-6, show_progress=False).value


_SPACES: dict[str, Geometry] = {
    "quotient": Quotient(),
    # the paper's curve: the exact one is integrated, at many times the cost, and as invariant
    "quotient, cross-Gram": Quotient("cross_gram", "second_order"),
    "adaptive": Elementwise(),
    "Euclidean": Euclidean(),
}
MEASURES: dict[str, Measure] = {
    **{f"sharpness, {name}": _rise(space) for name, space in _SPACES.items()},
    "sharpness, adaptive l-inf": lambda p, rho, _: adaptive_sharpness(p, rho, "linf", show_progress=False).value,
    **{f"gradient norm, {name}": _slope(space) for name, space in _SPACES.items()},
    **{f"Hessian trace, {name}": _trace(space) for name, space in _SPACES.items()},
    **{f"top eigenvalue, {name}": _top(space) for name, space in _SPACES.items()},
}
"""What is measured, by name; those of the quotient must be flat."""


def invariant(measure: str) -> bool:
    """Whether the measure is one of the quotient."""
    return "quotient" in measure


def moved(model: nn.Module, blocks: Sequence[Block], move: Move) -> nn.Module:
    """A copy of the network that computes the same with other weights."""
    generator = torch.Generator().manual_seed(move.seed)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    with torch.no_grad():
        for block in blocks:
            element = block.draw(generator, 0.0, move.condition) * move.scale
            weights |= block.act(weights, element)
    other = copy.deepcopy(model)
    other.load_state_dict({**model.state_dict(), **weights})
    return other


def along_the_orbit(
    model: nn.Module, data: tuple[Tensor, Tensor], radii: Mapping[str, float], size: Size, seed: int
) -> list[Row]:
    """All measures of a network before and after every move, in both precisions."""
    blocks, moves = find_symmetries(model), list(_moves(size.seeds, seed))
    rows: list[Row] = []
    with progress("orbit", 2 * (len(moves) + 1) * len(MEASURES)) as advance:
        for network in (copy.deepcopy(model).double(), copy.deepcopy(model).float()):
            rows += _rows(network, data, blocks, moves, radii, size.probes, advance)
    return rows


def radii_of_rise(model: nn.Module, data: tuple[Tensor, Tensor], rise: float) -> dict[str, float]:
    """The radius of each worst case, found in float64: where the loss rises so far."""
    problem = _problem(copy.deepcopy(model).double(), data)
    found = {}
    for name, measure in MEASURES.items():
        if name.startswith("sharpness"):
            start = 0.001 if "inf" in name else 0.1
            found[name] = radius_of_rise(lambda rho, m=measure: m(problem, rho, 1), rise, start)  # type: ignore[misc]
    return found


def _moves(seeds: int, first: int) -> Iterator[Move]:
    """Every scale at condition 1, every condition at scale 1, and the corners of both."""
    corners = [(c, CONDITIONS[-1]) for c in (SCALES[0], SCALES[-1])]
    grid = [*((c, 1.0) for c in SCALES), *((1.0, k) for k in CONDITIONS[1:]), *corners]
    for k in range(seeds):
        yield from (Move(scale, condition, first + 1000 * k + i) for i, (scale, condition) in enumerate(grid))


def _problem(model: nn.Module, data: tuple[Tensor, Tensor]) -> Problem:
    dtype = next(model.parameters()).dtype
    return Problem(model, [(data[0].to(dtype), data[1])])


def _rows(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    blocks: Sequence[Block],
    moves: Sequence[Move],
    radii: Mapping[str, float],
    probes: int,
    advance: Advance,
) -> Iterator[Row]:
    def measured(network: nn.Module) -> dict[str, float]:
        problem, found = _problem(network, data), dict[str, float]()
        if network is not model:
            problem.self_checked = 0.0  # of the same function, which passed; in float32 differences fail far out
        for name, measure in MEASURES.items():
            found[name] = measure(problem, radii.get(name, 1.0), probes)
            advance(name)
        return found

    dtype = next(model.parameters()).dtype
    precision, images = str(dtype).removeprefix("torch."), data[0].to(dtype)
    before, logits = measured(model), _logits(model, images)
    for move in moves:
        other = moved(model, blocks, move)
        output = float((_logits(other, images) - logits).norm() / logits.norm())
        dead = int(_problem(other, data).chart(Quotient()).describe(1.0).get("null directions", 0))
        for name, after in measured(other).items():
            yield Row(name, precision, **asdict(move), before=before[name], after=after, output=output, dead=dead)


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(images).logits
    return logits.double()
