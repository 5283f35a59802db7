"""How often may be measured? A share of training time, kept by what readings were seen to cost."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from spiritlevel.errors import ArgumentError

__all__ = ["Budget"]

_REMEMBERED = 3  # readings whose dearest is what the next is expected to cost


class Budget:
    """Allows a reading when, after it, all of them together have taken at most ``share`` of the training time.

    With ``T`` the seconds spent training so far (readings taken out), ``S`` those spent on readings and ``c`` what the
    next is expected to cost: ``S + c <= share T``. A reading that costs more than was expected is made up for by
    waiting, so the share is exceeded by one underestimate at most.

    Args:
        share: of training time; None for no limit.
        clock: seconds, as `time.perf_counter` gives them.

    >>> now = 0.0
    >>> budget = Budget(0.03, clock=lambda: now)
    >>> budget.begin()
    >>> now = 100.0
    >>> budget.allows(2.9), budget.allows(3.1)
    (True, False)
    """

    def __init__(self, share: float | None = 0.03, clock: Callable[[], float] = time.perf_counter) -> None:
        if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):
            raise ArgumentError(f"expected budget to be a share of training time in (0, 1], or None, got {share!r}")
        self.limit, self._clock = share, clock
        self._began: float | None = None
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self.spent = 0.0

    def begin(self) -> None:
        """Training starts, if it has not."""
        if self._began is None:
            self._began = self._clock()

    @property
    def training(self) -> float:
        """Seconds spent training so far, readings taken out."""
        return 0.0 if self._began is None else max(self._clock() - self._began - self.spent, 0.0)

    @property
    def share(self) -> float:
        """What readings have taken, as a share of training time."""
        training = self.training
        return self.spent / training if training > 0 else 0.0

    def expected(self, otherwise: float = 0.0) -> float:
        """Seconds the next reading takes: the dearest of the last few; ``otherwise`` before the first."""
        return max(self._costs) if self._costs else otherwise

    def allows(self, cost: float) -> bool:
        """Whether something that takes so many seconds keeps the share."""
        return self.limit is None or self.spent + cost <= self.limit * self.training

    def start(self) -> float:
        """Readings take the time from here on; hand the result to `stop`."""
        self.begin()
        return self._clock()

    def stop(self, since: float, *, reading: bool = True) -> float:
        """The time since then went into a reading, or into what goes before the first."""
        seconds = self._clock() - since
        self.spent += seconds
        if reading:
            self._costs.append(seconds)
        return seconds

    def interval(self, cost: float, step: float) -> int:
        """How many training steps of ``step`` seconds pay for a reading of ``cost``."""
        return 1 if self.limit is None or step <= 0 else max(1, math.ceil(cost / self.limit / step))
