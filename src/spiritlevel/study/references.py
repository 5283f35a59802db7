"""``package.module:function``: the one way in which a setting names code to run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spiritlevel.errors import ArgumentError

__all__ = ["is_reference", "load_function"]


def is_reference(text: str) -> bool:
    """Whether a string looks like ``package.module:function``.

    >>> is_reference("data.loaders:train"), is_reference("train.npz")
    (True, False)
    """
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def load_function(reference: str) -> Callable[..., Any]:
    """Import a function by name. This runs the module: name only code you trust.

    The current folder is searched too, as with ``python -m``.
    """
    if not is_reference(reference):
        raise ArgumentError(f"expected package.module:function, got {reference!r}")
    module_name, _, name = reference.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ArgumentError(f"expected an importable module {module_name!r} (searched {here} too): {error}") from error
    finally:
        sys.path.remove(here)
    function = getattr(module, name, None)
    if not callable(function):
        raise ArgumentError(f"expected a function {name!r} in module {module_name!r}, got {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # callable() has just said so
