"""A log in the terminal: what each measure is now, how it came there, what readings cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spiritlevel.core.display import Displayed
from spiritlevel.monitor.log import Reading, RunLog, read_log

if TYPE_CHECKING:
    from spiritlevel.monitor.monitor import Monitor

__all__ = ["LiveView", "LogView", "follow", "spark"]

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 18
_NOTES = 3  # of the last, shown


def spark(values: Sequence[float], width: int = _WIDTH) -> str:
    """Values as a row of small bars, the lowest and the highest as low and as high as they go.

    >>> spark([1, 2, 3, 8])
    '▁▂▃█'
    """
    if len(values) > width:
        step = len(values) / width
        values = [max(values[int(i * step) : max(int((i + 1) * step), int(i * step) + 1)]) for i in range(width)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if not high > low:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1))] for v in values)


class LogView(Displayed):
    """What there is to see of a run.

    Args:
        readings: so far.
        title: of the run.
        notes: words of the monitor, with their steps.
        state: running, ended, ...
    """

    def __init__(
        self, readings: Sequence[Reading], title: str, notes: Sequence[tuple[int, str]] = (), state: str = ""
    ) -> None:
        self._readings, self._title, self._notes, self._state = readings, title, notes, state

    @classmethod
    def of(cls, log: RunLog) -> LogView:
        """Of a log on disk."""
        return cls(log.readings, log.path.name, log.notes, "ended" if log.ended else "")

    def __rich__(self) -> Group:
        if not self._readings:
            return Group(Text(f"{self._title}: no reading yet", style="bold"), *self._said())
        last = self._readings[-1]
        head = Text.assemble(
            (self._title, "bold"), f"  step {last.step:,}, {len(self._readings)} readings of {last.seconds:.2g} s, ",
            f"{last.share:.1%} of training time  ", (self._state, "green"),
        )  # fmt: skip
        return Group(head, self._table(last), *self._said())

    def _table(self, last: Reading) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("measure", no_wrap=True, overflow="ellipsis")
        for column in ("now", "lowest", "highest"):
            table.add_column(column, justify="right", no_wrap=True, min_width=9)
        table.add_column("so far", no_wrap=True, style="cyan")
        table.add_column("how it ended", overflow="ellipsis", no_wrap=True)
        names = dict.fromkeys(n for r in self._readings for n in (*r.values, *r.failures))
        for name in names:
            values = [r.values[name] for r in self._readings if name in r.values]
            ended = Text(last.states.get(name, ""), style="dim")
            if name in last.failures:
                ended = Text(last.failures[name], style="red")
            now = f"{last.values[name]:.4g}" if name in last.values else "–"
            ends = [f"{f(values):.4g}" if values else "–" for f in (min, max)]
            table.add_row(Text(name), now, *ends, spark(values), ended)
        return table

    def _said(self) -> list[Text]:
        return [Text(f"step {step}: {text}", style="yellow") for step, text in self._notes[-_NOTES:]]


class LiveView:
    """Draws a monitor's readings anew at each of them; a sink. Nothing runs in between."""

    def __init__(self, monitor: Monitor, console: Console | None = None) -> None:
        self._monitor = monitor
        self._live = Live(
            LogView((), self._title), console=console or Console(stderr=True), auto_refresh=False, transient=False
        )

    @property
    def _title(self) -> str:
        return type(self._monitor.model).__name__

    def __call__(self, values: Mapping[str, float], step: int) -> None:
        """Draw."""
        del values, step
        if not self._live.is_started:
            self._live.start()
        self._live.update(LogView(self._monitor.readings, self._title, self._monitor.notes), refresh=True)

    def close(self) -> None:
        """Leave the last picture on the screen."""
        if self._live.is_started:
            self._live.update(LogView(self._monitor.readings, self._title, self._monitor.notes, "ended"), refresh=True)
            self._live.stop()


def follow(path: Path, console: Console, every: float = 2.0) -> None:
    """Show a log and look at the file again and again, until it says that training has ended."""
    log = read_log(path)
    with Live(LogView.of(log), console=console, auto_refresh=False) as live:
        while not log.ended:
            live.update(LogView.of(log), refresh=True)
            time.sleep(every)
            log = read_log(path)
        live.update(LogView.of(log), refresh=True)
