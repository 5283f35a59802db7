"""Devices and what they compute in, cores and threads, memory, and folders that can be written."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from spiritlevel.study.order import cores_here

__all__ = ["Device", "Folder", "Machine", "devices", "machine"]

_PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Device:
    """Something that torch computes on.

    Attributes:
        name: as ``--device`` takes it.
        what: the maker's name.
        memory: bytes of its own; None where it shares the machine's.
        precisions: in which a gradient of a matrix product came out.
    """

    name: str
    what: str
    memory: int | None
    precisions: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A place that is written to.

    Attributes:
        what: for.
        path: where.
        free: bytes.
        error: why it cannot be written; None where it can.
    """

    what: str
    path: Path
    free: int | None
    error: str | None


@dataclass(frozen=True)
class Machine:
    """The machine apart from its devices.

    Attributes:
        system: name and version.
        cores: that this process may use.
        threads: that torch uses.
        memory: bytes in all; None where the system does not say.
        available: of them, for a new program.
        folders: that are written to.
    """

    system: str
    cores: int
    threads: int
    memory: int | None
    available: int | None
    folders: tuple[Folder, ...]


def devices() -> tuple[Device, ...]:
    """All that torch can use here, tried."""
    found = [Device("cpu", platform.processor() or platform.machine(), None, _precisions("cpu"))]
    try:
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            properties = torch.cuda.get_device_properties(i)
            found.append(Device(f"cuda:{i}", properties.name, properties.total_memory, _precisions(f"cuda:{i}")))
        if torch.backends.mps.is_available():
            found.append(Device("mps", "Apple GPU", None, _precisions("mps")))
    except Exception:  # a driver that does not fit torch; the self-test runs without
        return tuple(found)
    return tuple(found)


def _precisions(device: str) -> tuple[str, ...]:
    works = []
    for dtype in _PRECISIONS:
        try:
            x = torch.ones(2, 2, device=device, dtype=dtype, requires_grad=True)
            (x @ x).sum().backward()
            right = x.grad is not None and bool((x.grad.double().cpu() == 4).all())
        except Exception:  # each backend has its own way to say no
            continue
        if right:
            works.append(str(dtype).removeprefix("torch."))
    return tuple(works)


def machine() -> Machine:
    """As it is now."""
    total, available = _memory()
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "spiritlevel"
    folders = (
        _folder("stores and reports", Path.cwd()),
        _folder("the demonstration's cache", cache),
        _folder("temporary files", Path(tempfile.gettempdir())),
    )
    return Machine(
        f"{platform.system()} {platform.release()} on {platform.machine()}",
        cores_here(),
        torch.get_num_threads(),
        total,
        available,
        folders,
    )


def _memory() -> tuple[int | None, int | None]:
    """Bytes in all, and those that are to be had."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None, None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return total, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return total, None


def _folder(what: str, path: Path) -> Folder:
    """Tried by a file in it, or in the folder above that it would be made in."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
        return Folder(what, path, shutil.disk_usage(there).free, None)
    except OSError as error:
        return Folder(what, path, None, str(error.strerror or error))
