"""Which unit goes to which worker: by checkpoint, so that it is loaded once, while there are checkpoints for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spiritlevel.study.ahead import GROUP
from spiritlevel.study.jobs import Job
from spiritlevel.study.units import Done, Outcome, Task

__all__ = ["Deal", "Unit", "given_up"]


@dataclass(frozen=True)
class Unit:
    """What one worker does in one go: columns of a checkpoint that one pass makes together.

    Attributes:
        task: the checkpoint and the settings hashes.
        columns: their names, for people.
    """

    task: Task
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.task.checkpoint}: {self.columns[0].partition('.')[2]}"


class Deal:
    """All units that are to be done; each is in one hand at a time, and comes back when its worker is lost.

    Args:
        tasks: what is to do, by checkpoint in the order of the zoo.
        jobs: what is done with each checkpoint.
        zoo: the position of every checkpoint.
        retries: how often a unit is handed out again.
    """

    def __init__(self, tasks: Sequence[Task], jobs: Sequence[Job], zoo: Mapping[str, int], retries: int) -> None:
        self._left = {t.checkpoint: units for t in tasks if (units := _units(t, jobs))}
        self._zoo, self._retries, self._count = zoo, retries, sum(map(len, self._left.values()))
        self._lost: Counter[Unit] = Counter()
        self._began: set[str] = set()  # in somebody's hands, or partly done
        self._groups: set[int] = set()  # theirs, in the zoo
        self._came: set[str] = set()  # of which something came back

    def __len__(self) -> int:
        """Units in nobody's hands."""
        return self._count

    def next(self, before: str | None) -> Unit | None:
        """The unit for a worker that had this checkpoint before; None when none is left.

        Its own checkpoint first, then a new one, near the own in the zoo where small networks are measured together,
        and then the last unit of the one that has most left.
        """
        if before not in self._left:
            fresh = [name for name in self._left if name not in self._began]
            if fresh:
                before = min(fresh, key=lambda name: self._strange(name, before))
            elif self._left:
                return self._taken(max(self._left, key=lambda name: len(self._left[name])), -1)
            else:
                return None
        assert before is not None
        return self._taken(before, 0)

    def _strange(self, name: str, before: str | None) -> tuple[int, int]:
        """How little a checkpoint has to do with what a worker did so far; all but its own group begin far apart."""
        group = self._zoo[name] // GROUP
        own = before is not None and self._zoo[before] // GROUP == group
        return (0 if own else 2 if group in self._groups else 1), self._zoo[name]

    def _taken(self, name: str, at: int) -> Unit:
        units = self._left[name]
        unit = units.pop(at)
        self._count -= 1
        if not units:
            del self._left[name]
        self._began.add(name)
        self._groups.add(self._zoo[name] // GROUP)
        return unit

    def done(self, unit: Unit) -> None:
        """It came back."""
        self._came.add(unit.task.checkpoint)

    def lost(self, unit: Unit) -> Task | None:
        """Its worker is lost: it is handed out again, or given up. Returns what is given up.

        Where a unit is given up and nothing ever came of its checkpoint, all of the checkpoint is: loading it kills.
        """
        name = unit.task.checkpoint
        self._lost[unit] += 1
        if self._lost[unit] <= self._retries:
            self._left.setdefault(name, []).insert(0, unit)
            self._count += 1
            self._began.discard(name)  # whoever is free begins it anew, with this unit
            return None
        rest = [] if name in self._came else self._left.pop(name, [])
        self._count -= len(rest)
        return Task(name, unit.task.keys.union(*(u.task.keys for u in rest)))


def given_up(task: Task, digest: str, losses: int, why: str) -> Done:
    """The outcomes of units that no worker survived."""
    failed = Outcome.failed(
        f"expected the worker to end its work, but {losses} workers were lost at it, the last one because {why}: if "
        "that is for want of memory, set ray.memory, a smaller batches.micro or fewer workers; then run the study "
        "again with --retry-failed"
    )
    return Done(task.checkpoint, digest, dict.fromkeys(sorted(task.keys), failed))


def _units(task: Task, jobs: Sequence[Job]) -> list[Unit]:
    found = []
    for job in jobs:
        wanted = [c for c in job.columns if c.key in task.keys]
        if wanted:
            found.append(Unit(Task(task.checkpoint, frozenset(c.key for c in wanted)), tuple(c.name for c in wanted)))
    return found
