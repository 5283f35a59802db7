"""Rules that climb along the gradient in some norm: SAM, ASAM, Fisher-SAM, RSAM."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.errors import ArgumentError
from spiritlevel.optim.rules.base import RULES, Perturbation, check_positive, ratio
from spiritlevel.optim.slots import Point, Slot, dot, norm

__all__ = ["ASAM", "RSAM", "FisherSAM", "Plain"]


@RULES.register("SAM")
@dataclass(frozen=True)
class Plain(Perturbation):
    """SAM: ``epsilon = rho g / |g|`` (Foret et al. 2021, Eq. 2).

    Invariant under rotations of the weights only. One more forward-backward pass for each step.

    Args:
        rho: the radius.

    >>> Plain(rho=0.1)
    Plain(rho=0.1)
    """

    def perturbation(self, point: Point) -> Iterable[Tensor]:
        scale = ratio(self.rho, norm(point.gradients))
        return (scale.to(g) * g for g in point.gradients)


@RULES.register("ASAM")
@dataclass(frozen=True)
class ASAM(Perturbation):
    """Adaptive SAM: with ``T = |w| + eta`` or, layerwise, ``T = (1 + eta) |W_l|``,

    ``epsilon = rho T^2 g / |T g|`` in l2, ``epsilon = rho T sign(g)`` in l-infinity (Kwon et al. 2021, Eq. 10 and 11).

    Invariant under rescaling of single weights (elementwise) or whole layers for ``eta = 0``. Radii are not those of
    SAM (0.5 to 2 is usual for l2), and those with and without biases are not comparable either.

    Args:
        rho: the radius.
        eta: added to the scale, so that weights of 0 move too.
        norm: ``l2`` or ``linf``.
        scale: ``element`` or ``layer`` (one number for each parameter tensor).
        biases: False leaves T = 1 for biases, as the authors' first code did; needs ``model=``.
    """  # noqa: D415

    rho: float = 0.5
    eta: float = 0.01
    norm: Literal["l2", "linf"] = "l2"
    scale: Literal["element", "layer"] = "element"
    biases: bool = True

    def _check(self) -> None:
        if not math.isfinite(self.eta) or self.eta < 0:
            raise ArgumentError(f"expected eta from 0 on, got {self.eta!r}")
        if self.norm not in ("l2", "linf") or self.scale not in ("element", "layer"):
            raise ArgumentError(
                f"expected norm 'l2' or 'linf' and scale 'element' or 'layer', got {self.norm!r} and {self.scale!r}"
            )

    def _scale(self, point: Point, slot: Slot) -> Tensor:
        """T."""
        if not self.biases and point.role(slot).bias:
            return torch.ones_like(slot.weight)
        if self.scale == "element":
            return slot.weight.abs() + self.eta
        length: Tensor = torch.linalg.vector_norm(slot.parameter) * (
            1 + self.eta
        )  # multiplicative, as in SAM-ON's code
        return length.expand_as(slot.weight)

    def perturbation(self, point: Point) -> Iterator[Tensor]:
        if self.norm == "linf":
            yield from (self.rho * self._scale(point, s) * s.gradient.sign() for s in point.slots)
            return
        factor = ratio(self.rho, norm(self._scale(point, s) * s.gradient for s in point.slots))
        for s in point.slots:
            yield factor.to(s.gradient) * self._scale(point, s) ** 2 * s.gradient


@RULES.register("Fisher-SAM")
@dataclass(frozen=True)
class FisherSAM(Perturbation):
    """``epsilon = rho F^-1 g / sqrt(g^T F^-1 g)`` with ``F = 1 + eta g^2`` entry by entry (Kim et al. 2022, Sec. 4).

    The square of the batch gradient stands for the Fisher diagonal, as in the authors' code.

    Args:
        rho: the radius.
        eta: weight of the Fisher diagonal.
    """

    eta: float = 1.0

    def _check(self) -> None:
        check_positive(eta=self.eta)

    def _natural(self, g: Tensor) -> Tensor:
        return g / (1 + self.eta * g.square())

    def perturbation(self, point: Point) -> Iterable[Tensor]:
        square = dot(point.gradients, [self._natural(g) for g in point.gradients])
        factor = ratio(self.rho, square.sqrt())
        return (factor.to(g) * self._natural(g) for g in point.gradients)


@RULES.register("RSAM")
@dataclass(frozen=True)
class RSAM(Perturbation):
    """Rényi SAM as published: ``epsilon = -sign(1 - alpha) rho c g``, ``c = sum |g|^(2 alpha) / |g|^(2 alpha + 2)``.

    It moves along the gradient, so it is SAM with the radius ``rho sum |g|^(2 alpha) / |g|^(2 alpha + 1)``: that
    depends on the number of weights, grows without bound as the gradient goes to 0 (hence the authors' plain first
    epochs: see ``warmup`` of `SAM`), and for ``alpha < 1`` the step goes downhill. ``SAM.radius`` shows it after each
    step.

    Args:
        rho: weight of the regulariser (the authors' 0.65), not a radius.
        alpha: order of the entropy, above 0 and not 1 (the authors' 1.2).
    """

    rho: float = 0.65
    alpha: float = 1.2

    def _check(self) -> None:
        check_positive(alpha=self.alpha)
        if self.alpha == 1:
            raise ArgumentError("expected alpha other than 1, where the entropy has another formula")

    def perturbation(self, point: Point) -> Iterable[Tensor]:
        gradients = point.gradients
        size = norm(gradients)
        # sum |g / |g||^(2 alpha), so that no power of a small gradient is lost
        shares = torch.stack(
            [(g.abs() * ratio(1.0, size).to(g)).pow(2 * self.alpha).sum().to(size) for g in gradients]
        ).sum()
        factor = math.copysign(self.rho, self.alpha - 1) * ratio(shares, size.square())
        return (factor.to(g) * g for g in gradients)
