"""The log of a monitor: one JSON object a line, added to and never rewritten, so that it can be read meanwhile.

A line is one write, so a process that is killed leaves all lines but perhaps the last whole; readers leave out a line
that is not whole, and the next writer begins a new one after it. A run that goes on from a checkpoint adds to the same
file: what an earlier process logged beyond that step belongs to steps that were trained anew, and readers leave it out
(it stays in the file).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spiritlevel.core.results import plain
from spiritlevel.errors import DataError, StoreError

__all__ = ["LogWriter", "Reading", "RunLog", "read_log"]

_FORMAT = 1


@dataclass(frozen=True)
class Reading:
    """What was measured after one training step.

    Attributes:
        step: of training.
        values: by curve; what failed is not here.
        states: how each measurement ended (`Status`).
        failures: why a measure gave nothing, in the words of its error.
        seconds: the reading took.
        share: of training time that all readings so far took.
        training: seconds spent training until then, readings taken out, in this process.
        facts: what the training loop said of itself (learning rate, epoch, ...).
        details: all of each measurement, as plain data.
        time: seconds since 1970.
    """

    step: int
    values: Mapping[str, float]
    states: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    share: float = 0.0
    training: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {k: plain(v) for k, v in self.__dict__.items()}


@dataclass(frozen=True)
class RunLog:
    """A log as it stands.

    Attributes:
        path: of the file.
        readings: in the order of steps, those that belong to the network there is.
        starts: what each process said when it began: step, settings, versions.
        notes: step and words.
        ended: whether the last process came to its end.
        dropped: readings left out because their steps were trained anew.
        damaged: lines left out because they are not whole.
    """

    path: Path
    readings: tuple[Reading, ...] = ()
    starts: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[tuple[int, str], ...] = ()
    ended: bool = False
    dropped: int = 0
    damaged: int = 0

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Steps and values of every curve, the loss first."""
        names = dict.fromkeys(n for r in self.readings for n in r.values)
        return {n: [(r.step, r.values[n]) for r in self.readings if n in r.values] for n in names}

    @property
    def failures(self) -> list[tuple[int, str, str]]:
        """Step, measure and reason of everything that failed."""
        return [(r.step, name, why) for r in self.readings for name, why in r.failures.items()]


class LogWriter:
    """Adds to a log. Each line is in the hands of the system before the call returns.

    Args:
        path: of the file; it is made where it is missing, with its folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _check_ours(self.path)
            self._write("\n" if self.path.exists() and _torn(self.path) else "")
        except OSError as error:
            raise StoreError(f"expected a log that can be written at {path}, but {error}: name another file") from error

    def start(self, step: int, settings: Mapping[str, Any]) -> None:
        """A process begins, after so many steps of training."""
        self._line("start", {"format": _FORMAT, "step": step, "time": time.time(), **settings})

    def reading(self, reading: Reading) -> None:
        """Something was measured."""
        self._line("reading", reading.to_dict())

    def note(self, step: int, text: str) -> None:
        """Something was said."""
        self._line("note", {"step": step, "text": text})

    def end(self, step: int) -> None:
        """Training came to its end."""
        self._line("end", {"step": step, "time": time.time()})

    def _line(self, kind: str, content: Mapping[str, Any]) -> None:
        self._write(json.dumps({"kind": kind, **plain(content)}, allow_nan=False) + "\n")

    def _write(self, text: str) -> None:
        with self.path.open("ab", buffering=0) as file:  # one write, and nothing left open between readings
            file.write(text.encode())


def _check_ours(path: Path) -> None:
    """Refuse to add to a file that is something else."""
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            first = file.readline(1 << 20)
        if b'"kind"' not in first:
            raise StoreError(f"expected a new file or a monitor's log, but {path} holds something else: name another")


def _torn(path: Path) -> bool:
    """Whether the last line has no end."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def read_log(path: str | Path) -> RunLog:
    """A log as it stands now; a process may be writing to it."""
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"expected a monitor's log at {path}, but it cannot be read: {error}") from error
    found = _Lines()
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            found.add(content.pop("kind"), content)
        except (ValueError, KeyError, TypeError, AttributeError):
            found.damaged += i < len(lines) - 1  # the last may be being written
    if not found.whole:
        raise DataError(
            f"expected a monitor's log (a JSON object a line, the first of kind 'start'), got no such line in {path}"
        )
    return RunLog(
        path, tuple(found.readings), tuple(found.starts), tuple(found.notes), found.ended, found.dropped, found.damaged
    )


class _Lines:
    """What the lines so far say."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.starts: list[dict[str, Any]] = []
        self.notes: list[tuple[int, str]] = []
        self.ended, self.dropped, self.damaged, self.whole = False, 0, 0, 0

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """One more line."""
        if kind == "start":
            step, before = int(content["step"]), len(self.readings)
            self.readings = [r for r in self.readings if r.step <= step]
            self.notes = [n for n in self.notes if n[0] <= step]
            self.dropped += before - len(self.readings)
            self.starts.append(content)
            self.ended = False
        elif kind == "reading":
            values = {n: float(v) for n, v in content.pop("values").items()}
            fields = {k: content[k] for k in Reading.__dataclass_fields__ if k in content}
            reading = Reading(values={n: v for n, v in values.items() if math.isfinite(v)}, **fields)
            if self.readings and self.readings[-1].step == reading.step:
                self.readings.pop()
            self.readings.append(reading)
        elif kind == "note":
            self.notes.append((int(content["step"]), str(content["text"])))
        elif kind == "end":
            self.ended = True
        self.whole += 1
