"""All that the doctor found, as a page in a terminal and as plain data."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

import spiritlevel
from spiritlevel.core.display import Displayed
from spiritlevel.core.results import plain
from spiritlevel.doctor.machine import Device, Machine, devices, machine
from spiritlevel.doctor.packages import GIVES, Package, packages
from spiritlevel.doctor.self_test import Check, self_test

__all__ = ["Diagnosis", "examine"]

_STYLES = {
    "ok": "green",
    "failed": "red",
    "broken": "red",
    "out of range": "yellow",
    "missing": "dim",
    "skipped": "dim",
}
_GIB = 2**30


@dataclass(frozen=True)
class Diagnosis(Displayed):
    """What this machine can do.

    Attributes:
        versions: of spiritlevel and Python.
        machine: cores, threads, memory, folders.
        devices: that torch computes on.
        packages: needed and optional ones.
        checks: of the self-test.
    """

    versions: dict[str, str]
    machine: Machine
    devices: tuple[Device, ...]
    packages: tuple[Package, ...]
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether no check failed."""
        return all(c.state != "failed" for c in self.checks)

    @property
    def missing(self) -> dict[str, str]:
        """Extras that are not there whole, and what they would give."""
        lacking = {extra for p in self.packages if p.state != "ok" for extra in p.extras}
        return {extra: what for extra, what in GIVES.items() if extra in lacking}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "healthy": self.healthy,
            "versions": self.versions,
            "machine": plain({**asdict(self.machine), "folders": [_folder(f) for f in self.machine.folders]}),
            "devices": [plain(asdict(d)) for d in self.devices],
            "packages": [{**plain(asdict(p)), "state": p.state} for p in self.packages],
            "missing extras": self.missing,
            "self-test": [plain(asdict(c)) for c in self.checks],
        }

    def __rich__(self) -> ConsoleRenderable:
        m, versions = self.machine, ", ".join(f"{k} {v}" for k, v in self.versions.items())
        memory = "memory unknown" if m.memory is None else f"{m.memory / _GIB:.1f} GiB of memory"
        memory += "" if m.available is None else f", {m.available / _GIB:.1f} GiB available"
        lines = [Text(versions), Text(f"{m.system}, {m.cores} cores, torch takes {m.threads} threads, {memory}")]
        return Group(*lines, self._places(), self._installed(), *self._extras(), self._tested(), self._verdict())

    def _places(self) -> Table:
        table = _table("devices and folders", "what", "where", "state")
        for d in self.devices:
            own = "" if d.memory is None else f", {d.memory / _GIB:.1f} GiB"
            table.add_row(
                Text(d.name), Text(f"{d.what}{own}"), Text(", ".join(d.precisions) or "nothing works", "green")
            )
        for f in self.machine.folders:
            room = Text("" if f.free is None else f"{f.free / _GIB:.1f} GiB free", "green")
            state = room if f.error is None else Text(f"cannot be written: {f.error}", "red")
            table.add_row(Text(f.what), Text(str(f.path), overflow="fold"), state)
        return table

    def _installed(self) -> Table:
        table = _table("packages", "package", "version", "wanted", "for", "state")
        for p in self.packages:
            state = Text(p.state + (f": {p.error}" if p.error else ""), _STYLES[p.state], overflow="fold")
            extras = ", ".join(p.extras) or "everything"
            table.add_row(Text(p.name), Text(p.version or ""), Text(p.stated), Text(extras), state)
        return table

    def _extras(self) -> list[Text]:
        if not self.packages:
            return [Text("spiritlevel is not installed but run from its sources: nothing says what it needs", "yellow")]
        return [
            Text(f"pip install 'spiritlevel[{extra}]' gives: {what}", overflow="fold")
            for extra, what in self.missing.items()
        ]

    def _tested(self) -> Table:
        table = _table("self-test", "check", "seconds", "state")
        for c in self.checks:
            state = Text(f"{c.state}: {c.detail}", _STYLES[c.state], overflow="fold")
            table.add_row(Text(c.name), f"{c.seconds:.1f}", state)
        return table

    def _verdict(self) -> Text:
        if self.healthy:
            return Text("All is well.", "green")
        return Text("The self-test failed: numbers from this machine cannot be trusted.", "bold red")


def examine() -> Diagnosis:
    """Look at everything and run the self-test; nothing is installed, changed or left behind."""
    found = devices()
    return Diagnosis(
        {"spiritlevel": spiritlevel.__version__, "python": platform.python_version()},
        machine(),
        found,
        packages(),
        self_test(tuple(d.name for d in found if d.name != "cpu" and d.precisions)),
    )


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=Text(title, "bold"), title_justify="left", expand=False)


def _folder(folder: Any) -> dict[str, Any]:
    return {**asdict(folder), "path": str(folder.path)}
