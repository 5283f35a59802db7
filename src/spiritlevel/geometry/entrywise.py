"""Geometries in which every weight moves by itself: Euclidean, elementwise (adaptive) and diagonal.

Their metric is ``sum x_i^2 / s_i^2`` with a scale ``s_i`` per weight, so ``z_i = x_i / s_i`` is orthonormal and a
straight line is ``w + s z``:

=============  ==========  ===================================
geometry       scale       invariant under
=============  ==========  ===================================
`Euclidean`    1           rotations only
`Elementwise`  ``|w|``     rescaling of single weights
`Diagonal`     ``G^-1/2``  what the given metric is built for
=============  ==========  ===================================

A weight that is exactly 0 has the elementwise scale 0: it does not move, and nothing is divided by it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spiritlevel.core.blocks import Block
from spiritlevel.core.registry import Registry
from spiritlevel.core.shapes import Flat
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.geometry.base import Geometry, Part, PullBack, Weights

__all__ = ["GEOMETRIES", "Diagonal", "Elementwise", "Euclidean"]

GEOMETRIES: Registry[type[Geometry]] = Registry("geometry")


class _Entrywise(Part):
    """Weights that move one by one: ``w + s z``, or ``w exp(sign(w) z)`` for the elementwise geodesic."""

    def __init__(self, weights: Weights, masks: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._weights, self._masks, self._dtype = dict(weights), dict(masks), dtype
        self.names = tuple(weights)
        self._sizes = [w.numel() for w in weights.values()]
        self.size = sum(self._sizes)
        self.dimension = sum(self.dimensions().values())

    def _raw_scale(self, name: str) -> Tensor:
        return torch.ones_like(self._weights[name])

    def _scale(self, name: str) -> Tensor:
        """How far the weight moves per unit coordinate; 0 where it does not."""
        scale = self._raw_scale(name)
        return scale * self._masks[name] if name in self._masks else scale

    def _pieces(self, z: Tensor) -> list[tuple[str, Tensor]]:
        pieces = zip(self.names, z.split(self._sizes), strict=True)
        return [(n, piece.view_as(self._weights[n])) for n, piece in pieces]

    def _move(self, name: str, z: Tensor) -> Tensor:
        w = self._weights[name]
        return torch.addcmul(w, self._scale(name), z.to(w.dtype))

    def write(self, z: Flat, into: dict[str, Tensor]) -> None:
        for name, piece in self._pieces(z):
            into[name] = self._move(name, piece)

    def spans(self) -> list[tuple[str, slice]]:
        ends = list(itertools.accumulate(self._sizes, initial=0))
        return [(n, slice(*ends[i : i + 2])) for i, n in enumerate(self.names)]

    def dimensions(self) -> dict[str, int]:
        return {n: int(torch.count_nonzero(self._scale(n))) for n in self.names}

    def project(self, z: Flat) -> Tensor:
        return torch.cat([(piece * (self._scale(n) != 0)).reshape(-1) for n, piece in self._pieces(z)])

    def coordinates(self, tangent: Weights) -> Tensor:
        pieces = []
        for name in self.names:
            scale, x = self._scale(name), tangent[name].to(self._dtype)
            pieces.append(torch.where(scale != 0, x / torch.where(scale != 0, scale, 1), 0).reshape(-1))
        return torch.cat(pieces)

    def tangent(self, z: Flat, into: dict[str, Tensor]) -> None:
        for name, piece in self._pieces(z):
            into[name] = self._scale(name) * piece.to(self._weights[name].dtype)

    def evaluate(self, z: Flat, into: dict[str, Tensor]) -> PullBack:
        self.write(z, into)

        def pull_back(gradient: Weights, slot: Tensor) -> None:
            for name, piece in self._pieces(slot):
                torch.mul(gradient[name].to(piece.dtype), self._scale(name), out=piece)

        return pull_back

    def scales(self, into: Tensor) -> None:
        for name, slot in self._pieces(into):
            slot.copy_(self._scale(name))


class _Plain(_Entrywise):
    """``w + z``, without a scale of ones to multiply by, where nothing is left out."""

    def _move(self, name: str, z: Tensor) -> Tensor:
        w = self._weights[name]
        return super()._move(name, z) if name in self._masks else w + z.to(w.dtype)

    def project(self, z: Flat) -> Tensor:
        return super().project(z) if self._masks else z


class _Adaptive(_Entrywise):
    def _raw_scale(self, name: str) -> Tensor:
        return self._weights[name].abs()


class _Geodesic(_Adaptive):
    """``w exp(sign(w) z)``: the geodesic of ``x^2 / w^2`` that starts like ``w + |w| z``."""

    def _move(self, name: str, z: Tensor) -> Tensor:
        w = self._weights[name]
        z = z * self._masks[name] if name in self._masks else z
        return w * torch.exp(w.sign() * z.to(w.dtype))

    def evaluate(self, z: Flat, into: dict[str, Tensor]) -> PullBack:
        return Part.evaluate(self, z, into)


class _Scaled(_Entrywise):
    def __init__(
        self, weights: Weights, masks: Mapping[str, Tensor], dtype: torch.dtype, metric: Mapping[str, Tensor]
    ) -> None:
        self._metric = metric
        super().__init__(weights, masks, dtype)

    def _raw_scale(self, name: str) -> Tensor:
        w = self._weights[name]
        return self._metric[name].to(device=w.device, dtype=w.dtype).rsqrt().expand_as(w)


class _EntrywiseGeometry(Geometry):
    def _parts(self, weights: Weights, blocks: Sequence[Block], dtype: torch.dtype) -> list[Part]:
        del blocks
        return self.rest(weights, {}, dtype)


@GEOMETRIES.register("euclidean")
@dataclass(frozen=True)
class Euclidean(_EntrywiseGeometry):
    """Straight lines in weight space, ``w + z``: the classical measures.

    Invariant under nothing but rotations of the weights.

    >>> chart = Euclidean().chart({"w": torch.tensor([3.0, 0.0])})
    >>> chart.weights(torch.tensor([1.0, 1.0]))["w"]
    tensor([4., 1.])
    """

    def rest(self, weights: Weights, masks: Mapping[str, Tensor], dtype: torch.dtype) -> list[Part]:
        return [_Plain(weights, masks, dtype)]


@GEOMETRIES.register("elementwise")
@dataclass(frozen=True)
class Elementwise(_EntrywiseGeometry):
    """The adaptive metric ``sum x^2 / w^2`` (ASAM; Kwon et al. 2021).

    Invariant under any rescaling of single weights that leaves the function alone, so under all diagonal symmetries;
    not under rotations or mixing such as GL(h). Weights that are exactly 0 do not move.

    Args:
        curve: ``straight`` is ``w + |w| z``, as in the papers; ``geodesic`` is ``w exp(sign(w) z)``, which never lets a
            weight cross zero.

    >>> chart = Elementwise().chart({"w": torch.tensor([3.0, 0.0])})
    >>> chart.weights(torch.tensor([1.0, 1.0]))["w"], chart.dimension
    (tensor([6., 0.]), 1)
    """

    curve: Literal["straight", "geodesic"] = "straight"

    def __post_init__(self) -> None:
        """Check the curve."""
        if self.curve not in ("straight", "geodesic"):
            raise ArgumentError(f"expected curve 'straight' or 'geodesic', got {self.curve!r}")

    def rest(self, weights: Weights, masks: Mapping[str, Tensor], dtype: torch.dtype) -> list[Part]:
        return [(_Adaptive if self.curve == "straight" else _Geodesic)(weights, masks, dtype)]


@GEOMETRIES.register("diagonal")
@dataclass(frozen=True)
class Diagonal(_EntrywiseGeometry):
    """Any diagonal metric ``sum g x^2``, moved along straight lines ``w + z / sqrt(g)``.

    Args:
        metric: one positive tensor per measured parameter, broadcastable to it (Adam's second moment, a Fisher
            diagonal, one number per layer).

    >>> chart = Diagonal({"w": torch.tensor(4.0)}).chart({"w": torch.tensor([1.0, 0.0])})
    >>> chart.weights(torch.tensor([1.0, 1.0]))["w"]
    tensor([1.5000, 0.5000])
    """

    metric: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        """Check that the metric is positive."""
        for name, g in self.metric.items():
            if not bool((g > 0).all()) or not bool(torch.isfinite(g).all()):
                low = float(g.min()) if g.numel() else math.nan
                raise ArgumentError(f"expected a positive finite metric for {name!r}, got a smallest entry of {low}")

    def rest(self, weights: Weights, masks: Mapping[str, Tensor], dtype: torch.dtype) -> list[Part]:
        for name, w in weights.items():
            if name not in self.metric:
                raise ModelError(f"expected a metric for every measured parameter, got none for {name!r}")
            try:
                self.metric[name].expand_as(w)
            except RuntimeError as error:
                shapes = f"{tuple(self.metric[name].shape)} for a parameter of shape {tuple(w.shape)}"
                raise ModelError(f"expected a metric that broadcasts to {name!r}, got {shapes}") from error
        return [_Scaled(weights, masks, dtype, self.metric)]

    @classmethod
    def from_optimizer(cls, optimizer: torch.optim.Optimizer, model: nn.Module) -> Diagonal:
        """The metric an adaptive optimiser steps in: ``sqrt(second moment) + eps``, read from its state.

        Adam and its kin (bias-corrected where they are; the running maximum with amsgrad; AdamE with its own power),
        RMSProp (centred or not) and Adagrad. It is a root of squared gradients, so it does not transform by itself
        under any map but that of signs: transport it.

        Args:
            optimizer: after at least one step.
            model: the one it trains, for the names of the parameters. Parameters without state are left out.
        """
        metric = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state.get(p, {})
                if state:
                    metric[p] = _second_moment(state, group) ** group.get("power", 0.5) + group["eps"]
        named = {n: metric[p] for n, p in model.named_parameters() if p in metric}
        if not named:
            raise ArgumentError(
                "expected an optimiser with second moments of the model's parameters, got none: take a step first, and "
                "pass the model that it trains"
            )
        return cls(named)

    def __str__(self) -> str:
        return f"Diagonal({len(self.metric)} tensors)"


def _second_moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """The second moment of gradients of one parameter, as its optimiser uses it."""
    if "exp_avg_sq" in state:  # Adam's
        moment: Tensor = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
        corrected = group.get("bias_correction", True)
        correction: float = 1 - group["betas"][1] ** float(state["step"]) if corrected else 1.0
        return moment.detach() / correction
    if "square_avg" in state:  # RMSProp's
        moment = state["square_avg"].detach()
        return moment - state["grad_avg"].detach() ** 2 if "grad_avg" in state else moment
    if "sum" in state:  # Adagrad's
        total: Tensor = state["sum"].detach()
        return total
    raise ArgumentError(
        f"expected an optimiser that keeps second moments (Adam, RMSProp, Adagrad), got state {sorted(state)}"
    )
