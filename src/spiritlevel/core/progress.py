"""A progress bar that stays away from short work and from anything that is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spiritlevel.core.launched import speaks

__all__ = ["Advance", "progress"]

_DELAY = 2.0  # seconds before anything is drawn
_inside: ContextVar[bool] = ContextVar("inside another bar", default=False)


class Advance(Protocol):
    """Called after each step, with a few words on how it went."""

    def __call__(self, note: str = "", steps: int = 1) -> None:
        """So many steps are done."""


@contextmanager
def progress(what: str, steps: int | None, show: bool | None = None) -> Iterator[Advance]:
    """Show how far ``what`` has come, from the third second on; inside another bar nothing, one is enough.

    Args:
        what: the words before the bar.
        steps: how many calls of the yielded function make the whole, or None where nobody knows.
        show: True or False to force; by default only where standard error is a terminal.
    """
    if _inside.get() or not speaks() or not (sys.stderr.isatty() if show is None else show):
        yield lambda note="", steps=1: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=steps, note="")
    began, drawn = time.monotonic(), False

    def advance(note: str = "", steps: int = 1) -> None:
        nonlocal drawn
        bar.update(task, advance=steps, note=note)
        if not drawn and time.monotonic() - began > _DELAY:
            bar.start()
            drawn = True

    token = _inside.set(True)
    try:
        yield advance
    finally:
        _inside.reset(token)
        if drawn:
            bar.stop()
