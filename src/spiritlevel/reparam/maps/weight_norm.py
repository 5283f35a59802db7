"""Weight norm: every unit's weights as a length and a direction.

=============  ===============================================  ======================  =============================
map            new parameters                                   entries                 image
=============  ===============================================  ======================  =============================
`WeightNorm`   length g and direction v, ``theta = g v/|v|``    d + units (redundant)   directions of a fixed length
`Polar`        length (or its log), stereographic coordinates   d                       everything: a bijection
=============  ===============================================  ======================  =============================

`WeightNorm` is what torch does. The same point has many pairs ``(g, v)``: the scale of ``v`` is a symmetry, along which
every metric that comes from ``theta`` has length 0. So a volume, a log-determinant or a Laplace evidence in ``(g, v)``
are no numbers of the model; in `Polar` coordinates they are. Measures in a transported geometry are right in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.errors import ArgumentError, ReparametrisationError
from spiritlevel.reparam.flat import Weights
from spiritlevel.reparam.maps.base import ParameterWise, Reparametrisation, known, refuse_where

__all__ = ["Polar", "Unit", "WeightNorm"]


@dataclass(frozen=True)
class Unit:
    """How one parameter is written as lengths and directions.

    Attributes:
        length: name of the lengths.
        direction: name of the directions.
        axis: that runs over units; -1 for one length of everything (as torch has it).
        scale: lengths to keep the directions at; None for 1.
    """

    length: str
    direction: str
    axis: int = 0
    scale: Tensor | None = None

    def norm(self, weight: Tensor) -> Tensor:
        """Lengths, with axes kept (one number for everything); smooth away from 0."""
        if self.axis == -1:
            return weight.square().sum().sqrt()
        others = [i for i in range(weight.dim()) if i != self.axis % weight.dim()]
        return weight.square().sum(others, keepdim=True).sqrt()


class WeightNorm(Reparametrisation):
    """``psi = (|theta_u|, theta_u / |theta_u|)`` for each unit u (Salimans and Kingma 2016), back by ``g v / |v|``.

    Redundant: one more number for each unit than there are dimensions. The way back takes all ``(g, v)`` with ``v`` not
    0, and is written out: torch's fused one has wrong second derivatives on the CPU.

    Args:
        units: parameters by name; a plain sequence of names for lengths ``name.length`` and directions
            ``name.direction`` along the first axis; None for every parameter with two axes or more.

    >>> psi = WeightNorm().forward({"w": torch.tensor([[3.0, 4.0]])})
    >>> psi["w.length"], psi["w.direction"]
    (tensor([[5.]]), tensor([[0.6000, 0.8000]]))
    """

    redundant = True

    def __init__(self, units: Mapping[str, Unit] | Sequence[str] | None = None) -> None:
        if units is not None and not isinstance(units, Mapping):
            units = {n: _unit(n) for n in units}
        self._units = units

    def _named(self, weights: Weights) -> dict[str, Unit]:
        if self._units is None:
            return {n: _unit(n) for n, w in weights.items() if w.dim() > 1}
        known(tuple(self._units), weights)
        return dict(self._units)

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        units, out = self._named(weights), {}
        for name, w in weights.items():
            if name not in units:
                out[name] = w
                continue
            unit = units[name]
            length = unit.norm(w)
            refuse_where(length == 0, name, "units of weights that are not all 0", length, "0 has no direction")
            out[unit.length] = length
            out[unit.direction] = w / length if unit.scale is None else w / length * unit.scale.to(w)
        return out

    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        if self._units is None:
            ends = (".length", ".direction")
            units = {n.removesuffix(ends[1]): _unit(n.removesuffix(ends[1])) for n in weights if n.endswith(ends[1])}
        else:
            units = dict(self._units)
        known([n for u in units.values() for n in (u.length, u.direction)], weights)
        lengths, directions = ({getattr(u, key): n for n, u in units.items()} for key in ("length", "direction"))
        out = {}
        for name, w in weights.items():
            if name in lengths:  # in its place, so that the order of parameters survives the round trip
                original = lengths[name]
                direction = weights[units[original].direction]
                size = units[original].norm(direction)
                refuse_where(size == 0, units[original].direction, "directions other than 0", size, "scale them up")
                out[original] = direction * (w / size)
            elif name not in directions:
                out[name] = w
        return out

    def __str__(self) -> str:
        return "WeightNorm" if self._units is None else f"WeightNorm({', '.join(self._units)})"


def _unit(name: str) -> Unit:
    return Unit(f"{name}.length", f"{name}.direction")


class Polar(ParameterWise):
    """Length and direction of each unit as exactly as many numbers as it has weights: a bijection.

    ``theta_u = r (cos a, sin a n)`` around the first axis (or minus it, whichever is nearer to ``reference``), with
    ``y = tan(a/2) n`` the stereographic coordinates of the direction. The new parameter keeps name and shape; the first
    entry of each unit is ``r`` (or ``log r``), the others are ``y``. Excluded are units that are 0 or point exactly
    against the axis.

    Args:
        names: which parameters; None for all with two axes or more and at least two entries for each unit.
        logarithm: take ``log r``, so that every value is reached.
        reference: weights whose first entries give the signs of the axes; by default plus.

    >>> psi = Polar().forward({"w": torch.tensor([[3.0, 4.0]])})["w"]
    >>> psi  # 5, tan(a/2) with cos a = 3/5
    tensor([[5.0000, 0.5000]])
    """

    def __init__(
        self, names: Sequence[str] | None = None, *, logarithm: bool = False, reference: Weights | None = None
    ) -> None:
        super().__init__(names)
        self._logarithm = logarithm
        self._signs = {} if reference is None else {n: _signs(w) for n, w in reference.items() if w.dim() > 1}

    def _chosen(self, weights: Weights) -> tuple[str, ...]:
        if self.names is None:
            return tuple(n for n, w in weights.items() if w.dim() > 1 and w[0].numel() > 1)
        for name in known(self.names, weights):
            shape = tuple(weights[name].shape)
            if len(shape) < 2 or math.prod(shape[1:]) < 2:
                raise ReparametrisationError(
                    f"expected units of two weights or more in {name!r}, got shape {shape}: a single weight has a sign "
                    "and no direction, leave it out"
                )
        return self.names

    def _rows(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor | float]:
        rows = weight.reshape(len(weight), -1)
        sign = self._signs.get(name)
        return rows, 1.0 if sign is None else sign.to(weight)

    def _to(self, name: str, weight: Tensor) -> Tensor:
        rows, sign = self._rows(name, weight)
        r = rows.square().sum(1, keepdim=True).sqrt()
        refuse_where(r == 0, name, "units of weights that are not all 0", r, "0 has no direction")
        below = r + rows[:, :1] * sign
        refuse_where(
            below <= 8 * torch.finfo(r.dtype).eps * r, name, "units that do not point against their axis", below,
            "pass reference= these weights, so that each axis lies on their side",
        )  # fmt: skip
        first = torch.log(r) if self._logarithm else r
        return torch.cat([first, rows[:, 1:] / below], 1).view_as(weight)

    def _from(self, name: str, weight: Tensor) -> Tensor:
        rows, sign = self._rows(name, weight)
        r = torch.exp(rows[:, :1]) if self._logarithm else rows[:, :1]
        if not self._logarithm:
            refuse_where(r <= 0, name, "lengths above 0", r, "take logarithm=True, where every value is reached")
        y = rows[:, 1:]
        square = y.square().sum(1, keepdim=True)
        out = torch.cat([r * sign * (1 - square) / (1 + square), 2 * r * y / (1 + square)], 1)
        return out.view_as(weight)

    def _log_abs_det(self, weights: Weights) -> Tensor:
        """``-sum (d - 1) log(2 r / (1 + |y|^2)) [+ log r]``, from ``d theta = r^(d-1) dr dOmega``."""
        total = [torch.zeros((), dtype=torch.float64, device=next(iter(weights.values())).device)]
        for name in self._chosen(weights):
            rows, sign = self._rows(name, weights[name].double())
            r = rows.square().sum(1, keepdim=True).sqrt()
            y = rows[:, 1:] / (r + rows[:, :1] * sign)
            d = rows.shape[1]
            logs = (d - 1) * torch.log(2 * r / (1 + y.square().sum(1, keepdim=True)))
            total.append(-(logs + torch.log(r) if self._logarithm else logs).sum())
        return torch.stack(total).sum()

    def __str__(self) -> str:
        kind = "log-polar" if self._logarithm else "polar"
        return f"Polar({kind})" if self.names is None else f"Polar({kind}: {', '.join(self.names)})"


def _signs(weight: Tensor) -> Tensor:
    first = weight.detach().reshape(len(weight), -1)[:, :1]
    return torch.where(first < 0, -torch.ones_like(first), torch.ones_like(first))


def held_at(directions: Tensor, axis: int) -> Tensor:
    """The lengths a model's directions have now, to keep them there."""
    found = Unit("", "", axis).norm(directions.detach())
    if not bool((found > 0).all()):
        raise ArgumentError("expected directions other than 0, got one of length 0")
    return found
