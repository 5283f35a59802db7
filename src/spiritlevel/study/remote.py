"""A worker on whatever machine: it gets units one by one, and keeps the checkpoint it has at hand."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import spiritlevel
from spiritlevel.errors import EngineError, SpiritlevelError
from spiritlevel.study.ahead import GROUP, SMALL, neighbours
from spiritlevel.study.config import StudyConfig
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.node_files import NodeFiles, Parcel, Wanted
from spiritlevel.study.order import Order
from spiritlevel.study.plan import Opened, Work, perform
from spiritlevel.study.references import is_reference
from spiritlevel.study.units import Done, Task

__all__ = ["Ready", "RemoteWorker", "Sent", "data_files", "versions"]

Sent = Mapping[str, Parcel]
_SMALL_FILES = 16 * SMALL  # bytes: float64 weights of a network that is measured with its neighbours, and their names


@dataclass(frozen=True)
class Ready:
    """What a worker says of itself when it can begin.

    Attributes:
        columns: settings hash of each column by its name, as computed there.
        versions: of what the numbers depend on.
        node: its name.
        process: its number.
    """

    columns: Mapping[str, str]
    versions: Mapping[str, str]
    node: str
    process: int


def versions() -> dict[str, str]:
    """What must be the same on every node."""
    return {"spiritlevel": spiritlevel.__version__, "torch": torch.__version__.partition("+")[0]}


def data_files(config: StudyConfig) -> dict[str, Path]:
    """The data that are files, by the key of their setting."""
    given = {("train",): config.data.train} | {("tests", n): s for n, s in config.data.tests.items()}
    return {
        ".".join(key): config.folder / source
        for key, source in given.items()
        if isinstance(source, Path) or (isinstance(source, str) and not is_reference(source))
    }


class RemoteWorker:
    """Errors that stop the study are answers here, since other machines wrap what is raised on them.

    Args:
        order: the plan, packed.
        stamps: by path, what the files are where the study was started.
        process: a number of this process, for people.
    """

    def __init__(self, order: Order, stamps: Mapping[str, str], process: int) -> None:
        self._plan, self._process = order.opened(), process
        ray = self._plan.config.ray
        self._files = NodeFiles(stamps, ray.files == "sent", None if ray.cache is None else str(ray.cache))
        self._zoo: dict[str, Checkpoint] = dict(self._plan.zoo)
        self._work: Work | None = None
        self._opened: Opened | None = None

    def begin(self) -> None:
        """Answers as soon as the process is there."""

    def prepare(self, sent: Sent) -> Ready | Wanted | SpiritlevelError:
        """Load the data."""
        try:
            self._receive(sent)
            config, files = self._plan.config, data_files(self._plan.config)
            wanted = self._files.missing(map(str, files.values()))
            if wanted is not None:
                return wanted
            plan = replace(self._plan, config=self._with_data(config, files), zoo=self._zoo)
            work = self._work = Work.of(plan, plan.open())
        except SpiritlevelError as error:
            return _alone(error)
        columns = {c.name: c.key for job in work.jobs for c in job.columns}
        return Ready(columns, versions(), platform.node(), self._process)

    def perform(self, task: Task, sent: Sent) -> Sequence[Done] | Wanted | SpiritlevelError:
        """Do units of one checkpoint; the next units of the same one find it loaded."""
        assert self._work is not None
        try:
            self._receive(sent)
        except SpiritlevelError as error:
            return _alone(error)
        if self._opened is None or self._opened.name != task.checkpoint:
            self._opened = None  # let go of its memory first
            wanted = self._fetched(task.checkpoint)
            if wanted is not None:
                return wanted
            self._opened = Opened.of(self._work, task.checkpoint)
        return list(perform(self._work, task, self._opened))

    def _receive(self, sent: Sent) -> None:
        for path, parcel in sent.items():
            self._files.keep(path, parcel)

    def _fetched(self, name: str) -> Wanted | None:
        """Point a checkpoint, and the neighbours it may be measured with, at files of this node."""
        order = list(self._plan.zoo)
        names = [name]
        if self._size(name) <= _SMALL_FILES:
            names += neighbours(order, order.index(name) // GROUP)
        sources = {n: str(s) for n in names if isinstance(s := self._plan.zoo[n].source, Path)}
        wanted = self._files.missing(dict.fromkeys(sources.values()))
        if wanted is None:
            for n, source in sources.items():
                self._zoo[n] = replace(self._zoo[n], source=self._files.here(source) or Path(source))
        return wanted

    def _size(self, name: str) -> int:
        stamp = self._files.stamp(str(self._plan.zoo[name].source))
        return sum(int(part.rsplit(":", 2)[1]) for part in stamp.splitlines())

    def _with_data(self, config: StudyConfig, files: Mapping[str, Path]) -> StudyConfig:
        here: dict[str, Any] = {key: self._files.here(str(path)) for key, path in files.items()}
        tests = {n: here.get(f"tests.{n}", source) for n, source in config.data.tests.items()}
        data = config.data.model_copy(update={"train": here.get("train", config.data.train), "tests": tests})
        return config.model_copy(update={"data": data})


def _alone(error: SpiritlevelError) -> SpiritlevelError:
    """The error without what it came from, which may not travel; a copy of the same kind."""
    try:
        return type(error)(str(error))
    except TypeError:
        return EngineError(str(error))
