"""AdamE: Adam with another power of the second moment, and so with another implicit sharpness."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from spiritlevel.errors import ArgumentError

__all__ = ["AdamE"]


class AdamE(Optimizer):
    """``w <- w - lr m / (v^power + eps)`` with the moments of Adam (Li, Wen and Lyu 2025).

    Near a manifold of minimisers and under label noise it reduces ``sum_j H_jj^(1 - power)``: power 0 is gradient
    descent with momentum and the trace of the Hessian, 1/2 is Adam and ``sum_j sqrt(H_jj)``, and in between lie the
    others (`spiritlevel.root_diagonal_trace` with ``power=1 - power`` measures it). The paper's analysis has neither
    bias correction nor weight decay. Memory: two copies of the weights.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: decay of the first and second moment.
        power: lambda of AdamE-lambda, from 0 up to 1.
        eps: added to the denominator.
        weight_decay: decoupled, as in AdamW.
        bias_correction: of both moments, as in Adam.

    >>> w = torch.nn.Parameter(torch.tensor([1.0, 100.0]))
    >>> optimizer = AdamE([w], lr=0.1, betas=(0.0, 0.0), power=0.25, eps=0.0)
    >>> (w**2 / 2).sum().backward()
    >>> optimizer.step()
    >>> w.data  # g / sqrt(|g|)
    tensor([ 0.9000, 99.0000])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        power: float = 0.5,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
    ) -> None:
        if not lr >= 0 or not math.isfinite(lr):
            raise ArgumentError(f"expected a learning rate from 0 on, got {lr!r}")
        if not 0 <= power <= 1:
            raise ArgumentError(f"expected a power between 0 and 1, got {power!r}")
        if not all(0 <= b < 1 for b in betas):
            raise ArgumentError(f"expected betas from 0 to below 1, got {betas!r}")
        if not eps >= 0 or not weight_decay >= 0:
            raise ArgumentError(f"expected eps and weight_decay from 0 on, got {eps!r} and {weight_decay!r}")
        defaults = {"lr": lr, "betas": betas, "power": power, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update; with a closure, the loss it returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
        return loss

    def _update(self, p: Tensor, group: dict[str, Any]) -> None:
        g, state, (beta1, beta2) = p.grad, self.state[p], group["betas"]
        if g is None or g.is_sparse:
            raise ArgumentError("expected dense gradients, got a sparse one: build the embedding with sparse=False")
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        m, v = state["exp_avg"].lerp_(g, 1 - beta1), state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        corrections = [1 - b ** state["step"] for b in (beta1, beta2)] if group["bias_correction"] else [1.0, 1.0]
        p.mul_(1 - group["lr"] * group["weight_decay"])
        # at power 0 the denominator is 1, whatever v is
        below = (v / corrections[1]).pow_(group["power"]).add_(group["eps"]) if group["power"] else 1.0
        p.sub_(m / below, alpha=group["lr"] / corrections[0])
