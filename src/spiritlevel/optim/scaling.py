"""Gradients of a scaled loss: both passes are divided by the scale, and the scaler hears of infinities once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from spiritlevel.errors import ArgumentError

__all__ = ["Hook", "Scaling"]


@dataclass(frozen=True)
class Hook:
    """What ``GradScaler.step`` hands to an optimizer that scales by itself.

    Attributes:
        scale: what gradients have to be divided by; None where they are already.
        infinite: whether some are not finite.
    """

    scale: Tensor | None
    infinite: bool


class Scaling:
    """A GradScaler for two passes, or none.

    Args:
        scaler: as given by the user; one that is switched off counts as none.
        owner: the optimizer that the scaler knows.
        device: of the parameters.
    """

    def __init__(self, scaler: GradScaler | None, owner: Optimizer, device: torch.device) -> None:
        self._scaler, self._owner = scaler, owner
        self._poisoned = False
        if self.live is not None:
            self.live.scale(torch.zeros((), device=device))  # torch makes the scale at its first use, and asks before

    @property
    def given(self) -> bool:
        """Whether there is a scaler at all."""
        return self._scaler is not None

    @property
    def live(self) -> GradScaler | None:
        """The scaler, where it is switched on."""
        return self._scaler if self._scaler is not None and self._scaler.is_enabled() else None

    def first(self, parameters: Iterable[Tensor], ranks: bool = False) -> bool:
        """Divide the gradients of the first of two passes; False where they are not finite.

        With ``ranks`` each rank has gradients of its own, and what is not finite on one of them is so on all.
        """
        if self.live is None:
            return True
        states = getattr(self.live, "_per_optimizer_states", {})  # torch has no public word for it
        if id(self._owner) in states and states[id(self._owner)]["stage"].name != "READY":
            raise ArgumentError("expected scaler.unscale_(sam) after the second pass only, got it before first_step")
        parameters = list(parameters)
        self._poisoned = not _finite(parameters)
        if ranks and dist.is_available() and dist.is_initialized():
            worst = torch.tensor(float(self._poisoned), device=parameters[0].device)
            dist.all_reduce(worst, dist.ReduceOp.MAX)  # else one rank would leave the step out, and the others not
            self._poisoned = bool(worst)
        if not self._poisoned:
            _divide(parameters, self.live.get_scale())
        return not self._poisoned

    def last(self, parameters: Iterable[Tensor], hook: Hook | None) -> bool:
        """Divide the gradients of the update and tell the scaler; False where the update has to be left out."""
        parameters, poisoned, self._poisoned = list(parameters), self._poisoned, False
        if hook is not None:
            if hook.scale is not None:
                _divide(parameters, float(hook.scale))
            return not hook.infinite and not poisoned
        if self.live is None:
            return True
        if poisoned:  # the first pass already was not finite: the scaler must lower its scale
            for p in parameters:
                if p.grad is not None:
                    p.grad.fill_(math.inf)
        self.live.unscale_(self._owner)
        return _finite(parameters)

    def forget(self) -> None:
        """The step was given up."""
        self._poisoned = False


def _values(p: Tensor) -> Tensor | None:
    return p.grad.coalesce().values() if p.grad is not None and p.grad.is_sparse else p.grad


def _finite(parameters: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(g).all()) for p in parameters if (g := _values(p)) is not None)


def _divide(parameters: Iterable[Tensor], scale: float) -> None:
    for p in parameters:
        if p.grad is not None:
            p.grad.div_(scale)
