"""A model without what other libraries wrap around it: the same modules' mathematics on the same parameters.

DistributedDataParallel, ``fully_shard`` (FSDP2), tensor parallelism and accelerate's ``device_map`` hooks all put their
own weights in place while a module runs, so a loss at other weights cannot be had through them. What comes back here
shares every parameter and buffer with the user's model, and that model is not touched.
"""

from __future__ import annotations

import copy
import sys
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spiritlevel.errors import ModelError

__all__ = ["bare", "copied", "here", "is_sharded", "outline", "whole"]

_FOREIGN = "torch.distributed."  # modules whose hooks move or swap parameters and activations


def bare(model: nn.Module) -> nn.Module:
    """The model itself where nothing is wrapped around it, else modules of the same classes without the hooks.

    Raises:
        ModelError: for FSDP of the first kind, whose flat parameters have no names of their own.
    """
    while isinstance(model, DistributedDataParallel):
        model = model.module
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
        raise ModelError(
            "expected a model sharded with torch.distributed.fsdp.fully_shard (FSDP2), got FullyShardedDataParallel, "
            "which joins parameters into flat ones: shard it with fully_shard, or load a full state dict"
        )
    if not any(_wrapped(m) for m in model.modules()):
        return model
    new = _copied(model, {})
    if any(p.is_meta for p in model.parameters()):  # kept elsewhere: there, ties are two copies
        _tie(new)
    return new


def copied(model: nn.Module) -> nn.Module:
    """Modules of the same classes on the same parameters and buffers, without foreign hooks."""
    return _copied(model, {})


def _tie(new: nn.Module) -> None:
    """Parameters that were one before accelerate took them away: those of one storage, or that the model says."""
    held: dict[tuple[int, torch.Size], nn.Parameter] = {}
    for m in new.modules():
        for name, p in m._parameters.items():
            if p is not None:
                m._parameters[name] = held.setdefault((p.data_ptr(), p.shape), p)
    tie = getattr(new, "tie_weights", None)  # of transformers
    if callable(tie):
        tie()


def outline(model: nn.Module) -> nn.Module:
    """Modules of the same classes whose parameters have the shapes and ties of the model's, and no memory."""
    held: dict[int, nn.Parameter] = {}
    new = _copied(model, {})
    for m in new.modules():
        for name, p in m._parameters.items():
            if p is not None:
                if id(p) not in held:
                    held[id(p)] = nn.Parameter(torch.zeros((), dtype=p.dtype).expand(p.shape), p.requires_grad)
                m._parameters[name] = held[id(p)]
    return new


def is_sharded(model: nn.Module) -> bool:
    """Whether some parameters lie spread over ranks."""
    return any(map(_is_spread, model.parameters()))


def _is_spread(t: Tensor) -> bool:
    """Whether it is a DTensor. Where nobody has imported them yet there are none, and the import takes a while."""
    library = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(t, library.DTensor)


def here(t: Tensor) -> Tensor:
    """What this rank holds of a parameter."""
    if not _is_spread(t):
        return t.detach()
    local: Tensor = cast("Any", t.detach()).to_local()
    return local


def whole(t: Tensor) -> Tensor:
    """A parameter with all of its entries; collective where it is spread over ranks."""
    if not _is_spread(t):
        return t.detach()
    full: Tensor = cast("Any", t.detach()).full_tensor()
    return full


def _foreign(hook: Any) -> bool:
    owner = type(hook.__self__) if hasattr(hook, "__self__") else hook
    return str(getattr(owner, "__module__", "")).startswith(_FOREIGN)


def _wrapped(m: nn.Module) -> bool:
    hooks = [*m._forward_pre_hooks.values(), *m._forward_hooks.values()]
    return "_hf_hook" in m.__dict__ or isinstance(m, DistributedDataParallel) or any(map(_foreign, hooks))


def _copied(m: nn.Module, done: dict[int, nn.Module]) -> nn.Module:
    """The module and what is inside it, each once."""
    while isinstance(m, DistributedDataParallel):
        m = m.module
    if id(m) in done:
        return done[id(m)]
    new: nn.Module = object.__new__(_plain_class(m))
    done[id(m)] = new
    new.__dict__.update(m.__dict__)
    for name in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
        new.__dict__[name] = copy.copy(m.__dict__[name])
    hook = new.__dict__.pop("_hf_hook", None)
    if hook is not None:
        _fetch(new, hook)
        before = new.__dict__.pop("_old_forward", None)
        new.__dict__.pop("forward", None)
        if before is not None and getattr(before, "__self__", None) is not m:
            new.__dict__["forward"] = before  # the user's own replacement, under accelerate's
    for name in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
        hooks = m.__dict__[name]
        new.__dict__[name] = type(hooks)((k, h) for k, h in hooks.items() if not _foreign(h))
    new.__dict__["_modules"] = {n: None if c is None else _copied(c, done) for n, c in m._modules.items()}
    return new


def _plain_class(m: nn.Module) -> type[nn.Module]:
    """``fully_shard`` gives each module a class of its own with FSDPModule before the real one."""
    cls = type(m)
    if cls.__bases__ and cls.__bases__[0].__module__.startswith(_FOREIGN):
        return cls.__bases__[1]
    return cls


def _fetch(new: nn.Module, hook: Any) -> None:
    """Weights that accelerate keeps elsewhere (in memory or on disk) while a module does not run."""
    values = getattr(hook, "weights_map", None)
    if values is None:
        return
    for held in (new._parameters, new._buffers):
        for name, t in held.items():
            if t is not None and t.is_meta:
                value = values[name]
                held[name] = nn.Parameter(value, t.requires_grad) if held is new._parameters else value
