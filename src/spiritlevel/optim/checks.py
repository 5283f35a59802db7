"""What `SAM` accepts: bases that step on gradients alone, and settings that go together."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from spiritlevel.errors import ArgumentError
from spiritlevel.optim.rules import Rule

__all__ = ["check_base", "check_settings"]


def check_base(base: Any) -> None:
    """An optimizer that steps on gradients alone."""
    if isinstance(base, type):
        raise ArgumentError(
            f"expected an optimizer, got the class {base.__name__}: build it first, as in "
            f"SAM(torch.optim.{base.__name__}(model.parameters(), lr=...))"
        )
    if not isinstance(base, Optimizer) or isinstance(base, LBFGS) or hasattr(base, "perturbed"):
        raise ArgumentError(f"expected an optimizer of torch that needs no closure, got {type(base).__name__}")


def check_settings(rule: Any, model: Any, sync: str, clip_norm: float | None, warmup: int) -> None:
    """The other arguments of `SAM`."""
    if not isinstance(rule, Rule):
        raise ArgumentError(f"expected a rule such as rules.Plain(rho=0.05), got {rule!r}")
    if model is not None and not isinstance(model, nn.Module):
        raise ArgumentError(f"expected a module as model, got {type(model).__name__}")
    if sync not in ("global", "local"):
        raise ArgumentError(f"expected sync 'global' or 'local', got {sync!r}")
    if sync == "local" and not hasattr(model, "no_sync"):
        raise ArgumentError("expected the DistributedDataParallel module as model= where each rank perturbs by itself")
    if sync == "local" and rule.joins:
        raise ArgumentError(f"expected sync='global': the update of {type(rule).__name__} needs the first gradient too")
    if clip_norm is not None and not clip_norm > 0:
        raise ArgumentError(f"expected clip_norm above 0, got {clip_norm!r}")
    if not isinstance(warmup, int) or warmup < 0:
        raise ArgumentError(f"expected warmup to be a whole number from 0 on, got {warmup!r}")
