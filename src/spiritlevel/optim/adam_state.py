"""Adam's sharpness read off its own state, for free."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim import Optimizer

from spiritlevel.core.results import Measurement, Status
from spiritlevel.errors import ArgumentError

__all__ = ["root_diagonal_from_state"]


def root_diagonal_from_state(
    optimizer: Optimizer, *, noise: float = 1.0, power: float = 0.5, elementwise: bool = False
) -> Measurement:
    """``sum_j (v_j / noise)^power``, where the second moment ``v`` of Adam stands for the diagonal of the Hessian.

    Under label noise at an interpolating point the gradient is nothing but noise, and ``E g_j^2 = noise H_jj``: for the
    mean square loss ``mean (f - y)^2 / 2`` with labels moved by independent noise of variance s^2, drawn anew at every
    step, ``noise = s^2 / batch size``. With power 1/2 that is the sharpness Adam reduces. Elsewhere ``v`` is the mean
    square of the gradient: a number, but no measure of curvature. Compare `spiritlevel.root_diagonal_trace`, which
    needs no such assumption.

    The estimate is low: ``v`` is a mean over about ``2 / (1 - beta2)`` steps and the root is concave. For Gaussian
    gradients its bias is about ``- power (1 - power) (1 - beta2) / 2`` of the value, which the stats give; v must have
    forgotten its start, so bias correction is applied.

    Args:
        optimizer: Adam, AdamW, NAdam, RAdam, AdamE or RMSprop of torch, or `SAM` around one of them.
        noise: the factor between the noise of the gradient and the Hessian.
        power: of the entries, above 0 and up to 1.
        elementwise: weigh with ``|w_j|^(2 power)``: for power 1/2 ``sum |w_j| sqrt(H_jj)``, which does not change when
            single weights are rescaled.
    """
    if not noise > 0 or not math.isfinite(noise):
        raise ArgumentError(f"expected a noise above 0, got {noise!r}")
    if not 0 < power <= 1:
        raise ArgumentError(f"expected a power above 0 and up to 1, got {power!r}")
    total, entries, share = 0.0, 0, 0.0
    for group in optimizer.param_groups:
        for p in group["params"]:
            if optimizer.state.get(p):
                v, forgotten = _second_moment(optimizer.state[p], group)
                scaled = (v.detach().double() / noise).pow(power)
                weight = p.detach().double().abs().pow(2 * power) if elementwise else torch.ones_like(scaled)
                total += float((scaled * weight).sum())
                entries, share = entries + p.numel(), max(share, forgotten)
    if not entries:
        raise ArgumentError("expected an optimizer that has made steps, got one without state: train first")
    stats = {"bias of Gaussian gradients, to first order": -power * (1 - power) * share / 2 * total}
    settings = {"noise": noise, "power": power, "elementwise": elementwise, "entries": entries}
    return Measurement("root-diagonal trace from Adam's state", total, (total,), None, Status.ESTIMATE, stats, settings)


def _second_moment(state: dict[str, Tensor], group: dict[str, object]) -> tuple[Tensor, float]:
    """The second moment without its start, and the share that one step forgets."""
    if "exp_avg_sq" in state:
        betas: tuple[float, float] = group["betas"]  # type: ignore[assignment]
        beta = float(betas[1])
        corrected = group.get("bias_correction", True)
        correction = 1 - beta ** float(state["step"]) if corrected else 1.0
        return state["exp_avg_sq"] / correction, 1 - beta
    if "square_avg" in state and "alpha" in group:  # RMSprop
        beta = float(group["alpha"])  # type: ignore[arg-type]
        return state["square_avg"] / (1 - beta ** float(state["step"])), 1 - beta
    raise ArgumentError(f"expected a second moment in the state, as Adam keeps it; got {sorted(state)}")
