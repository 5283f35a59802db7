"""A study whose checkpoints are too large for one process: torchrun starts several, and all measure each checkpoint.

The first rank alone plans, opens the store and writes; the others are told which checkpoint is next. So a rank that is
killed, whichever it is and whenever, leaves the store as it was after the last unit, and the next run goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spiritlevel.core.ranks import Crew
from spiritlevel.errors import ArgumentError, SpiritlevelError
from spiritlevel.study.plan import Plan, Work, perform
from spiritlevel.study.session import Session
from spiritlevel.study.table import StudyTable
from spiritlevel.study.units import Done, Task

__all__ = ["PATIENCE", "follow", "on_ranks"]

PATIENCE = (
    86400.0  # seconds: the first rank may choose radii and read files meanwhile; one that is gone is seen at once
)


def on_ranks(plan: Plan, session: Session, tasks: Sequence[Task]) -> Iterator[Done]:
    """One checkpoint after the other, each by all ranks together."""
    if session.crew is None:
        raise ArgumentError(
            "expected engine 'ranks' under torchrun, got a single process: start with torchrun --nproc-per-node N -m "
            "spiritlevel study run ..., or take engine 'processes'"
        )
    try:
        session.crew.from_one("the plan of a study", plan)
        session.shared = True
        work = Work.of(plan, session)
        for task in tasks:
            session.crew.from_one("the next checkpoint", task)
            yield from perform(work, task)
        session.crew.from_one("the next checkpoint", None)
    except BaseException:
        session.crew.tell_failure()
        raise


def follow(crew: Crew) -> StudyTable:
    """What every rank but the first does: measure along, and take the table in the end."""
    try:
        plan: Plan = crew.from_one("the plan of a study", None)
        session = plan.open()
        session.crew, session.shared = crew, True
        work = Work.of(plan, session)
        while (task := crew.from_one("the next checkpoint", None)) is not None:
            for _ in perform(work, task):
                pass
        table: StudyTable = crew.from_one("the table of a study", None)
    except SpiritlevelError:
        crew.tell_failure()
        raise
    return table
