"""The same function written with other weights: which measures say the same of it?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from torch import nn

from spiritlevel.core.results import Measurement
from spiritlevel.demo.data import clean
from spiritlevel.geometry import Euclidean
from spiritlevel.measures import adaptive_sharpness, geodesic_sharpness, worst_case
from spiritlevel.problem import Problem
from spiritlevel.symmetry import find_symmetries, move_along_orbit, verify_symmetries

__all__ = ["Invariance", "check_invariance"]

_CONDITION = 100.0  # of the random matrices
_BATCH = 128

MEASURES: dict[str, Callable[[Problem], Measurement]] = {
    "euclidean@0.05": lambda p: worst_case(p, Euclidean(), 0.05, show_progress=False),
    "adaptive@0.5": lambda p: adaptive_sharpness(p, 0.5),
    "geodesic@0.1": lambda p: geodesic_sharpness(p, 0.1),
}
"""What is measured before and after, by the names these measures have in the study."""


@dataclass(frozen=True)
class Invariance:
    """A network before and after a move along its orbit.

    Attributes:
        checkpoint: which network.
        drift: largest relative change of its output by the move, block by block: rounding.
        rows: measure, checkpoint, and the values before and after.
    """

    checkpoint: str
    drift: float
    rows: tuple[dict[str, Any], ...]

    def __rich__(self) -> Table:
        table = Table("measure", title="Before and after the move", title_justify="left")
        for column in ("before", "after", "ratio"):
            table.add_column(column, justify="right")
        for row in self.rows:
            ratio = row["after"] / row["before"]
            table.add_row(row["measure"], f"{row['before']:.4f}", f"{row['after']:.4f}", f"{ratio:.4f}")
        return table


def check_invariance(model: nn.Module, checkpoint: str, seed: int) -> Invariance:
    """Multiply every head by a random matrix that leaves the function as it is, and measure before and after."""
    images, labels = clean()
    blocks = find_symmetries(model)
    drift = max(verify_symmetries(model, (images[:64], labels[:64]), blocks, seed).values())
    moved = copy.deepcopy(model)
    moved.load_state_dict(move_along_orbit(model, blocks, seed=seed, condition=_CONDITION))
    batches = [(images[:_BATCH], labels[:_BATCH])]
    rows = []
    for name, measure in MEASURES.items():
        before, after = (measure(Problem(m, batches)).value for m in (model, moved))
        rows.append({"measure": name, "checkpoint": checkpoint, "before": before, "after": after})
    return Invariance(checkpoint, drift, tuple(rows))
