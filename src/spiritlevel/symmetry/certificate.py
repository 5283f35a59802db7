"""What a test of symmetries on data found, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.table import Table

from spiritlevel.core.display import Displayed

__all__ = ["Certificate", "Finding", "Verdict"]


class Verdict(StrEnum):
    """How a claimed symmetry stands."""

    EXACT = "exact"
    """Holds to rounding."""
    EPS = "broken by eps"
    """Holds but for the eps of a normalisation: the violation shrinks with it."""
    BROKEN = "broken"
    """Does not hold."""


@dataclass(frozen=True)
class Finding:
    """One block on data.

    Attributes:
        name: of the block.
        kind: of the block.
        group: in words.
        moment: the moment map, relative: rounding where the symmetry holds.
        drift: largest relative change of an output under a random group element; None where not moved alone.
        verdict: what follows.
    """

    name: str
    kind: str
    group: str
    moment: float
    drift: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Certificate(Mapping[str, float], Displayed):
    """The findings; as a mapping, the drift of each block by name.

    Attributes:
        findings: one for each block.
        drift: under a random move of all blocks together.
        allowed: largest drift taken for rounding.
        seconds: what the test took.
        cached: whether it was taken from an earlier test of the same weights.
    """

    findings: tuple[Finding, ...]
    drift: float
    allowed: float
    seconds: float
    cached: bool = False

    @property
    def holds(self) -> bool:
        """Whether every block is exact, alone and together with the others."""
        return self.drift <= self.allowed and all(f.verdict is Verdict.EXACT for f in self.findings)

    def __getitem__(self, name: str) -> float:
        found = next((f for f in self.findings if f.name == name), None)
        if found is None:
            raise KeyError(name)
        return self.drift if found.drift is None else found.drift

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def summary(self) -> str:
        """The result in one line."""
        word = "Hold on data" if self.holds else "DO NOT ALL HOLD on data"
        return f"{word}: outputs change by {self.drift:.1e} along all together; tested in {self.seconds:.2g} s."

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "holds": self.holds,
            "drift of all together": self.drift,
            "allowed": self.allowed,
            "seconds": self.seconds,
            "blocks": [
                {"name": f.name, "kind": f.kind, "moment": f.moment, "drift": f.drift, "verdict": str(f.verdict)}
                for f in self.findings
            ],
        }

    def __rich__(self) -> Table:
        table = Table(
            title="Symmetries on data",
            caption=f"all together: drift {self.drift:.1e} (rounding: up to {self.allowed:.0e}), {self.seconds:.2g} s",
            title_justify="left",
            caption_justify="left",
        )
        for column in ("block", "group", "moment", "drift", "verdict"):
            table.add_column(column, justify="right" if column in ("moment", "drift") else "left")
        for f in self.findings:
            drift = "" if f.drift is None else f"{f.drift:.1e}"
            table.add_row(f.name, f.group, f"{f.moment:.1e}", drift, str(f.verdict))
        return table
