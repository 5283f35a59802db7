"""Where the data of the real zoos lie, and how much of them is taken."""

from __future__ import annotations

import os
from pathlib import Path

from spiritlevel.errors import ArgumentError, DataError

__all__ = ["at", "most"]


def at(*parts: str) -> Path:
    """A file or folder below ``$SPIRITLEVEL_DATA``, which must be there.

    Raises:
        DataError: where nothing is.
    """
    path = Path(os.environ.get("SPIRITLEVEL_DATA") or "data").joinpath(*parts)
    if not path.exists():
        raise DataError(
            f"expected {'/'.join(parts)} of the data folder, got nothing at {path.absolute()}: set SPIRITLEVEL_DATA, "
            "and see docs/recipes/real_zoos.md for how to get it"
        )
    return path


def most(default: int | None = None) -> int | None:
    """How many examples of each set at most: ``$SPIRITLEVEL_EXAMPLES``, else the default; None for all.

    Raises:
        ArgumentError: where that is no whole number from 1 on.
    """
    given = os.environ.get("SPIRITLEVEL_EXAMPLES", "")
    if not given:
        return default
    if not given.isdigit() or int(given) < 1:
        raise ArgumentError(f"expected SPIRITLEVEL_EXAMPLES to be a whole number from 1 on, got {given!r}")
    return int(given) if default is None else min(default, int(given))
