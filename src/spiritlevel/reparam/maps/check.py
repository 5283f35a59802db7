"""Is a map a bijection where it is used? Round trips, conditioning, and what is violated, parameter by parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch import Tensor

from spiritlevel.core.display import Displayed
from spiritlevel.core.results import plain
from spiritlevel.core.tensors import norm
from spiritlevel.errors import ReparametrisationError
from spiritlevel.reparam.flat import Layout, Weights

if TYPE_CHECKING:
    from spiritlevel.reparam.maps.base import Reparametrisation

__all__ = ["MapCheck", "checked"]

_ROUNDS = 30  # ours: of power iteration; enough for the order of magnitude of a condition number
_PROBE = 0.05  # ours: relative size of the step to a neighbour, which must come back to itself too
_SLACK = 1e3  # ours: a round trip may lose this many roundings times the condition number
_SINGULAR = 1e-2  # ours: a condition number of 0.01 / eps leaves no digits


@dataclass(frozen=True)
class MapCheck(Displayed):
    """What was found about a map at a point.

    Attributes:
        map: in words.
        round_trip: relative error of ``phi^-1(phi(theta))``, by parameter, at the point and at a neighbour.
        condition: of the Jacobian, estimated from below.
        dimensions: entries of the old and of the new parameters.
        violations: what keeps it from being a bijection here, each naming its parameter; empty where nothing does.
    """

    map: str
    round_trip: Mapping[str, float]
    condition: float
    dimensions: tuple[int, int]
    violations: tuple[str, ...]

    @property
    def bijective(self) -> bool:
        """Whether nothing was found against it."""
        return not self.violations

    def require(self) -> None:
        """Raise where something was found."""
        if self.violations:
            raise ReparametrisationError(f"expected a bijection, but {self.map} is none here: {self.violations[0]}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {n: plain(v) for n, v in self.__dict__.items()}

    def __rich__(self) -> Table:
        table = Table(title=f"Reparametrisation: {self.map}", title_justify="left", show_header=False)
        table.add_row("old, new dimension", "{}, {}".format(*self.dimensions))
        table.add_row("condition of the Jacobian", f"{self.condition:.3g}")
        worst = sorted(self.round_trip.items(), key=lambda item: -item[1])[:4]
        table.add_row("worst round trips", ", ".join(f"{n} {e:.1e}" for n, e in worst))
        table.add_row("violations", "\n".join(self.violations) or "none")
        return table


def checked(change: Reparametrisation, weights: Weights, seed: int = 0) -> MapCheck:
    """Look at a map at a point and at a neighbour of it."""
    point = {n: w.detach() for n, w in weights.items()}
    old = sum(w.numel() for w in point.values())
    try:
        new = sum(w.numel() for w in change.forward(point).values())
        errors, violations = _round_trips(change, point, seed)
        condition = _condition(change, point, seed)
    except ReparametrisationError as error:
        return MapCheck(str(change), dict.fromkeys(point, math.nan), math.inf, (old, 0), (str(error),))
    eps = torch.finfo(next(iter(point.values())).dtype).eps
    if not condition < _SINGULAR / eps:
        violations.append(f"the Jacobian is singular (condition {condition:.2g}) over {', '.join(list(point)[:4])}")
    allowed = _SLACK * eps * max(condition, 1.0)
    violations += [
        f"{n!r} does not come back to itself (off by {e:.1e}, {allowed:.1e} is rounding)"
        for n, e in errors.items()
        if not e <= allowed
    ]
    if new != old and not change.redundant:
        violations.append(f"it takes {old} numbers to {new} and does not say that it is redundant")
    return MapCheck(str(change), errors, condition, (old, new), tuple(dict.fromkeys(violations)))


def _round_trips(change: Reparametrisation, point: dict[str, Tensor], seed: int) -> tuple[dict[str, float], list[str]]:
    """Relative errors by parameter, at the point and at a random neighbour; values that are not finite."""
    generator = torch.Generator().manual_seed(seed)

    def near(w: Tensor) -> Tensor:  # relative, so that what is positive stays so
        noise = torch.rand(w.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return w * (1 + _PROBE * noise.to(w.device, w.dtype))

    errors: dict[str, float] = {}
    violations: list[str] = []
    for where in (point, {n: near(w) for n, w in point.items()}):
        there = change.forward(where)
        violations += [f"{n!r} has no finite image" for n, y in there.items() if not bool(torch.isfinite(y).all())]
        back = change.inverse(there)
        for name, w in where.items():
            error = norm(back[name] - w) / (norm(w) or 1.0)
            errors[name] = max(errors.get(name, 0.0), error) if error == error else math.inf
    return errors, violations


def _condition(change: Reparametrisation, point: dict[str, Tensor], seed: int) -> float:
    """Largest stretch of ``J`` times largest stretch of ``J^-1``, by power iteration."""
    image = {n: y.detach() for n, y in change.forward(point).items()}
    forth = _largest(lambda v: change.jvp(point, v), lambda w: change.vjp(point, w), point, seed)
    back = change.inverted
    return forth * _largest(lambda v: back.jvp(image, v), lambda w: back.vjp(image, w), image, seed)


def _largest(
    push: Callable[[Weights], Weights], pull: Callable[[Weights], Weights], at: dict[str, Tensor], seed: int
) -> float:
    layout = Layout(at)
    first = next(iter(at.values()))
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(layout.size, generator=generator, dtype=torch.float64).to(first.device, first.dtype)
    size = 0.0
    for _ in range(_ROUNDS):
        v = v / norm(v)
        v = layout.flat(pull(push(layout.named(v))))
        size = norm(v)
        if not math.isfinite(size):
            return math.inf
        if size == 0.0:
            return 0.0
    return math.sqrt(size)
