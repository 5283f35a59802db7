"""Sharpness-aware training around any optimizer of torch: one engine, and a rule of a few lines for each method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from spiritlevel.core.bare import bare
from spiritlevel.errors import ArgumentError, CheckpointError
from spiritlevel.optim.ascent import Ascent
from spiritlevel.optim.checks import check_base, check_settings
from spiritlevel.optim.fisher import squared_gradients
from spiritlevel.optim.held import Buffers, RandomState
from spiritlevel.optim.passes import Closure, Passes, checked_closures
from spiritlevel.optim.rules import SSAMF, Plain, Rule
from spiritlevel.optim.scaling import Hook, Scaling
from spiritlevel.optim.slots import Memory, Point, Slot, roles_of, slots_of

__all__ = ["SAM"]

_KEY = "spiritlevel"


class SAM(Optimizer):
    """A base optimizer that steps with the gradient of a perturbed point.

    The rule says where that point is: ``w + rho g / |g|`` for SAM, a geodesic of any geometry for `GeodesicSAM`, and so
    on (`spiritlevel.optim.RULES`). In one call::

        sam = SAM(torch.optim.AdamW(model.parameters(), lr=1e-3), rules.ASAM(rho=0.5), model=model)
        for x, y in batches:
            loss = sam.step(lambda: loss_function(model(x), y))

    The closure takes no arguments and returns the loss. It is called for both passes, with the same random numbers (so
    the same dropout masks), and may call ``zero_grad`` and ``backward`` or leave both out. A list of closures is one
    step over micro-batches: gradients are their mean. Autocast belongs into the closure. In two steps::

        loss_function(model(x), y).backward()
        with sam.perturbed():
            loss_function(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        sam.step()

    where `first_step` and `second_step` do the same without the safety of ``with``. Micro-batches are accumulated as
    usual, all of them in both passes; `mark` before the first pass lets the second repeat its random numbers.

    After a step all gradients are gone, so what is in ``.grad`` is always new. Buffers (batch statistics) move in the
    first pass only. Whenever a closure or a ``with`` block raises, weights and buffers are as before. Parameter groups
    and state are the base optimizer's own: schedulers work on either. `state_dict` holds everything for an exact
    resume, but for the random state of your own data and dropout.

    Weights in half precision swallow perturbations smaller than their rounding: keep them in float32, as autocast does.

    Memory beyond the base optimizer: one copy of the weights that move, kept between steps; for `GSAM` and `LookSAM` a
    first gradient during the second pass, for LookSAM its direction too; for `GeodesicSAM` 1.6 copies during the second
    pass where it is Riemannian and 2.6 where it is not (measured by ``bench/optim.py``).

    Args:
        base: any optimizer of torch that needs no closure.
        rule: where to take the gradient; SAM with radius 0.05 by default.
        model: the model of the parameters. Needed by rules that go by layers or names, for ``no_sync``, and for batch
            statistics under ``torch.compile``.
        scaler: the `torch.amp.GradScaler` of float16 training. The step scales, unscales and checks both passes; call
            ``sam.step(closure)`` and then ``scaler.update()``. In two steps scale the losses yourself and call
            ``scaler.step(sam)``.
        sync: with `DistributedDataParallel`, perturb along the mean gradient (``global``, the same on all ranks), or
            each rank along its own (``local``, the m-sharpness of SAM's paper; needs ``model=`` and closures).
        clip_norm: clip the gradient of the update at this norm.
        warmup: so many plain base steps first (RSAM's authors train 5 epochs without it).
        seed: of random masks.

    Attributes:
        base: the base optimizer.
        rule: the rule.
        steps: base steps made so far.
        passes: forward-backward passes made by closures so far.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> sam = SAM(torch.optim.SGD([w], lr=1.0), Plain(rho=0.5))
    >>> sam.step(lambda: (w**2).sum() / 2)  # the gradient at 1.1 w is 1.1 w
    tensor(12.5000)
    >>> w.data, sam.radius
    (tensor([-0.3000, -0.4000]), 0.5)
    """

    _step_supports_amp_scaling = True  # torch's word: GradScaler.step hands us its scale instead of unscaling

    def __init__(
        self,
        base: Optimizer,
        rule: Rule | None = None,
        *,
        model: nn.Module | None = None,
        scaler: GradScaler | None = None,
        sync: Literal["global", "local"] = "global",
        clip_norm: float | None = None,
        warmup: int = 0,
        seed: int = 0,
    ) -> None:
        rule = Plain() if rule is None else rule
        check_base(base)
        check_settings(rule, model, sync, clip_norm, warmup)
        self.base, self.rule, self.sync, self.clip_norm, self.warmup = base, rule, sync, clip_norm, warmup
        self.steps, self.passes = 0, 0
        # What Optimizer.__init__ does, but for groups and state of its own: those are the base's.
        Optimizer.__setstate__(self, {"defaults": base.defaults})
        self._model, self._seed, self._scaling = model, seed, Scaling(scaler, self, self._parameters[0].device)
        inside = None if model is None else bare(model)  # its own names, not those of a wrapper of DDP
        self._roles = {} if inside is None else roles_of(inside)
        self._memory: Memory = {}
        self._ascent: Ascent | None = None
        self._room: dict[int, Tensor] = {}
        self._combined = False
        self._marked: RandomState | None = None
        self._radius: Tensor | None = None
        self._fixed = rule.prepare(self._parameters, self._roles, inside)

    # ------------------------------------------------------------------------------------------- the base's own

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # torch's is an attribute
        """The base optimizer's parameter groups, by reference."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base optimizer's state, by reference."""
        return self.base.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add to the base optimizer."""
        self.base.add_param_group(param_group)
        self._fixed = self.rule.prepare(self._parameters, self._roles, self._model)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; a step does so by itself."""
        self.base.zero_grad(set_to_none)

    @property
    def _parameters(self) -> list[Tensor]:
        return list(itertools.chain.from_iterable(g["params"] for g in self.base.param_groups))

    # ------------------------------------------------------------------------------------------------ questions

    @property
    def ascends(self) -> bool:
        """Whether the next step takes a second pass (not in the warm-up, and not between LookSAM's)."""
        return self.steps >= self.warmup and self.rule.ascends(self.steps - self.warmup)

    @property
    def radius(self) -> float | None:
        """How far the weights moved in the last ascent, as a Euclidean length; None before the first."""
        return None if self._radius is None else float(self._radius)

    def __repr__(self) -> str:
        shown = "none yet" if self._radius is None else f"{self.radius:.4g}"
        return f"SAM({self.rule!r}, last radius: {shown}, base: {self.base!r})"

    # ------------------------------------------------------------------------------------------------- one call

    def step(self, closure: Any = None) -> Any:
        """One update: with a closure all of it, without one the end of the two-step form.

        Args:
            closure: returns the loss; or a list of those, one for each micro-batch.

        Returns:
            The loss at the weights before the step, cut off; None without closures.
        """
        hook = None
        found = getattr(self, "found_inf", None)  # set by GradScaler.step
        if found is not None:
            if not self._scaling.given:
                raise ArgumentError("expected the GradScaler as SAM(..., scaler=scaler): two passes need its scale")
            hook = Hook(getattr(self, "grad_scale", None), bool(found))
        if closure is None:
            return self._end(hook)
        closures = checked_closures(closure, self.rule.selects)
        self._refuse_gradients()
        start = Buffers(self._model)
        try:
            return self._whole(closures)
        except BaseException:
            self.abandon()
            start.put_back()
            raise
        finally:
            start.close()

    def _whole(self, closures: Sequence[Closure]) -> Tensor:
        passes = Passes(closures, self._parameters, self._model, self._scaling.live)
        ascends = self.ascends
        loss = passes.first(local=self.sync == "local" and ascends)
        self.passes += 1
        if ascends:
            self.first_step()
            passes.second(self.rule)
            self.passes += 1
        self._end(None)
        return loss

    # ------------------------------------------------------------------------------------------------ two steps

    def mark(self) -> None:
        """Remember the random state here, before the first pass; the second then repeats it (dropout masks)."""
        self._marked = RandomState({p.device for p in self._parameters})

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Inside, the weights are at the perturbed point; afterwards they are back, with the gradients from inside.

        Where the step takes no second pass (`ascends` is False), leave the block out.
        """
        self.first_step()
        try:
            yield
            self.finish()
        except BaseException:
            self.abandon()
            raise

    def first_step(self) -> None:
        """Move to the perturbed point along the gradients, and clear these."""
        if self._ascent is not None:
            raise ArgumentError(
                "expected second_step after first_step, got first_step again: the weights are perturbed"
            )
        if not self.ascends:
            raise ArgumentError("expected no second pass at this step: ask sam.ascends, and call step() at once")
        if all(p.grad is None for p in self._parameters):
            raise ArgumentError("expected gradients for the perturbation, got none: call backward before first_step")
        sound = self._scaling.first(self._parameters, ranks=self.sync == "local")
        point = self._point(slots_of(self._parameters) if sound else [])
        try:
            self._ascent = Ascent(self.rule, point, self._model, self._marked, self._room)
        finally:
            self._clear()
        self._radius = self._ascent.radius

    def second_step(self) -> None:
        """Come back to the weights and update with the gradients of the perturbed point."""
        self.step()

    def finish(self) -> None:
        """Come back, and make of the gradients those of the update, before they are clipped or looked at.

        `perturbed` does it on leaving, and a step otherwise; to be called by hand only where gradients are changed
        before a step without a second pass (LookSAM). With a GradScaler it has to wait for the step, which unscales:
        clip by ``clip_norm`` there.
        """
        if self._ascent is not None:
            self._ascent.come_back()
        if self._scaling.live is None:
            self._combine()

    @torch.no_grad()
    def _combine(self) -> None:
        """Let the rule have its say over the gradients, once for each step."""
        if self._combined or all(p.grad is None for p in self._parameters):
            return
        self._combined = True
        if self._ascent is not None:
            self.rule.finish(self._ascent.point)
        elif self.steps >= self.warmup:
            self.rule.reuse(self._point(slots_of(self._parameters)))

    def abandon(self) -> None:
        """Come back and forget the step, gradients too: after an error between `first_step` and `second_step`."""
        if self._ascent is not None:
            self._ascent.come_back()
        self._ascent, self._marked, self._combined = None, None, False
        self._scaling.forget()
        self._clear()

    def _end(self, hook: Hook | None) -> None:
        """Come back, and update with the gradients there are."""
        ascent = self._ascent
        if ascent is None and self.ascends:
            raise ArgumentError(
                "expected a closure, or backward, first_step and backward again before step(): without a second "
                "gradient this would be a plain step of the base optimizer"
            )
        if all(p.grad is None for p in self._parameters):
            raise ArgumentError(
                "expected new gradients for the update, got none since the last step or perturbation: call backward"
            )
        if ascent is not None:
            ascent.come_back()
        if self._scaling.last(self._parameters, hook):
            self._combine()
            self._update()
        self._ascent, self._marked, self._combined = None, None, False
        self._clear()

    def _update(self) -> None:
        """Clip, step, count."""
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.clip_norm)
        self.base.step()
        self.steps += 1

    def _point(self, slots: Sequence[Slot]) -> Point:
        lr, step = float(self.base.param_groups[0].get("lr", 0.0)), self.steps - self.warmup
        return Point(slots, self._roles, self._parameters, self._memory, step, lr, self._seed, self._fixed)

    def _clear(self) -> None:
        for p in self._parameters:
            p.grad = None

    def _refuse_gradients(self) -> None:
        """Gradients that a closure did not compute would be lost, or mixed in."""
        if self._ascent is not None:
            raise ArgumentError(
                "expected second_step or step() after first_step, got a closure: the weights are perturbed"
            )
        if any(bool(s.gradient.any()) for s in slots_of(self._parameters)):
            raise ArgumentError(
                "expected no gradients before step(closure), got some from a backward outside of it: leave that call "
                "out (the closure is called for both passes), or give a list of closures for micro-batches"
            )
        self._clear()

    # ------------------------------------------------------------------------------------------------- the masks

    def update_mask(self, closures: Iterable[Callable[[], Tensor]]) -> None:
        """Set the mask of `SSAMF` from the losses of some examples.

        Args:
            closures: each returns the loss of one example, with the right label. Buffers and random state stay.
        """
        if not isinstance(self.rule, SSAMF):
            raise ArgumentError(f"expected the rule SSAMF for a mask by Fisher information, got {self.rule!r}")
        shared = self.sync == "global" and torch.distributed.is_available() and torch.distributed.is_initialized()
        scores = squared_gradients(closures, self._parameters, self._model, shared)
        self._memory["masks"] = self.rule.masks(scores)

    # ------------------------------------------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's, and what the rule remembers."""
        if self._ascent is not None:
            raise ArgumentError("expected a state to be saved between steps, got it while the weights are perturbed")
        own = {"rule": type(self.rule).__name__, "steps": self.steps, "memory": dict(self._memory)}
        return {**self.base.state_dict(), _KEY: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where a `state_dict` was taken."""
        own = state_dict.get(_KEY)
        if own is None:
            raise CheckpointError(
                "expected the state of a SAM, got that of another optimizer: load it with sam.base.load_state_dict, "
                "which leaves out what the rule remembers"
            )
        if own["rule"] != type(self.rule).__name__:
            raise CheckpointError(f"expected the state of {type(self.rule).__name__}, got that of {own['rule']}")
        self.base.load_state_dict({k: v for k, v in state_dict.items() if k != _KEY})
        self.steps = own["steps"]
        devices = [p.device for p in self._parameters]
        self._memory = {
            key: {i: t.detach().clone().to(devices[i]) for i, t in kept.items()} for key, kept in own["memory"].items()
        }

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: all but what schedulers patch in."""
        return {k: v for k, v in self.__dict__.items() if k != "step"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._model is not None:
            self._roles = roles_of(self._model)  # they go by the parameters' ids
