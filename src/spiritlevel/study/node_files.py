"""Files of a study on another machine: read where they are, or sent once to each node and kept there."""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spiritlevel.errors import EngineError

__all__ = ["NodeFiles", "Parcel", "Wanted", "packed", "stamp_of"]

_KEPT = (".json", ".safetensors", ".pt", ".pth", ".bin")  # of a folder: what models are loaded from

Parcel = Mapping[str, bytes]
"""The content of a file, or of the files in a folder, by name."""


@dataclass(frozen=True)
class Wanted:
    """A worker's answer that it cannot go on without these.

    Attributes:
        paths: as the configuration names them.
    """

    paths: tuple[str, ...]


def stamp_of(path: Path) -> str:
    """Sizes and times of a file, or of the files in a folder; empty where there is nothing.

    >>> stamp_of(Path("nowhere"))
    ''
    """
    try:
        stats = [(p.name, p.stat()) for p in _files(path)]
    except OSError:
        return ""
    return "\n".join(f"{name}:{s.st_size}:{s.st_mtime_ns}" for name, s in stats)


def packed(path: Path) -> Parcel:
    """What is sent for a path."""
    try:
        return {p.name: p.read_bytes() for p in _files(path)}
    except OSError as error:
        raise EngineError(
            f"expected to send {path} to a node that does not have it, but it cannot be read here: {error}"
        ) from error


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.suffix in _KEPT)
    return [path] if path.exists() else []


class NodeFiles:
    """What a node has of the files it needs.

    Args:
        stamps: by path, what the files are where the study was started.
        sent: never read a path as it is.
        cache: the folder for what was sent; None for one in the temporary folder.
    """

    def __init__(self, stamps: Mapping[str, str], sent: bool, cache: str | None) -> None:
        self._stamps, self._sent = stamps, sent
        self._folder = Path(cache) if cache else Path(tempfile.gettempdir()) / f"spiritlevel-files-{getpass.getuser()}"

    def stamp(self, path: str) -> str:
        """Of a path where the study was started."""
        return self._stamps.get(path, "")

    def here(self, path: str) -> Path | None:
        """Where it can be read; None where its content is wanted."""
        stamp = self.stamp(path)
        if not stamp:  # not there where the study was started either: whoever opens it says so
            return Path(path)
        if not self._sent and stamp_of(Path(path)) == stamp:
            return Path(path)
        kept = self._kept(path)
        return kept if kept.exists() else None

    def keep(self, path: str, parcel: Parcel) -> None:
        """Write what was sent, whole or not at all; several workers of a node may do so at once."""
        kept = self._kept(path)
        if kept.exists():
            return
        folder = kept.parent
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
            inside = fresh / kept.name if _is_folder(path, parcel) else fresh
            inside.mkdir(exist_ok=True)
            for name, content in parcel.items():
                (inside / name).write_bytes(content)
            try:
                os.rename(fresh, folder)
            except OSError:  # another worker was first
                shutil.rmtree(fresh, ignore_errors=True)
                if not kept.exists():
                    raise
        except OSError as error:
            raise EngineError(
                f"expected a folder for files that are sent to a node, but {self._folder} cannot be written: {error}; "
                "set ray.cache to another, or put the files where every node finds them"
            ) from error

    def missing(self, paths: Iterable[str]) -> Wanted | None:
        """What must be sent before these can be read."""
        wanted = tuple(p for p in paths if self.here(p) is None)
        return Wanted(wanted) if wanted else None

    def _kept(self, path: str) -> Path:
        """Files of another path, size or time are other files."""
        key = hashlib.sha256(f"{path}\n{self._stamps[path]}".encode()).hexdigest()[:20]
        return self._folder / key / Path(path).name


def _is_folder(path: str, parcel: Parcel) -> bool:
    return set(parcel) != {Path(path).name}
