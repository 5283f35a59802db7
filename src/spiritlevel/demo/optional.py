"""Packages that only the demonstration needs."""

from __future__ import annotations

import importlib
from typing import Any

from spiritlevel.errors import MissingDependencyError

__all__ = ["optional"]


def optional(module: str) -> Any:
    """A module of an optional package, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.partition(".")[0], module)
        raise MissingDependencyError(
            f"expected the package {package!r} for the demonstration: pip install 'spiritlevel[demo]'"
        ) from error
