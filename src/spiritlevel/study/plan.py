"""What a study will do, as one object that can be sent to another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spiritlevel.study.config import StudyConfig
from spiritlevel.study.jobs import Job, jobs_of
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.session import Session
from spiritlevel.study.units import Done, Outcome, Task

__all__ = ["Plan", "perform"]


@dataclass(frozen=True)
class Plan:
    """The work and what fixes it.

    Attributes:
        config: of the study.
        zoo: the checkpoints by name, in order.
        radii: of each measure by name.
        architecture: a hash of the parameters' shapes that all checkpoints must share, and which one has it; None where
            they need not.
    """

    config: StudyConfig
    zoo: Mapping[str, Checkpoint]
    radii: Mapping[str, tuple[float, ...]]
    architecture: tuple[str, str] | None = None

    def open(self) -> Session:
        """Load what a process needs."""
        return Session(self.config)

    def jobs(self, session: Session) -> tuple[Job, ...]:
        """What is done with each checkpoint."""
        return jobs_of(session, self.radii)


def perform(plan: Plan, session: Session, jobs: tuple[Job, ...], task: Task) -> Iterator[Done]:
    """Do what is wanted of one checkpoint, job by job; whatever fails is an outcome, never an exception."""
    checkpoint = plan.zoo[task.checkpoint]
    digest = checkpoint.digest()
    try:
        bench = session.load(checkpoint)
        bench.check(plan.architecture)
    except Exception as error:  # a file may be missing, damaged or of another kind; a builder may do anything
        failed = Outcome.failed(error)
        yield Done(checkpoint.name, digest, dict.fromkeys(sorted(task.keys), failed))
        return
    for job in jobs:
        wanted = {c.key for c in job.columns} & task.keys
        if wanted:
            yield Done(checkpoint.name, digest, dict(job.outcomes(bench, wanted)))
