"""How fast a study goes, and when it will be done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Pace", "words"]


@dataclass
class Pace:
    """Counts units as they end.

    Attributes:
        total: units to do in this run.
        done: units that ended, failed ones among them.
        failed: units that failed.
    """

    total: int
    done: int = 0
    failed: int = 0
    _began: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """If the rest goes as fast as what was done; None before the first unit."""
        if not self.done:
            return None
        return (time.monotonic() - self._began) / self.done * (self.total - self.done)

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        left = self.seconds_left
        rest = f", about {words(left)} left" if left is not None and self.done < self.total else ""
        return f"{self.done} of {self.total} units{failed}{rest}"


def words(seconds: float) -> str:
    """A time span as one says it.

    >>> words(42), words(600), words(9000), words(300000)
    ('42 s', '10 min', '2.5 h', '3.5 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
