"""What a study will do, as one object that can be sent to another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spiritlevel.errors import RanksError
from spiritlevel.study.ahead import Ahead
from spiritlevel.study.config import StudyConfig
from spiritlevel.study.jobs import Job, jobs_of
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.session import Bench, Session
from spiritlevel.study.units import Done, Outcome, Task

__all__ = ["Opened", "Plan", "Work", "perform"]


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


@dataclass(frozen=True)
class Opened:
    """A checkpoint at hand, or why it is not.

    Attributes:
        name: of the checkpoint.
        digest: of its files.
        bench: the network with its data; None where it cannot be measured.
        error: why not.
    """

    name: str
    digest: str
    bench: Bench | None = None
    error: Exception | None = None

    @classmethod
    def of(cls, work: Work, name: str) -> Opened:
        """Load it; whatever fails is kept, never raised."""
        checkpoint = work.plan.zoo[name]
        digest = checkpoint.digest()
        try:
            bench = work.session.load(checkpoint)
            bench.check(work.plan.architecture)
            known = work.ahead.of(name, digest, bench)
            if known is not None:
                bench.know(known.scores, known.measured)
        except RanksError:
            raise
        except Exception as error:  # a file may be missing, damaged or of another kind; a builder may do anything
            return cls(name, digest, error=error)
        return cls(name, digest, bench)


def perform(work: Work, task: Task, opened: Opened | None = None) -> Iterator[Done]:
    """Do what is wanted of one checkpoint, job by job; whatever fails is an outcome, never an exception.

    Args:
        work: what this process has at hand.
        task: the checkpoint, and which of its units.
        opened: the checkpoint, where it is at hand already.
    """
    at = opened or Opened.of(work, task.checkpoint)
    if at.bench is None:
        failed = Outcome.failed(at.error or "")
        yield Done(at.name, at.digest, dict.fromkeys(sorted(task.keys), failed))
        return
    for job in work.jobs:
        wanted = {c.key for c in job.columns} & task.keys
        if wanted:
            yield Done(at.name, at.digest, dict(job.outcomes(at.bench, wanted)))
