"""One forward-backward pass over the closures of a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from spiritlevel.errors import ArgumentError, LossError
from spiritlevel.optim.held import RandomState
from spiritlevel.optim.rules import Rule

__all__ = ["Closure", "Passes", "checked_closures"]

Closure = Callable[..., Any]
"""Returns the loss of one batch or micro-batch; may call ``backward`` itself, or leave that to us."""
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def checked_closures(closure: Any, selects: bool) -> list[Closure]:
    """One closure or several, each callable as the rule needs it."""
    closures = list(closure) if isinstance(closure, Sequence) else [closure]
    if not closures or not all(callable(c) for c in closures):
        raise ArgumentError(
            "expected a closure without arguments that returns the loss, or a list of such for micro-batches, got "
            f"{type(closure).__name__}: write `def closure(): return loss(model(x), y)`"
        )
    for c in closures:
        wanted = [p.name for p in _parameters(c) if p.default is p.empty and p.kind in _BY_POSITION]
        if wanted:
            raise ArgumentError(f"expected a closure that can be called without arguments, got one that wants {wanted}")
        if selects and "rows" not in [p.name for p in _parameters(c)]:
            raise ArgumentError(
                "expected a closure (rows=None) that returns one loss for each example, of those in rows only where it "
                "is given, because this rule runs its second pass on some of them (or set gamma=1)"
            )
    return closures


def _parameters(closure: Closure) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(closure).parameters.values())
    except (TypeError, ValueError):  # builtins have none
        return []


class Passes:
    """Runs closures, first at w and then at the perturbed weights with the same random numbers.

    Gradients are the mean over the closures.

    Args:
        closures: of one step.
        parameters: of the optimizer.
        model: for ``no_sync`` of a distributed one.
        scaler: of the loss.
    """

    def __init__(
        self,
        closures: Sequence[Closure],
        parameters: Sequence[Tensor],
        model: nn.Module | None,
        scaler: GradScaler | None,
    ) -> None:
        self._closures, self._parameters, self._model, self._scaler = closures, parameters, model, scaler
        self._devices = {p.device for p in parameters}
        self._states: list[RandomState] = []
        self._losses: list[Tensor] = []

    def first(self, *, local: bool) -> Tensor:
        """The pass at w; returns the loss."""
        for i, closure in enumerate(self._closures):
            self._states.append(RandomState(self._devices))
            with self._quiet(local or i < len(self._closures) - 1):
                self._losses.append(self._backward(closure, None))
        self._average()
        return torch.stack([x.mean() for x in self._losses]).mean()

    def second(self, rule: Rule) -> None:
        """The pass at the perturbed weights; the random state is then as it was before."""
        end = RandomState(self._devices)
        for i, closure in enumerate(self._closures):
            rows = self._rows(rule, closure, i) if rule.selects else None
            self._states[i].bring_back()
            with self._quiet(i < len(self._closures) - 1):
                self._backward(closure, rows)
        end.bring_back()
        self._average()

    def _rows(self, rule: Rule, closure: Closure, i: int) -> Tensor:
        """Which examples the second pass runs on, by one more forward pass."""
        before = self._losses[i]
        if before.dim() != 1:
            raise LossError(f"expected one loss for each example, got shape {tuple(before.shape)}: reduction='none'")
        self._states[i].bring_back()
        with torch.no_grad():
            after = closure(rows=None)
        return rule.chosen(before, after.detach())

    def _quiet(self, local: bool) -> AbstractContextManager[Any]:
        """Without exchange between ranks; the forward pass has to be inside too."""
        quiet = getattr(self._model, "no_sync", None)
        return quiet() if local and quiet is not None else nullcontext()

    def _backward(self, closure: Closure, rows: Tensor | None) -> Tensor:
        """Call a closure and see to it that its gradients are there; returns the loss."""
        before = [(p.grad, None if p.grad is None else p.grad._version) for p in self._parameters]
        with torch.enable_grad():
            loss = closure() if rows is None else closure(rows=rows)
        if not isinstance(loss, Tensor) or loss.dim() > 1 or not loss.numel():
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise LossError(f"expected the closure to return the loss as a scalar tensor, got {what}")
        came = False
        for p, (gradient, version) in zip(self._parameters, before, strict=True):
            if gradient is not None and p.grad is not gradient and not gradient.is_sparse:
                raise ArgumentError(
                    "expected closures of micro-batches to add to the gradients, but one cleared them: leave out "
                    "zero_grad, which the step does itself"
                )
            came |= p.grad is not gradient or (gradient is not None and gradient._version != version)
        if came and self._scaler is not None:
            raise ArgumentError(
                "expected a closure that leaves backward to the step where a GradScaler is used: return the loss "
                "without calling backward or scaler.scale"
            )
        if not came:
            self._run_backward(loss)
        return loss.detach()

    def _run_backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise ArgumentError(
                "expected a loss with gradients from the closure, got one that is cut off and no gradient either: call "
                "backward in the closure, or return the loss without detach(), item() or no_grad"
            )
        mean = loss.mean()
        (mean if self._scaler is None else self._scaler.scale(mean)).backward()

    def _average(self) -> None:
        if len(self._closures) > 1:
            for p in self._parameters:
                if p.grad is not None:
                    p.grad.div_(len(self._closures))
