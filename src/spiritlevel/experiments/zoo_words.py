"""What reports on zoos share: the measures and their radii, and the findings in words."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.core.results import Status
from spiritlevel.experiments.intervals import verdict
from spiritlevel.experiments.zoo_folder import ZooFolder
from spiritlevel.experiments.zoo_judging import Judged
from spiritlevel.study import Store

__all__ = [
    "ADAPTIVE",
    "GEODESIC",
    "NAMES",
    "Grid",
    "Lines",
    "edge_words",
    "edges",
    "listed",
    "quartiles",
    "spread",
    "training_seconds",
]

NAMES: dict[str, str] = {
    "geodesic": "geodesic (inverse_gram)",
    "geodesic-cross": "geodesic (cross_gram)",
    "adaptive": "adaptive l2",
    "adaptive-linf": "adaptive l-infinity",
}
GEODESIC, ADAPTIVE = ("geodesic", "geodesic-cross"), ("adaptive", "adaptive-linf")
_EVERY = 60.0  # seconds between lines where there is no terminal for a bar


@dataclass(frozen=True)
class Grid:
    """The measures of a zoo's study at their radii.

    Attributes:
        measures: as they stand in the configuration of the study; all have equally many radii.
        judged: the rank of the radius that claims are judged at, fixed before any tau is seen.
    """

    measures: tuple[Mapping[str, Any], ...]
    judged: int

    @property
    def radii(self) -> dict[str, list[float]]:
        """By name of the measure."""
        return {str(m.get("name", m["measure"])): list(m["rho"]) for m in self.measures}

    @property
    def others(self) -> list[int]:
        """The ranks of the radii that claims are not judged at."""
        return [i for i in range(len(self.measures[0]["rho"])) if i != self.judged]

    @property
    def columns(self) -> list[str]:
        """All of them in the table."""
        return [self.column(m, i) for m, rho in self.radii.items() for i in range(len(rho))]

    def column(self, measure: str, rank: int | None = None) -> str:
        """A measure at its radius of that rank, by default the one that is judged."""
        return f"{measure}@{self.radii[measure][self.judged if rank is None else rank]:g}"

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Each geodesic measure beside each adaptive one, at radii of the same rank."""
        ranks = range(len(self.measures[0]["rho"]))
        return tuple((self.column(g, i), self.column(a, i)) for i in ranks for g in GEODESIC for a in ADAPTIVE)

    def shown(self) -> dict[str, str]:
        """The columns that are judged, with their names in figures."""
        return {self.column(m): f"{words}, ρ = {self.column(m).partition('@')[2]}" for m, words in NAMES.items()}

    def compared(self, found: Judged, first: str, second: str, target: str) -> str:
        """Which of two measures orders the networks better."""
        lead = found.leads[self.column(first), self.column(second), target]
        d = lead.difference
        verdicts = {True: "orders the networks better", False: "orders them worse",
                    None: "is no different beyond chance"}  # fmt: skip
        return f"{NAMES[first]} {verdicts[verdict((d.low, d.high))]} (difference of |tau| {d}, p {lead.p:.2g})"

    def without_training(self, found: Judged) -> str:
        """What is left where the training error, a part of the gap, is not looked at."""
        errors = [f"{found.tau(self.column(m), 'test_error')} for {words}" for m, words in NAMES.items()]
        train, test = (
            100 * float(np.nanmax(e) - np.nanmin(e)) for e in (found.table.gen[f"{p}_error"] for p in ("train", "test"))
        )
        return (
            f"The gap is the test error, which differs by up to {test:.1f} points, minus the training error, which "
            f"differs by up to {train:.1f}; with the test error alone tau is {listed(errors)}."
        )


def quartiles(found: Judged, columns: Sequence[str]) -> dict[str, list[float]]:
    """Quartiles of measures over the networks: what the radii mean."""
    return {
        c: [float(f"{np.nanquantile(found.table.complexity[c], q):.3g}") for q in (0.25, 0.5, 0.75)] for c in columns
    }


def spread(found: Judged, columns: Sequence[str]) -> dict[str, list[float]]:
    """Least value, quartiles and largest value of columns of ``gen`` over the networks."""
    return {c: [round(float(np.nanquantile(found.table.gen[c], q)), 4) for q in (0, 0.25, 0.5, 0.75, 1)]
            for c in columns}  # fmt: skip


def edges(zoo: ZooFolder, names: Sequence[str], grid: Grid) -> dict[str, int]:
    """Of how many networks a radius of the cross_gram measure is above the smallest singular value of some head."""
    columns = [grid.column("geodesic-cross", i) for i in range(len(grid.radii["geodesic-cross"]))]
    with Store(zoo.store) as store:
        outcomes = [store.outcomes(name) for name in names]
    return {c: sum(o[f"complexity.{c}"].status == Status.EDGE for o in outcomes if f"complexity.{c}" in o)
            for c in columns}  # fmt: skip


def edge_words(found: Mapping[str, int]) -> str:
    """The same as a sentence."""
    counts = [f"{n} at {column.partition('@')[2]}" for column, n in found.items()]
    return (
        "The cross_gram metric has an edge, the smallest singular value of a head; beyond it numbers mean little. Of "
        f"all checkpoints the radius is beyond it for {listed(counts)}."
    )


def training_seconds(zoo: ZooFolder) -> int:
    """CPU time that its fine-tunings took."""
    return round(sum(float(r["seconds"]) for r in zoo.networks.values()))


def listed(parts: Sequence[str] | Iterator[str]) -> str:
    """Words in a row.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    parts = list(parts)
    if len(parts) < 2:
        return parts[0] if parts else "none"
    return ", ".join(parts[:-1]) + " and " + parts[-1]


class Lines:
    """A line on standard error now and then where there is no terminal to draw a bar on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._said = clock, clock()

    def __call__(self, words: str) -> None:
        """Say it, if nothing was said for a while."""
        if not sys.stderr.isatty() and self._clock() - self._said > _EVERY:
            self._said = self._clock()
            sys.stderr.write(f"{words}\n")
