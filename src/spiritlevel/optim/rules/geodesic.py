"""SAM in any geometry: climb along a geodesic, take the gradient there, and carry it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spiritlevel.core.evaluation import widen
from spiritlevel.core.tensors import norm
from spiritlevel.errors import ArgumentError, DerivativeError
from spiritlevel.geometry import Chart, Geometry, Quotient
from spiritlevel.optim.rules.base import RULES, Rule
from spiritlevel.optim.slots import Point, Role, Slot
from spiritlevel.symmetry import USUAL, find_symmetries

__all__ = ["GeodesicSAM"]


@RULES.register("geodesic SAM")
@dataclass(frozen=True)
class GeodesicSAM(Rule):
    """SAM of the pulled-back loss ``f(z) = L(Exp_w(z))``: ``z = rho grad f(0) / |grad f(0)|``, then ``grad f(z)``.

    With `Euclidean` this is SAM, with `Elementwise` ASAM without eta, with `Quotient` it is the same on the whole orbit
    of the model's weight symmetries. What the base optimizer is given is ``grad f(z)`` at the user's weights ``w``:

    - as a covector (the default): the gradient that ``L`` would have at w. At ``rho -> 0`` it is the plain gradient, so
      any base optimizer works as usual. Its own step is Euclidean, so only the ascent is invariant. Weights the
      geometry cannot move (those at 0 in the elementwise one) get their gradient at w.
    - as a vector (``riemannian=True``): the horizontal lift, the Riemannian gradient. A base step that is linear in it
      and in the weights, with numbers that are the same everywhere (SGD with or without momentum, Nesterov, weight
      decay), then commutes with the group, which acts linearly on the pairs: two starts on one orbit give the same
      functions at every step. Adam's division entry by entry does not commute. For all other weights it is the
      gradient of the geometry's ``rest``: take ``Quotient(rest=Euclidean())`` to leave those as they are in SGD, for
      the elementwise one multiplies gradients by ``w^2``.

    A step factors every head once more (QR and singular values in float64). Needs ``model=``, and all parameters of a
    block in the optimizer.

    Args:
        rho: the length of the geodesic. Radii of different geometries are not comparable.
        geometry: what is straight and of unit length.
        riemannian: give the base optimizer the Riemannian gradient.
    """

    rho: float = 0.05
    geometry: Geometry = field(default_factory=Quotient)
    riemannian: bool = False

    joins: ClassVar[bool] = True

    def _check(self) -> None:
        if not isinstance(self.geometry, Geometry):
            raise ArgumentError(f"expected a geometry such as Quotient(), got {type(self.geometry).__name__}")

    def prepare(self, parameters: Sequence[Tensor], roles: Mapping[int, Role], model: nn.Module | None) -> Any:
        moving = {i: p for i, p in enumerate(parameters) if p.requires_grad}
        if model is None or any(id(p) not in roles for p in moving.values()):
            raise ArgumentError(
                "expected the model that the parameters belong to, because a geometry goes by their names: pass model= "
                "to SAM"
            )
        names = {roles[id(p)].name: i for i, p in moving.items()}
        if not self.geometry.needs_blocks or self.geometry.blocks is not None:
            return names, ()
        kinds = USUAL if self.geometry.kinds is None else self.geometry.kinds
        return names, tuple(find_symmetries(model, parameters=list(names), kinds=kinds))

    def move(self, point: Point) -> Iterator[tuple[Slot, Tensor]]:
        if any(s.rows is not None for s in point.slots):
            raise ArgumentError("expected dense gradients in a geometry, got a sparse one: use sparse=False")
        where, blocks = point.fixed
        chart = self.geometry.chart({n: widen(point.parameters[i].detach()) for n, i in where.items()}, blocks)
        given = {s.index: s.gradient for s in point.slots}
        first = {n: widen(given.get(i, torch.zeros_like(point.parameters[i]))) for n, i in where.items()}
        gradient = _pushed(chart, first)
        size = norm(gradient)
        if not size < float("inf"):  # NaN too
            raise DerivativeError(f"expected a finite gradient for a step along a geodesic, got a norm of {size}")
        z = gradient * (self.rho / size if size > 0 else 0.0)
        weights, pull_back = chart.evaluate(z)
        back = chart.tangent if self.riemannian else _Covectors(chart, first, gradient)
        point.radius, point.way = torch.tensor(self.rho if size > 0 else 0.0), (pull_back, back)
        for name, i in where.items():
            p = point.parameters[i].detach()
            yield Slot(i, p, p, p), weights[name]

    def finish(self, point: Point) -> None:
        where, (pull_back, back) = point.fixed[0], point.way
        found = back(pull_back({n: _gradient(point.parameters[i]) for n, i in where.items()}))
        for name, i in where.items():
            p = point.parameters[i]
            if p.grad is not None:  # what was not used or is frozen by now stays out of the update
                p.grad = found[name].to(p.dtype)


def _gradient(p: Tensor) -> Tensor:
    return widen(torch.zeros_like(p) if p.grad is None else p.grad.detach())


def _pushed(chart: Chart, covector: Mapping[str, Tensor]) -> Tensor:
    """The gradient of f at 0, from that of L at the user's weights: transposed `Chart.tangent`."""
    with torch.enable_grad():
        z = chart.zeros().requires_grad_()
        tangent = {n: t for n, t in chart.tangent(z).items() if t.requires_grad}
        return torch.autograd.grad(list(tangent.values()), z, [covector[n].to(t.dtype) for n, t in tangent.items()])[0]


class _Covectors:
    """From coordinates to covectors at the user's weights: transposed `Chart.coordinates`.

    What the chart cannot see of the gradient at w (weights that are 0 in an elementwise geometry, heads without rank)
    is added as it is: without it such weights would never learn.

    Args:
        chart: at w.
        first: the gradient of L there.
        coordinates: that of f.
    """

    def __init__(self, chart: Chart, first: Mapping[str, Tensor], coordinates: Tensor) -> None:
        self._chart = chart
        seen = self._transposed(coordinates, first)
        self._unseen = {n: g - seen[n] for n, g in first.items()}

    def _transposed(self, z: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Done anew each time: what autograd would keep weighs on the network's own pass."""
        with torch.enable_grad():
            tangent = {n: torch.zeros_like(g).requires_grad_() for n, g in like.items()}
            linear = self._chart.coordinates(tangent)
        found = torch.autograd.grad(linear, list(tangent.values()), z.to(linear), materialize_grads=True)
        return dict(zip(tangent, found, strict=True))

    def __call__(self, z: Tensor) -> dict[str, Tensor]:
        return {n: g + self._unseen[n] for n, g in self._transposed(z, self._unseen).items()}
