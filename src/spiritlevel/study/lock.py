"""One study at a time writes into a store; a lock that a killed process cannot leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spiritlevel.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows: two runs at once do everything twice, but break nothing
    fcntl = None  # type: ignore[assignment]

__all__ = ["only_writer"]


@contextmanager
def only_writer(store: Path) -> Iterator[None]:
    """Hold the lock of a store, or say that another process has it. The system lets go of it when we are killed."""
    if fcntl is None or str(store) == ":memory:":
        yield
        return
    path = store.with_name(store.name + ".lock")
    held = _taken(path, store)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(held)


def _taken(path: Path, store: Path) -> int:
    while True:
        try:
            held = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise StoreError(
                f"expected a folder to write the store {store} in, but {error.strerror or error}: name another store"
            ) from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(held)
            raise StoreError(
                f"expected to write the store {store} alone, but another run is at it: wait for its end, or name "
                "another store"
            ) from error
        with suppress(OSError):
            if os.fstat(held).st_ino == path.stat().st_ino:
                return held
        os.close(held)  # its last owner removed the file in between
