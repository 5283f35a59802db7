"""The canonical point of an orbit that several groups share, and the vertical directions that are left there.

Each block with a section is folded in turn: gains and shifts go into the weights that read them, lengths that do not
matter become 1, rotations turn to principal axes. The result depends on the orbit alone, so whatever chart is built
there is invariant under all of the groups together. Entries that are the same on every orbit stay where they are; what
other vertical directions remain is projected out, orthogonally in the coordinates of the chart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp

from spiritlevel.core.blocks import Block
from spiritlevel.core.tensors import dot, norm
from spiritlevel.errors import ModelError

__all__ = ["Section", "Verticals"]

Weights = dict[str, Tensor]
_TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6}  # ours: residual of the normal equations, relative
_MOST_ROUNDS = 2000


class Section:
    """Where folding leads, and how tangent vectors go there and back.

    Args:
        weights: as the user has them.
        blocks: all of the quotient; those without a section do nothing here.
    """

    def __init__(self, weights: Weights, blocks: Sequence[Block]) -> None:
        self._stages: list[tuple[Block, Tensor, Weights]] = []  # block, group element, weights before
        self.weights = dict(weights)
        with torch.no_grad():
            for block in sorted(blocks, key=lambda b: b.order):
                element = block.section(self.weights)
                if element is not None:
                    before = self.weights
                    self.weights = {**before, **block.act(before, element)}
                    self._stages.append((block, element, before))

    @property
    def moves(self) -> bool:
        """Whether the canonical point is another one than the user's."""
        return bool(self._stages)

    def push(self, tangent: Weights) -> Weights:
        """A tangent vector at the user's weights, carried to the canonical point.

        By the differential of the fold where that takes all vertical directions to 0; by that of the group element
        where some are left for the chart to project out.
        """
        for block, element, before in self._stages:
            tangent = _carried(block, element if block.free else None, before, tangent)
        return tangent

    def pull(self, tangent: Weights) -> Weights:
        """A tangent vector at the canonical point, carried to the user's weights."""
        after = self.weights
        for block, element, before in reversed(self._stages):
            tangent = _carried(block, block.inverse(element), after, tangent)
            after = before
        return tangent


def _carried(block: Block, element: Tensor | None, weights: Weights, tangent: Weights) -> Weights:
    """The differential of the action of a fixed group element; without one, of the fold."""
    names = [n for n in (*block.parameters, *getattr(block, "reads", ())) if n in tangent]
    point, direction = {n: weights[n] for n in names}, {n: tangent[n].to(weights[n].dtype) for n in names}

    def act(some: Weights) -> Weights:
        here = {**weights, **some}
        chosen = block.section(here) if element is None else element
        assert chosen is not None
        return block.act(here, chosen)

    moved: Weights = jvp(act, (point,), (direction,))[1]
    return {**tangent, **moved}


class Verticals:
    """The vertical directions that are neither folded away nor inside a pair, as a subspace of the coordinates.

    ``z - V (V^T V)^+ V^T z`` by conjugate gradients, where ``V`` takes algebra elements to coordinates: no matrix of
    the size of the model is stored. A few products with ``V`` for scales and shifts, tens to hundreds for rotations;
    each costs about as much as reading all weights (for a rotation of width h: h times that).

    Args:
        blocks: those with `Block.free`.
        weights: at the canonical point.
        coordinates: the chart's way from a tangent vector to horizontal coordinates, differentiable.
    """

    def __init__(self, blocks: Sequence[Block], weights: Weights, coordinates: Callable[[Weights], Tensor]) -> None:
        self._blocks, self._weights, self._coordinates = tuple(blocks), weights, coordinates
        self.dimension = sum(b.dimension for b in blocks)
        first = next(iter(weights.values()))
        with torch.enable_grad():
            self._zero = [
                torch.zeros(b.algebra, dtype=torch.float64, device=first.device, requires_grad=True) for b in blocks
            ]
            self._linear = self._image(self._zero)

    def _image(self, elements: Sequence[Tensor]) -> Tensor:
        """``V c``."""
        tangent = {n: torch.zeros_like(w) for n, w in self._weights.items()}
        for block, element in zip(self._blocks, elements, strict=True):
            dtype = self._weights[block.parameters[0]].dtype
            for name, x in block.generate(self._weights, element.to(dtype)).items():
                tangent[name] = tangent[name] + x
        return self._coordinates(tangent)

    def _transposed(self, z: Tensor) -> list[Tensor]:
        """``V^T z``."""
        return list(torch.autograd.grad(self._linear, self._zero, z.to(self._linear.dtype), retain_graph=True))

    def remove(self, z: Tensor) -> Tensor:
        """The part of ``z`` that is orthogonal to all of them; differentiable as often as wanted."""
        removed: Tensor = _Removal.apply(z, self)  # type: ignore[no-untyped-call]  # torch's
        return removed

    def removed(self, z: Tensor) -> Tensor:
        """`remove`, without derivatives."""
        with torch.no_grad():
            right = self._transposed(z)
        target = _size(right) * _TOLERANCE.get(z.dtype, 1e-6)
        solution = [torch.zeros_like(r) for r in right]
        residual, direction = right, [r.clone() for r in right]
        square = _size(residual) ** 2
        for _ in range(_MOST_ROUNDS):
            if square**0.5 <= target:
                break
            with torch.no_grad():
                image = self._image(direction)
                step = square / dot(image, image)
                product = self._transposed(image)
                solution = [s + step * d for s, d in zip(solution, direction, strict=True)]
                residual = [r - step * p for r, p in zip(residual, product, strict=True)]
            before, square = square, _size(residual) ** 2
            direction = [r + square / before * d for r, d in zip(residual, direction, strict=True)]
        else:
            raise ModelError(
                f"expected the vertical directions of {[b.name for b in self._blocks][:3]} to be told apart in "
                f"{_MOST_ROUNDS} rounds, got a residual {square**0.5 / max(target, 1e-300):.1g} times the tolerance: "
                "leave rotations out (kinds=...), or measure in float64"
            )
        with torch.no_grad():
            return z - self._image(solution).to(z.dtype)


def _size(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(math.fsum(norm(t) ** 2 for t in tensors))


class _Removal(torch.autograd.Function):
    """An orthogonal projection is its own derivative, backwards and forwards."""

    @staticmethod
    def forward(z: Tensor, verticals: Verticals) -> Tensor:
        return verticals.removed(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Verticals], output: Tensor) -> None:
        del output
        ctx.verticals = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.verticals.remove(gradient), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        removed: Tensor = ctx.verticals.remove(tangent)
        return removed
