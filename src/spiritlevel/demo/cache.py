"""Where the demonstration keeps what took minutes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from spiritlevel.demo.recipes import Recipe
from spiritlevel.demo.training import Settings
from spiritlevel.errors import ArgumentError

__all__ = ["cache_folder", "cache_home", "prepared"]

_FORMAT = 1  # counted up when data or training change in a way that the settings do not show


def cache_home() -> Path:
    """The user's cache: ``$XDG_CACHE_HOME`` where it is set to an absolute path, else ``~/.cache``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if Path(given).is_absolute() else Path.home() / ".cache"


def cache_folder(recipes: Sequence[Recipe], settings: Settings) -> Path:
    """A folder of its own for everything that fixes the networks: recipes, settings, library versions.

    Measurements need no key here: in the store each has that of its own settings.
    """
    packages = {p: version(p) for p in ("torch", "transformers", "scikit-learn", "scipy")}
    content = [_FORMAT, [r.to_dict() for r in recipes], settings.to_dict(), packages]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return cache_home() / "spiritlevel" / f"demo-{key}"


def prepared(folder: Path, fresh: bool) -> Path:
    """The folder, there and writable; empty if ``fresh``."""
    try:
        if fresh and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"no right to write in {folder}")
    except OSError as error:
        raise ArgumentError(
            f"expected a folder to keep networks and numbers in, but {folder} cannot be made or written: {error}. Set "
            "XDG_CACHE_HOME to a folder of yours"
        ) from error
    return folder
