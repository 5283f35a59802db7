"""Where the units of a study run. An engine is a registered function; one for clusters is one more of them.

An engine yields what is done as it is done, in any order. It may do several checkpoints at once; what it must keep is
`perform`: the outcomes of a checkpoint do not depend on what else is done, or where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from spiritlevel.core.registry import Registry
from spiritlevel.study.plan import Plan, Work, perform
from spiritlevel.study.processes import in_processes
from spiritlevel.study.session import Session
from spiritlevel.study.together import on_ranks
from spiritlevel.study.units import Done, Task

__all__ = ["ENGINES", "Engine"]

Engine = Callable[[Plan, Session, Sequence[Task]], Iterator[Done]]
"""Plan, the data as they are loaded in this process, and what is to do: what is done, as it is done."""

ENGINES: Registry[Engine] = Registry("engine")


@ENGINES.register("serial")
def serial(plan: Plan, session: Session, tasks: Sequence[Task]) -> Iterator[Done]:
    """One checkpoint after the other, in this process."""
    before = torch.get_num_threads()
    work = Work.of(plan, session)
    try:
        torch.set_num_threads(plan.config.threads or before)
        for task in tasks:
            yield from perform(work, task)
    finally:
        torch.set_num_threads(before)


ENGINES.register("processes")(in_processes)
ENGINES.register("ranks")(on_ranks)
