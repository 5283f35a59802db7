"""What a geometry is, and the chart it gives at a point.

A chart maps orthonormal coordinates ``z`` of the horizontal space at the weights ``w`` to weights, ``z -> Exp_w(z)``.
The pulled-back loss ``f(z) = L(Exp_w(z))`` lives on flat space, where ``|z|`` is the Riemannian length, so every
measure is the ordinary Euclidean one of ``f`` (normal coordinates: the Christoffel term of the Hessian vanishes at 0).

Coordinates are one flat real vector. It may have more entries than the horizontal space has dimensions: `Chart.project`
is the orthogonal projection onto those that count, and `Chart.weights` applies it, so that ``f`` is constant along the
rest and its gradient lies in the horizontal space by itself.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spiritlevel.core.blocks import Block
from spiritlevel.core.shapes import Flat
from spiritlevel.core.tensors import natural_dtype, same_device
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.geometry.change import ChangeOfVariables
from spiritlevel.geometry.section import Section, Verticals

__all__ = ["Chart", "Geometry", "Kept", "Part", "PullBack", "Transported", "Weights", "required"]

Weights = Mapping[str, Tensor]
PullBack = Callable[[Weights, Tensor], None]
"""Writes the gradient in coordinates, given the one in the weights, into a slice of a flat vector."""


class Part(ABC):
    """The piece of a chart that belongs to some of the parameters.

    Attributes:
        size: how many coordinates it takes.
        dimension: how many of them are independent (the horizontal space).
        names: the parameters it writes.
    """

    size: int
    dimension: int
    names: tuple[str, ...]

    @abstractmethod
    def write(self, z: Flat, into: dict[str, Tensor]) -> None:
        """Put the weights at ``z`` into ``into``; differentiable in ``z``."""

    @abstractmethod
    def coordinates(self, tangent: Weights) -> Tensor:
        """The coordinates of a tangent vector at the weights of the chart."""

    @abstractmethod
    def tangent(self, z: Flat, into: dict[str, Tensor]) -> None:
        """Put the tangent vector at the weights of the chart that has coordinates ``z`` into ``into``."""

    def project(self, z: Flat) -> Tensor:
        """Orthogonal projection onto the horizontal coordinates."""
        return z

    def evaluate(self, z: Flat, into: dict[str, Tensor]) -> PullBack:
        """Put the weights at ``z`` into ``into``, without autograd, and return the way back for their gradient.

        By default the part is written once more under autograd on the way back, so that nothing is kept meanwhile.
        """
        self.write(z, into)

        def pull_back(gradient: Weights, slot: Tensor) -> None:
            with torch.enable_grad():
                point = z.detach().requires_grad_()
                out: dict[str, Tensor] = {}
                self.write(point, out)
                slot.copy_(torch.autograd.grad([out[n] for n in out], point, [gradient[n] for n in out])[0])

        return pull_back

    def frame(self) -> tuple[Tensor, ...]:
        """What the coordinates are relative to, where that turns as the weights move."""
        return ()

    def carry(self, z: Flat, frame: tuple[Tensor, ...]) -> Tensor:
        """Coordinates here of the vector whose coordinates were ``z`` at other weights, where `frame` was this."""
        del frame
        return z

    def scales(self, into: Tensor) -> None:
        """Write the Euclidean length in weight space of each unit coordinate, where that makes sense (else 1)."""
        into.fill_(1.0)

    def spans(self) -> list[tuple[str, slice]]:
        """Which coordinates belong to which layer: a parameter or a block; a layer may have several stretches."""
        return [(", ".join(self.names), slice(0, self.size))]

    def dimensions(self) -> dict[str, int]:
        """How many independent coordinates each layer of `spans` has."""
        return {", ".join(self.names): self.dimension}

    def describe(self, rho: float) -> dict[str, Any]:
        """Facts the user should see beside a value at radius ``rho``."""
        del rho
        return {}

    def stopped(self, z: Flat) -> int:
        """How many geodesics of this part end before they are as long as ``z`` asks."""
        del z
        return 0


@dataclass(frozen=True)
class Kept:
    """A vector in the coordinates of a chart, to be carried to another chart of the same parts (`Chart.carry`).

    Attributes:
        pieces: its coordinates, part by part.
        frames: what they are relative to.
    """

    pieces: tuple[Tensor, ...]
    frames: tuple[tuple[Tensor, ...], ...]


class Chart:
    """Orthonormal coordinates at a set of weights.

    Args:
        weights: the measured parameters where the chart is built.
        parts: what moves them; every coordinate belongs to one part.
        dtype: precision of the coordinates.
        section: the way there from the weights as the user has them, where these are others.
        free: blocks with vertical directions that no part knows of.
    """

    def __init__(
        self,
        weights: Weights,
        parts: Sequence[Part],
        dtype: torch.dtype,
        section: Section | None = None,
        free: Sequence[Block] = (),
    ) -> None:
        self.parts = tuple(p for p in parts if p.size)
        self.size = sum(p.size for p in self.parts)
        self.dimension = sum(p.dimension for p in self.parts)
        self.dtype, self.device = dtype, same_device(weights)
        self._still = {n: w for n, w in weights.items() if not any(n in p.names for p in self.parts)}
        if self.dimension == 0:
            raise ModelError("expected weights that can move, got none: all are zero, frozen or outside the geometry")
        self._section = section
        self._change: ChangeOfVariables | None = None
        self._seen: Weights = {}
        self._verticals = Verticals(free, dict(weights), self._horizontal) if free else None
        if self._verticals is not None:
            self.dimension -= self._verticals.dimension

    def _slices(self, z: Tensor) -> list[Tensor]:
        if len(self.parts) == 1:  # a split of one would cost a copy in every backward pass
            return [z]
        return list(z.split([p.size for p in self.parts]))

    def _check(self, z: Tensor) -> None:
        if z.shape != (self.size,):
            raise ArgumentError(f"expected {self.size} coordinates in one flat vector, got shape {tuple(z.shape)}")

    def through(self, change: ChangeOfVariables, weights: Weights) -> Chart:
        """The same coordinates of the same point, seen by somebody who has other parameters.

        Args:
            change: takes the parameters of this chart to theirs.
            weights: the point in theirs.
        """
        other = copy.copy(self)
        other._change, other._seen = change, dict(weights)
        return other

    def zeros(self) -> Tensor:
        """The coordinates of the point itself."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def weights(self, z: Flat) -> dict[str, Tensor]:
        """The weights ``Exp_w(z)``, differentiable in ``z`` as often as wanted.

        At ``z = 0`` they compute the user's function, in the canonical gauge.
        """
        self._check(z)
        out = dict(self._still)
        for part, piece in zip(self.parts, self._slices(self._removed(z)), strict=True):
            part.write(piece, out)
        return out if self._change is None else self._change.forward(out)

    def keep(self, z: Flat) -> Kept:
        """A vector with what is needed to carry it to the chart at weights that training has reached by then."""
        self._check(z)
        pieces = tuple(s.detach().clone() for s in self._slices(z))
        return Kept(pieces, tuple(p.frame() for p in self.parts))

    def carry(self, kept: Kept) -> Tensor | None:
        """The vector in these coordinates; None where it belongs to other parts, or parts of other shapes.

        Its length stays. Entries outside the blocks keep their coordinates (the elementwise metric is flat in
        logarithms, where this is parallel transport); columns of a pair turn by the unitary matrix that brings the old
        canonical frames nearest to the new ones, so that the result depends on neither point of the orbit.
        """
        if [p.size for p in self.parts] != [z.numel() for z in kept.pieces]:
            return None
        carried = [p.carry(z, f) for p, z, f in zip(self.parts, kept.pieces, kept.frames, strict=True)]
        return self._removed(torch.cat(carried))

    def _removed(self, z: Tensor) -> Tensor:
        """Without the vertical directions that no part knows of."""
        return z if self._verticals is None else self._verticals.remove(z)

    def project(self, z: Flat) -> Tensor:
        """Orthogonal projection of flat coordinates onto the horizontal space."""
        return self._removed(self.partwise(z))

    def partwise(self, z: Flat) -> Tensor:
        """The projection layer by layer: without vertical directions that run through several parts.

        The same as `project` where there are none of those. A layer by itself does not feel them.
        """
        self._check(z)
        pieces = [p.project(s) for p, s in zip(self.parts, self._slices(z), strict=True)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def gaussian(self, generator: torch.Generator) -> Tensor:
        """A standard Gaussian on the horizontal space.

        Drawn on the generator's device (use a CPU one for numbers that are the same on every device).
        """
        return self.project(self.normal(generator))

    def normal(self, generator: torch.Generator) -> Tensor:
        """A standard Gaussian in all coordinates, drawn on the generator's device."""
        return self.random(lambda n: torch.randn(n, generator=generator, dtype=self.dtype, device=generator.device))

    def signs(self, generator: torch.Generator) -> Tensor:
        """Random signs in all coordinates, drawn on the generator's device."""

        def draw(n: int) -> Tensor:
            # Eight signs out of each random byte: drawn one by one they cost 7 % of a gradient.
            device = generator.device
            drawn = torch.randint(0, 256, (-(-n // 8), 1), generator=generator, dtype=torch.uint8, device=device)
            bits = (drawn >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
            return bits.reshape(-1)[:n].to(self.dtype).mul_(2).sub_(1)

        return self.random(draw)

    def random(self, draw: Callable[[int], Tensor]) -> Tensor:
        """Coordinates made of so many random numbers in a row."""
        return draw(self.size).to(self.device, self.dtype)

    def coordinates(self, tangent: Weights) -> Tensor:
        """Coordinates of a tangent vector given at the user's weights; its vertical part is dropped."""
        if self._change is not None:
            tangent = self._change.inverted.jvp(self._seen, tangent)
        return self._removed(self._horizontal(tangent if self._section is None else self._section.push(dict(tangent))))

    def _horizontal(self, tangent: Weights) -> Tensor:
        """Coordinates of a tangent vector at the weights of the chart, horizontal part by part."""
        return torch.cat([p.project(p.coordinates(tangent)) for p in self.parts]).to(self.dtype)

    def tangent(self, z: Flat) -> dict[str, Tensor]:
        """The tangent vector at the user's weights with coordinates ``z``: the horizontal lift there."""
        out = {n: torch.zeros_like(w) for n, w in self._still.items()}
        for part, piece in zip(self.parts, self._slices(self.project(z)), strict=True):
            part.tangent(piece, out)
        tangent = out if self._section is None else self._section.pull(out)
        if self._change is None:
            return tangent
        return self._change.jvp(self._change.inverted.forward(self._seen), tangent)

    def evaluate(self, z: Flat) -> tuple[dict[str, Tensor], Callable[[Weights], Tensor]]:
        """The weights at ``z``, cut off from autograd, and the function that takes their gradient to that of ``f``.

        First derivatives only, in less time and memory than autograd through `weights` takes.
        """
        self._check(z)
        with torch.no_grad():
            out = dict(self._still)
            pieces = self._slices(self._removed(z))
            back = [part.evaluate(piece, out) for part, piece in zip(self.parts, pieces, strict=True)]

        def pull_back(gradient: Weights) -> Tensor:
            if self._change is not None:
                seeds = [gradient[n] for n in seen]
                ends = torch.autograd.grad(list(seen.values()), list(at.values()), seeds, retain_graph=True)
                gradient = dict(zip(at, ends, strict=True))
            pulled = torch.empty(self.size, dtype=self.dtype, device=self.device)
            for way, slot in zip(back, self._slices(pulled), strict=True):
                way(gradient, slot)
            return self._removed(pulled)

        if self._change is None:
            return out, pull_back
        with torch.enable_grad():  # the graph of the change alone is kept: a second pass of it would cost more
            at = {n: w.detach().requires_grad_() for n, w in out.items()}
            seen = self._change.forward(at)
        return {n: w.detach() for n, w in seen.items()}, pull_back

    def scales(self) -> Tensor:
        """Euclidean length in weight space of each unit coordinate (1 where coordinates mix weights)."""
        out = torch.empty(self.size, dtype=self.dtype, device=self.device)
        for part, slot in zip(self.parts, self._slices(out), strict=True):
            part.scales(slot)
        return out

    def layers(self) -> dict[str, tuple[slice, ...]]:
        """The coordinates of each layer: a parameter, or a block of the quotient."""
        found: dict[str, tuple[slice, ...]] = {}
        start = 0
        for part in self.parts:
            for name, s in part.spans():
                found[name] = (*found.get(name, ()), slice(start + s.start, start + s.stop))
            start += part.size
        return found

    def layer_dimensions(self) -> dict[str, int]:
        """How many independent coordinates each of the `layers` has, taken by itself."""
        found: dict[str, int] = {}
        for part in self.parts:
            for name, count in part.dimensions().items():
                found[name] = found.get(name, 0) + count
        return found

    def describe(self, rho: float) -> dict[str, Any]:
        """Facts the user should see beside a value at radius ``rho``."""
        facts: dict[str, Any] = {}
        for part in self.parts:
            for key, value in part.describe(rho).items():
                facts[key] = max(facts[key], value) if key in facts else value
        return facts

    def stopped(self, z: Flat) -> int:
        """How many geodesics end before they are as long as ``z`` asks (cross-Gram metric only)."""
        return sum(p.stopped(s) for p, s in zip(self.parts, self._slices(z), strict=True))


def required(weights: Weights) -> dict[str, Tensor]:
    """The weights, of which there must be some."""
    if not weights:
        raise ModelError("expected at least one parameter to measure, got none; unfreeze some or name `parameters`")
    return dict(weights)


class Geometry(ABC):
    """What a straight line and a unit length are."""

    needs_blocks = False
    """Whether the chart is built on the symmetries of the model."""

    blocks: Sequence[Block] | None = None
    """The symmetries it was given; None where it was given none."""

    kinds: str | tuple[str, ...] | None = None
    """Which kinds of symmetries it asks the model for; None for the model's default."""

    def chart(self, weights: Weights, blocks: Sequence[Block] = ()) -> Chart:
        """Coordinates at ``weights``.

        Args:
            weights: the measured parameters by name.
            blocks: the symmetries to quotient by, where the geometry does that and was not given its own.
        """
        dtype = natural_dtype(required(weights).values())
        return Chart(weights, self._parts(weights, blocks, dtype), dtype)

    @abstractmethod
    def _parts(self, weights: Weights, blocks: Sequence[Block], dtype: torch.dtype) -> list[Part]: ...

    def rest(self, weights: Weights, masks: Mapping[str, Tensor], dtype: torch.dtype) -> list[Part]:
        """The parts for what another geometry left over.

        Args:
            weights: the parameters that are left, wholly or in part.
            masks: for those left in part, True where an entry is left.
            dtype: precision of the coordinates.
        """
        raise ArgumentError(f"expected an elementwise geometry for the rest, got {self}")

    def transported(self, change: ChangeOfVariables) -> Geometry:
        """The same geometry for somebody whose parameters are others: ``psi = change(theta)``.

        The metric becomes ``J^-T G J^-1``, straight lines their images. A measure of the loss as a function of ``psi``
        in the transported geometry is the one of the loss as a function of ``theta`` in this.

        Args:
            change: takes the parameters this geometry is about to those that are measured (`spiritlevel.reparam`).
        """
        return Transported(self, change)

    def osculating(self) -> Geometry:
        """A geometry whose curves agree with these to second order, and are cheapest: enough for all curvature."""
        return self

    def settings(self) -> dict[str, Any]:
        """What fixes it, as plain data."""
        return {"geometry": str(self)}


class Transported(Geometry):
    """A geometry seen in other parameters, from `Geometry.transported`.

    Blocks are those of the original parameters, and so are the names of layers.

    Args:
        original: the geometry of ``theta``.
        change: ``theta`` to ``psi``.
    """

    def __init__(self, original: Geometry, change: ChangeOfVariables) -> None:
        self.original, self.change = original, change
        self.needs_blocks, self.blocks, self.kinds = original.needs_blocks, original.blocks, original.kinds

    def chart(self, weights: Weights, blocks: Sequence[Block] = ()) -> Chart:
        with torch.no_grad():
            before = self.change.inverted.forward(weights)
        return self.original.chart(before, blocks).through(self.change, weights)

    def _parts(self, weights: Weights, blocks: Sequence[Block], dtype: torch.dtype) -> list[Part]:
        return self.original._parts(weights, blocks, dtype)

    def osculating(self) -> Geometry:
        return Transported(self.original.osculating(), self.change)

    def settings(self) -> dict[str, Any]:
        return {**self.original.settings(), "geometry": str(self)}

    def __str__(self) -> str:
        return f"{self.original} transported by {self.change}"
