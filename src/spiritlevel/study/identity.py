"""What a function or a loss is, in words that change when it does: a part of what fixes a number."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["identity"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def identity(what: str | Callable[..., Any] | None) -> str | None:
    """The name of a function with a hash of its code and of the plain values it holds; a reference is its own.

    Where a function holds something else (a model, an array) only its kind is known: name such a function
    ``package.module:function`` and give it another name when it changes.

    >>> identity("losses:focal"), identity(lambda x: x) == identity(lambda x: 2 * x)
    ('losses:focal', False)
    """
    if what is None or isinstance(what, str):
        return what
    digest = hashlib.sha256(repr(_parts(what)).encode("utf-8", "backslashreplace")).hexdigest()[:12]
    kind = what if hasattr(what, "__qualname__") else type(what)
    return f"{kind.__module__}:{kind.__qualname__}#{digest}"


def _parts(what: Any) -> Any:
    """Plain values and hashes that tell one from another."""
    if isinstance(what, _PLAIN):
        return what
    if isinstance(what, tuple | list):
        return [_parts(v) for v in what]
    if isinstance(what, dict):
        return [(str(k), _parts(v)) for k, v in what.items()]
    if isinstance(what, torch.Tensor):
        return hashlib.sha256(
            what.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        ).hexdigest()
    if isinstance(what, functools.partial):
        return [_parts(what.func), _parts(what.args), _parts(what.keywords)]
    if isinstance(what, nn.Module):
        own = {k: v for k, v in vars(what).items() if not k.startswith("_") and isinstance(v, (*_PLAIN, tuple))}
        return [type(what).__qualname__, _parts(own), _parts(dict(what.state_dict(keep_vars=True)))]
    if inspect.ismethod(what):
        return [_parts(what.__func__), _parts(what.__self__)]
    if inspect.isfunction(what):
        held = [_held(c) for c in what.__closure__ or ()]
        return [_code(what.__code__), _parts(what.__defaults__), _parts(what.__kwdefaults__), held]
    return f"{type(what).__module__}:{getattr(what, '__qualname__', type(what).__qualname__)}"


def _held(cell: Any) -> Any:
    try:
        return _parts(cell.cell_contents)
    except ValueError:  # not filled yet
        return None


def _code(code: Any) -> Any:
    """Byte code and constants, without line numbers and places."""
    constants = [_code(c) if inspect.iscode(c) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, code.co_names]
