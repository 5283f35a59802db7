"""Any of torch's optimisers, on the path it takes in ``theta``, for a model whose parameters are ``psi``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.errors import ArgumentError
from spiritlevel.reparam.maps import Reparametrisation

__all__ = ["TransportedOptimizer"]


class TransportedOptimizer(torch.optim.Optimizer):
    """An optimiser of ``theta`` that trains a model in ``psi``: the same path, whatever the parametrisation.

    It keeps ``theta``, gives it the gradient ``J^T dL_psi``, lets the optimiser step, and writes ``phi(theta)`` back.
    The state (momentum, second moments) and the parameter groups are those of ``theta``, so learning rate schedules and
    weight decay mean what they mean there. One more pass of the map each way for each step.

    Where somebody else writes ``psi`` between steps (a checkpoint that is loaded), it is read anew.

    Args:
        named_parameters: of the model in ``psi`` (`reparametrise`, or one with parametrisations of torch's).
        change: ``theta -> psi``.
        make: the optimiser, from a list of parameters.
        exact: write ``phi(theta)`` (no error); else move ``psi`` by ``J`` times the step, which leaves the path in
            second order of each step, as a plain step in ``psi`` does.

    >>> from spiritlevel.reparam import Scaling, reparametrise
    >>> change = Scaling(10.0)
    >>> model = reparametrise(nn.Linear(1, 1), change)
    >>> optimiser = TransportedOptimizer(model.named_parameters(), change, lambda p: torch.optim.Adam(p, lr=0.1))
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        change: Reparametrisation,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        exact: bool = True,
    ) -> None:
        self._psi = {n: p for n, p in named_parameters if p.requires_grad}
        if not self._psi:
            raise ArgumentError("expected at least one parameter that requires a gradient, got none")
        self._change, self._exact = change, exact
        self.theta: dict[str, nn.Parameter] = {}
        with torch.no_grad():
            self.theta = {n: nn.Parameter(w.clone()) for n, w in change.inverse(self._detached()).items()}
        self.inner = make(list(self.theta.values()))
        super().__init__(list(self._psi.values()), {})
        self.param_groups = self.inner.param_groups  # schedules turn these knobs
        self.state = self.inner.state
        self._seen = self._versions()

    def _versions(self) -> list[int]:
        return [p._version for p in self._psi.values()]

    def _detached(self) -> dict[str, Tensor]:
        return {n: p.detach() for n, p in self._psi.items()}

    def synchronise(self) -> None:
        """Read ``theta`` from ``psi``, after somebody else wrote it."""
        with torch.no_grad():
            for name, w in self._change.inverse(self._detached()).items():
                self.theta[name].copy_(w)
        self._seen = self._versions()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of ``psi``."""
        for p in self._psi.values():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # as torch's
        """One step of the optimiser in ``theta``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._versions() != self._seen:
            self.synchronise()
        missing = [n for n, p in self._psi.items() if p.grad is None]
        if len(missing) == len(self._psi):  # as torch's: nothing to do
            return loss
        before = {n: p.detach().clone() for n, p in self.theta.items()}
        covector = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self._psi.items()}
        pulled = self._change.vjp(before, covector)
        for name, p in self.theta.items():
            unused = bool(missing) and not bool(pulled[name].any())  # torch's pass over weights without gradients too
            p.grad = None if unused else pulled[name].detach()
        self.inner.step()
        with torch.no_grad():
            self._write(before)
        return loss

    def _write(self, before: dict[str, Tensor]) -> None:
        now = {n: p.detach() for n, p in self.theta.items()}
        if self._exact:
            for name, w in self._change.forward(now).items():
                self._psi[name].copy_(w)
            self._seen = self._versions()
            return
        moved = self._change.jvp(before, {n: now[n] - w for n, w in before.items()})
        for name, v in moved.items():
            self._psi[name].add_(v)
        self.synchronise()

    def state_dict(self) -> dict[str, Any]:
        """That of the optimiser of ``theta``."""
        state: dict[str, Any] = self.inner.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimiser of ``theta``."""
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
