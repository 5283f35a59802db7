"""Activation checkpoints: parts of a forward pass that are computed again on the way back instead of kept.

A checkpoint calls its part anew during the backward pass, when a functional call is long over and the model has its own
weights again: gradients would come out wrong without a word. Inside `recomputing` such parts get the weights of the
pass they belong to. `checkpointed` puts checkpoints around the layers of a model that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as library
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import _get_current_function_mode_stack

from spiritlevel.core.bare import copied
from spiritlevel.errors import DerivativeError, ModelError

__all__ = ["checkpointed", "recomputing"]

_CACHES = ("past_key_values", "past_key_value", "layer_past")  # would grow once more when a layer runs again


@contextmanager
def recomputing(model: nn.Module, weights: Mapping[str, Tensor], around: Callable[[], Any]) -> Iterator[None]:
    """Checkpoints made inside are computed again at these weights.

    Args:
        model: the one called.
        weights: all parameters and buffers of the call.
        around: a context a call of the model needs.
    """
    generator, reentrant = library._checkpoint_without_reentrant_generator, library.CheckpointFunction

    def ours(part: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        modes = _get_current_function_mode_stack()

        def again(*a: Any, **k: Any) -> Any:
            with ExitStack() as stack:
                stack.enter_context(around())
                stack.enter_context(_reparametrize_module(model, dict(weights), tie_weights=True))
                for mode in modes:
                    stack.enter_context(mode)
                return part(*a, **k)

        return generator(again, *args, **kwargs)

    library._checkpoint_without_reentrant_generator = ours  # type: ignore[assignment]  # put back below
    library.CheckpointFunction = _Refused  # type: ignore[misc]  # as above
    try:
        yield
    finally:
        library._checkpoint_without_reentrant_generator = generator
        library.CheckpointFunction = reentrant  # type: ignore[misc]  # as above


class _Refused(library.CheckpointFunction):
    """Reentrant checkpoints know only ``loss.backward()``."""

    @classmethod
    def apply(cls, function: Any, preserve: Any, *args: Any) -> Any:
        if torch.is_grad_enabled():
            raise DerivativeError(
                "expected activation checkpoints with use_reentrant=False, got a reentrant one, which has no gradient "
                "for given weights: change it in the model, or call gradient_checkpointing_enable("
                "gradient_checkpointing_kwargs={'use_reentrant': False})"
            )
        return function(*args)


def checkpointed(model: nn.Module) -> nn.Module:
    """Modules of the same parameters, in which every layer (a child of a ModuleList or Sequential) is a checkpoint.

    The model itself is not changed.
    """
    new = copied(model)
    layers = [m for parent in new.modules() if isinstance(parent, nn.ModuleList) for m in parent]
    layers = layers or [m for parent in new.modules() if isinstance(parent, nn.Sequential) for m in parent]
    if not layers:
        raise ModelError(
            "expected layers in a ModuleList or Sequential to put checkpoints around, got none: use "
            "torch.utils.checkpoint inside the model, with use_reentrant=False"
        )
    for layer in layers:
        layer.__dict__["forward"] = _checkpoint_of(layer)
    return new


def _checkpoint_of(layer: nn.Module) -> Callable[..., Any]:
    inner = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return inner(*args, **kwargs)
        kwargs = {k: None if k in _CACHES else False if k == "use_cache" else v for k, v in kwargs.items()}
        return library.checkpoint(inner, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return forward
