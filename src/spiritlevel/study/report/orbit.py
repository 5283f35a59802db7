"""The check of invariance that a study carries along: each measure before and after a move along an orbit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spiritlevel.errors import DataError
from spiritlevel.study.table import StudyTable

__all__ = ["OrbitCheck", "orbit_checks"]


@dataclass(frozen=True)
class OrbitCheck:
    """One measure of one checkpoint, written in two ways that compute the same.

    Attributes:
        measure: its name.
        checkpoint: whose weights were moved.
        before: the value as they were.
        after: the value after the move.
    """

    measure: str
    checkpoint: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before: 1 for a measure of the function; NaN where that says nothing."""
        return self.after / self.before if self.before > 0 and self.after > 0 else math.nan


def orbit_checks(table: StudyTable) -> list[OrbitCheck]:
    """What the fact ``orbit_check`` holds: a list of mappings with the four names of `OrbitCheck`.

    >>> row = {"measure": "m", "checkpoint": "c", "before": 0.5, "after": 1.0}
    >>> orbit_checks(StudyTable(("c",), facts={"orbit_check": [row]}))[0].ratio
    2.0
    """
    rows = table.facts.get("orbit_check", ())
    try:
        return [
            OrbitCheck(str(r["measure"]), str(r["checkpoint"]), float(r["before"]), float(r["after"])) for r in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            "expected the fact orbit_check to be a list of measure, checkpoint, before and after, "
            f"got {str(rows)[:80]}: leave it out or mend it"
        ) from error
