"""Work in the middle of a training run that leaves no trace in it: the next step is the one it would have been."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["inner", "untouched"]


def inner(model: nn.Module) -> nn.Module:
    """The network inside what replicates it: a forward pass of the wrapper would start its communication."""
    while isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    return model


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, exceptions included, everything that the next training step depends on is as before.

    Put back are the random states of Python, NumPy and torch (every device in use), each module's mode and attributes
    (counters and caches that a forward pass rebinds), and which tensors are its parameters, buffers and gradients.
    Inside, gradients are on, autocast is off and ``torch.compile`` is not asked: a compiled network recompiles for
    nothing of ours. The tensors themselves are not copied, because measures never write to them; a network that in
    evaluation mode writes into a plain tensor of its own (neither parameter nor buffer) is beyond this.
    """
    states = _random_states()
    slots = [(m, dict(m.__dict__), {k: dict(m.__dict__[k]) for k in _SLOTS}) for m in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]
    try:
        with contextlib.ExitStack() as stack:
            for switch in _switches():
                stack.enter_context(switch)
            if "_original_forward" in model.__dict__:  # accelerate put autocast around it
                model.__dict__["forward"] = model.__dict__["_original_forward"]
            yield
    finally:
        for module, attributes, inside in slots:
            for key, content in inside.items():
                _restore(attributes[key], content)
            _restore(module.__dict__, attributes)
        for parameter, gradient in gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        _set_random_states(states)


_SLOTS = ("_parameters", "_buffers", "_modules")


def _restore(now: dict[str, Any], before: dict[str, Any]) -> None:
    """Put a dictionary back in place; what is the same object is left alone."""
    if len(now) != len(before) or any(k not in now or now[k] is not v for k, v in before.items()):
        now.clear()
        now.update(before)


def _switches() -> Iterator[contextlib.AbstractContextManager[Any]]:
    """What is on or off while we measure."""
    yield torch.inference_mode(False)
    yield torch.enable_grad()
    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), *(["mps"] if _mps() else [])]
    yield from (torch.autocast(kind, enabled=False) for kind in kinds)
    stance = getattr(torch.compiler, "set_stance", None)  # from torch 2.6 on
    if stance is not None:
        yield stance("force_eager")


def _mps() -> bool:
    return torch.backends.mps.is_available()


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if _mps():
        states["mps"] = torch.mps.get_rng_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "mps" in states:
        torch.mps.set_rng_state(states["mps"])
