"""MESA: stay close to the outputs of a running mean of the weights, at one forward pass more."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spiritlevel.core.losses import logits_of
from spiritlevel.errors import ArgumentError
from spiritlevel.optim.rules.base import check_positive
from spiritlevel.optim.trajectory import softened_divergence

__all__ = ["EMATeacherLoss"]


class EMATeacherLoss(nn.Module):
    """The trajectory loss of MESA: ``lam tau^2 KL(teacher / tau || now / tau)`` (Du et al. 2022, Eq. 9 and 12).

    The teacher has the weights ``v <- beta v + (1 - beta) w``, updated after every step of the optimizer by itself, and
    runs in evaluation mode without gradients. Floating buffers are averaged too, others copied. ::

        extra = EMATeacherLoss(model, optimizer)
        logits = model(x)
        loss = F.cross_entropy(logits, y) + extra(logits, x)

    The teacher is frozen, so never trained; ``state_dict`` has it. Costs a forward pass;
    memory: one more copy of the model.

    Args:
        model: the student.
        optimizer: whose steps the teacher follows.
        beta: decay of the mean (the authors' code: 0.9998; a short training wants a smaller one).
        tau: temperature.
        lam: weight.
        start: steps of the optimizer before the loss is added.
    """

    steps: Tensor

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        beta: float = 0.9998,
        tau: float = 5.0,
        lam: float = 0.8,
        start: int = 0,
    ) -> None:
        super().__init__()
        check_positive(tau=tau, lam=lam)
        if not 0 < beta < 1:
            raise ArgumentError(f"expected beta between 0 and 1, got {beta!r}")
        theirs = [p for g in getattr(optimizer, "param_groups", []) for p in g["params"]]
        if not {id(p) for p in model.parameters()} & {id(p) for p in theirs}:
            raise ArgumentError("expected the optimizer that trains the model, got one with none of its parameters")
        self.beta, self.tau, self.lam, self.start = beta, tau, lam, start
        self.teacher = copy.deepcopy(model).eval().requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        object.__setattr__(self, "_student", model)  # not as a submodule: its parameters are not ours
        self._handle = optimizer.register_step_post_hook(lambda *_: self.update())

    def train(self, mode: bool = True) -> EMATeacherLoss:
        """Training mode, but for the teacher."""
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def update(self) -> None:
        """One step of the mean; called after every step of the optimizer."""
        self.steps += 1
        student: nn.Module = self._student  # type: ignore[assignment]
        mine, theirs = _tensors(self.teacher), _tensors(student)
        floating = [i for i, t in enumerate(mine) if t.is_floating_point()]
        torch._foreach_lerp_([mine[i] for i in floating], [theirs[i] for i in floating], 1 - self.beta)
        for i, t in enumerate(mine):
            if not t.is_floating_point():
                t.copy_(theirs[i])

    def forward(self, logits: Tensor, *inputs: Any, **named: Any) -> Tensor:
        """The loss of a batch, 0 before ``start`` and in evaluation mode.

        Args:
            logits: of the student.
            inputs: what the student was given.
            named: the same, by name.
        """
        if not self.training or int(self.steps) < self.start:
            return logits.new_zeros(())
        if not inputs and not named:
            raise ArgumentError("expected the inputs of the model after the logits, for the teacher; got none")
        with torch.no_grad():
            past = logits_of(self.teacher(*inputs, **named))
        return self.lam * softened_divergence(past, logits, self.tau)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [t.detach() for t in (*model.parameters(), *model.buffers())]
