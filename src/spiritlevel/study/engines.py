"""Where the units of a study run. An engine is a registered function; one for clusters is one more of them.

An engine yields what is done as it is done, in any order. It may do several checkpoints at once; what it must keep is
`perform`: the outcomes of a checkpoint do not depend on what else is done, or where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from spiritlevel.core.registry import Registry
from spiritlevel.errors import ConfigError
from spiritlevel.study.config import StudyConfig
from spiritlevel.study.in_ray import in_ray
from spiritlevel.study.plan import Plan, Work, perform
from spiritlevel.study.processes import in_processes
from spiritlevel.study.ray_cluster import check_ray
from spiritlevel.study.session import Session, usable
from spiritlevel.study.together import on_ranks
from spiritlevel.study.units import Done, Task

__all__ = ["ENGINES", "Engine", "checked"]

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
ENGINES.register("ray")(in_ray)
ENGINES.register("ranks")(on_ranks)

_CHECKS: dict[str, Callable[[StudyConfig], None]] = {"ray": check_ray}
"""What can be wrong with an engine before anything is loaded."""

_ELSEWHERE = frozenset({"ray"})
"""Engines that need the study's device on other machines only."""


def checked(config: StudyConfig, name: str) -> str | None:
    """Refuse an engine that is not there.

    Returns:
        The device on which this process plans the study, where it lacks the study's own and does not need it.
    """
    if name not in ENGINES:
        raise ConfigError(f"{config.at('engine')}: expected an engine out of {', '.join(ENGINES)}; got {name!r}")
    if name in _CHECKS:
        _CHECKS[name](config)
    return "cpu" if name in _ELSEWHERE and not usable(config.device) else None
