"""Rules that join both gradients, or save passes: GSAM and LookSAM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spiritlevel.errors import ArgumentError
from spiritlevel.optim.rules.ascent import Plain
from spiritlevel.optim.rules.base import RULES, check_positive, ratio
from spiritlevel.optim.slots import Point, dot, norm

__all__ = ["GSAM", "LookSAM"]


@RULES.register("GSAM")
@dataclass(frozen=True)
class GSAM(Plain):
    """Gap-guided SAM: update with ``g_p - alpha g_o``, ``g_o`` the part of ``g`` orthogonal to ``g_p`` (Zhuang et al. 2022).

    ``g`` is the gradient at w, ``g_p`` the one at ``w + rho_t g / |g|``. With a learning-rate range the radius follows
    the rate: ``rho_t = rho_min + (rho - rho_min)(lr - lr_min)/(lr_max - lr_min)`` (their Sec. 4).

    Args:
        rho: the radius, or the largest one.
        alpha: weight of the surrogate gap.
        rho_min: the smallest radius; None keeps it at ``rho``.
        lr_max: learning rate at which the radius is ``rho``.
        lr_min: learning rate at which it is ``rho_min``.
    """  # noqa: E501

    alpha: float = 0.4
    rho_min: float | None = None
    lr_max: float | None = None
    lr_min: float = 0.0

    joins: ClassVar[bool] = True
    keeps_first: ClassVar[bool] = True

    def _check(self) -> None:
        if not math.isfinite(self.alpha) or self.alpha < 0:
            raise ArgumentError(f"expected alpha from 0 on, got {self.alpha!r}")
        if (self.rho_min is None) != (self.lr_max is None):
            raise ArgumentError("expected both rho_min and lr_max for a radius that follows the rate, or neither")
        if self.rho_min is not None and self.lr_max is not None:
            if not 0 <= self.rho_min <= self.rho:
                raise ArgumentError(f"expected rho_min between 0 and rho = {self.rho:g}, got {self.rho_min!r}")
            if not 0 <= self.lr_min < self.lr_max:
                raise ArgumentError(f"expected 0 <= lr_min < lr_max, got {self.lr_min!r} and {self.lr_max!r}")

    def radius(self, lr: float) -> float:
        """The radius at a learning rate; outside the range, that of its nearest end."""
        if self.rho_min is None or self.lr_max is None:
            return self.rho
        share = min(max((lr - self.lr_min) / (self.lr_max - self.lr_min), 0.0), 1.0)
        return self.rho_min + (self.rho - self.rho_min) * share

    def perturbation(self, point: Point) -> list[Tensor]:
        scale = ratio(self.radius(point.lr), norm(point.gradients))
        return [scale.to(g) * g for g in point.gradients]

    def finish(self, point: Point) -> None:
        first, second = _both(point)
        along = ratio(dot(first, second), dot(second, second))
        for g, g_p in zip(first, second, strict=True):
            across = g - along.to(g) * g_p
            g_p.sub_(across, alpha=self.alpha)


@RULES.register("LookSAM")
@dataclass(frozen=True)
class LookSAM(Plain):
    """SAM at every k-th step; in between its direction is used again (Liu et al. 2022, Alg. 1).

    At step 0, k, 2k ... the SAM gradient ``g_s`` is used and its part orthogonal to ``g`` kept,
    ``g_v = g_s - (g_s . g) g / |g|^2``; at the others ``g + alpha (|g| / |g_v|) g_v``. Norms run over all weights.
    A step costs one pass, and each k-th two: 1 + 1/k of the base optimizer. Keeps one more copy of the weights' size.

    Args:
        rho: the radius.
        every: k.
        alpha: weight of the direction that is used again.
    """

    rho: float = 0.1
    every: int = 5
    alpha: float = 0.7

    joins: ClassVar[bool] = True
    keeps_first: ClassVar[bool] = True

    def _check(self) -> None:
        check_positive(alpha=self.alpha)
        if not isinstance(self.every, int) or self.every < 1:
            raise ArgumentError(f"expected every to be a whole number from 1 on, got {self.every!r}")

    def ascends(self, step: int) -> bool:
        return step % self.every == 0

    def finish(self, point: Point) -> None:
        first, second = _both(point)
        along = ratio(dot(first, second), dot(first, first))
        kept = [g_s - along.to(g) * g for g, g_s in zip(first, second, strict=True)]
        point.memory["kept"] = {s.index: k for s, k in zip(point.slots, kept, strict=True)}

    def reuse(self, point: Point) -> None:
        kept: dict[int, Tensor] = point.memory.get("kept", {})
        slots = [s for s in point.slots if s.index in kept]
        _refuse_sparse(point)
        if not slots:
            return
        factor = self.alpha * ratio(norm(point.gradients), norm(kept[s.index] for s in slots))
        for s in slots:
            s.gradient.add_(factor.to(s.gradient) * kept[s.index].to(s.gradient))


def _both(point: Point) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The first gradients, and the second ones as they stand in ``.grad``, to be changed there."""
    _refuse_sparse(point)
    first, second = [], []
    for s in point.slots:
        p = point.parameters[s.index]
        if p.grad is None:
            p.grad = point.first[s.index].new_zeros(p.shape)
        first.append(point.first[s.index])
        second.append(p.grad)
    return first, second


def _refuse_sparse(point: Point) -> None:
    if any(s.rows is not None or ((g := point.parameters[s.index].grad) is not None and g.is_sparse)
           for s in point.slots):  # fmt: skip
        raise ArgumentError(
            "expected dense gradients, because this rule adds gradients of different batches; got a sparse one: build "
            "the embedding with sparse=False, or take another rule"
        )
