"""What flows where: one forward pass, watched at the borders of modules.

A tensor is recognised by its memory, length and version, so also behind a reshape, and not behind a change in place.
Tensors are kept alive while the pass runs, so that no memory is used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.batches import batch_size, cut, tensors_in
from spiritlevel.core.evaluation import forward, measurable

__all__ = ["Call", "Trace", "few_examples", "trace"]

Key = tuple[int, int, int, int]
_EXAMPLES = 4


@dataclass(frozen=True)
class Call:
    """One call of a module.

    Attributes:
        name: of the module.
        module: itself.
        inputs: keys of the tensors it was given.
        output: key of the first tensor it gave back.
        example: the first tensor it was given, as it was.
        channels: length of the last axis of the first tensor it gave back.
    """

    name: str
    module: nn.Module
    inputs: tuple[Key, ...]
    output: Key
    example: Tensor
    channels: int


@dataclass(frozen=True)
class Trace:
    """All calls of one forward pass, in the order in which they ended."""

    model: nn.Module
    calls: tuple[Call, ...]
    outputs: tuple[Key, ...]
    weights: Mapping[str, Tensor]

    def of(self, *kinds: type[nn.Module]) -> list[Call]:
        """Calls of modules of some classes."""
        return [c for c in self.calls if isinstance(c.module, kinds)]

    def readers(self, key: Key) -> list[Call]:
        """Calls of modules without children that were given a tensor."""
        return [c for c in self.calls if key in c.inputs and not any(True for _ in c.module.children())]

    def writer(self, key: Key) -> Call | None:
        """The innermost call that gave a tensor back."""
        return next((c for c in self.calls if c.output == key), None)


def few_examples(batch: Any) -> Any:
    """The first examples of a batch: symmetries show on few."""
    size = batch_size(batch)
    return cut(batch, 0, min(size, _EXAMPLES), size)


def trace(model: nn.Module, batch: Any) -> Trace:
    """Watch one forward pass. The hooks are gone when it returns, whatever happens."""
    calls: list[Call] = []
    alive: list[Any] = []
    handles = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given = [t for t in tensors_in([list(args), kwargs]) if t.is_floating_point()]
            result = next((t for t in tensors_in(_plain(output)) if t.is_floating_point()), None)
            if result is None or not result.dim():
                return
            alive.extend([given, result])
            example = given[0] if given else result
            keys = tuple(before[id(module)])
            calls.append(Call(name, module, keys, _key(result), example, result.shape[-1]))

        return hook

    before: dict[int, list[Key]] = {}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        given = [t for t in tensors_in([list(args), kwargs]) if t.is_floating_point()]
        before[id(module)] = [_key(t) for t in given]

    weights = measurable(model)
    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(watch(name), with_kwargs=True))
        with torch.no_grad():
            output = forward(model, weights, few_examples(batch))
    finally:
        for handle in handles:
            handle.remove()
    found = [_key(t) for t in tensors_in(_plain(output)) if t.is_floating_point()]
    return Trace(model, tuple(calls), tuple(found), weights)


def _plain(output: Any) -> Any:
    return dict(output) if isinstance(output, Mapping) else output


def _key(t: Tensor) -> Key:
    return t.untyped_storage().data_ptr(), int(t.storage_offset()), t.numel(), t._version
