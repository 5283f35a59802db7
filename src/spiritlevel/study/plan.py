"""What a study will do, as one object that can be sent to another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spiritlevel.errors import RanksError
from spiritlevel.study.ahead import Ahead
from spiritlevel.study.config import StudyConfig
from spiritlevel.study.jobs import Job, jobs_of
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.session import Session
from spiritlevel.study.units import Done, Outcome, Task

__all__ = ["Plan", "Work", "perform"]


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


@dataclass(frozen=True)
class Work:
    """What a process has at hand: a plan, the data, what is to do with each checkpoint, and what is known ahead."""

    plan: Plan
    session: Session
    jobs: tuple[Job, ...]
    ahead: Ahead

    @classmethod
    def of(cls, plan: Plan, session: Session) -> Work:
        """Ready to `perform`."""
        jobs = plan.jobs(session)
        measures = [ladder for job in jobs if (ladder := job.ladder()) is not None]
        return cls(plan, session, jobs, Ahead(session, plan.zoo, plan.architecture, measures))


def perform(work: Work, task: Task) -> Iterator[Done]:
    """Do what is wanted of one checkpoint, job by job; whatever fails is an outcome, never an exception."""
    plan, session = work.plan, work.session
    checkpoint = plan.zoo[task.checkpoint]
    digest = checkpoint.digest()
    try:
        bench = session.load(checkpoint)
        bench.check(plan.architecture)
        known = work.ahead.of(checkpoint.name, digest, bench)
        if known is not None:
            bench.know(known.scores, known.measured)
    except RanksError:
        raise
    except Exception as error:  # a file may be missing, damaged or of another kind; a builder may do anything
        failed = Outcome.failed(error)
        yield Done(checkpoint.name, digest, dict.fromkeys(sorted(task.keys), failed))
        return
    for job in work.jobs:
        wanted = {c.key for c in job.columns} & task.keys
        if wanted:
            yield Done(checkpoint.name, digest, dict(job.outcomes(bench, wanted)))
