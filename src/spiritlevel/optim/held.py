"""What a second pass must not change: batch statistics and the random state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["Buffers", "RandomState", "held"]


class Buffers:
    """The running statistics of a model, to be put back.

    With a model, all of its buffers that a forward pass may change are copied at once. Without one, those of every
    module are, at the moment it is first called (a compiled model calls none: give it).

    Args:
        model: the model, or None.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._saved: list[tuple[nn.Module, str, Tensor | None, Tensor | None]] = []
        self._seen: set[int] = set()
        self._stop: Callable[[], None] | None = None
        if model is None:
            self._stop = register_module_forward_pre_hook(lambda module, _: self._save(module)).remove
        else:
            for module in model.modules():
                self._save(module)

    def _save(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        for name, buffer in module._buffers.items():
            if buffer is None or buffer.is_floating_point() or (buffer.dim() == 0 and buffer.dtype != torch.bool):
                self._saved.append((module, name, buffer, None if buffer is None else buffer.detach().clone()))

    def put_back(self) -> None:
        """Every buffer as it was, in the same tensor; may be called again."""
        self.close()
        with torch.no_grad():
            for module, name, buffer, value in self._saved:
                if buffer is not None and value is not None and buffer.shape == value.shape:
                    buffer.copy_(value)
                module._buffers[name] = buffer

    def close(self) -> None:
        """Look at no further modules."""
        if self._stop is not None:
            self._stop()
            self._stop = None


@contextmanager
def held(model: nn.Module | None) -> Iterator[None]:
    """Whatever happens inside, buffers are afterwards as they were."""
    buffers = Buffers(model)
    try:
        yield
    finally:
        buffers.put_back()


class RandomState:
    """The random state of torch (on the given devices too), Python and NumPy, to be brought back."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()  # the state that models without a generator use
        self._devices: list[tuple[Any, torch.device, Tensor]] = []
        for device in devices:
            module = getattr(torch, device.type, None)
            if device.type != "cpu" and hasattr(module, "get_rng_state"):
                self._devices.append((module, device, _of(module, device)))

    def bring_back(self) -> None:
        """Continue from here, with the same dropout masks."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for module, device, state in self._devices:
            module.set_rng_state(state) if device.type == "mps" else module.set_rng_state(state, device)


def _of(module: Any, device: torch.device) -> Tensor:
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state
