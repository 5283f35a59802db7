"""Do the radii of one measure order the checkpoints alike, or does the answer hang on the radius chosen?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.study.statistics.kendall import tau_b

__all__ = ["Agreement", "agreement", "families"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Agreement:
    """Tau-b between the radii of one measure, over checkpoints.

    Attributes:
        measure: without its radius.
        radii: in rising order.
        taus: between each two of them.
    """

    measure: str
    radii: tuple[float, ...]
    taus: tuple[tuple[float, ...], ...]

    @property
    def least(self) -> tuple[float, float, float]:
        """The least agreement and the two radii it is between."""
        pairs = [(self.taus[i][j], self.radii[i], self.radii[j])
                 for i, j in itertools.combinations(range(len(self.radii)), 2)]  # fmt: skip
        return min(pairs, key=lambda p: math.inf if math.isnan(p[0]) else p[0])


def families(measures: Mapping[str, Any]) -> dict[str, list[tuple[float, str]]]:
    """Measures by name without radius: for each the radii in rising order, with the full names.

    >>> families({"geodesic@0.2": 0, "geodesic@0.1": 0, "parameter-norm": 0})
    {'geodesic': [(0.1, 'geodesic@0.1'), (0.2, 'geodesic@0.2')]}
    """
    out: dict[str, list[tuple[float, str]]] = {}
    for full in measures:
        name, at, radius = full.rpartition("@")
        try:
            value = float(radius)
        except ValueError:
            continue
        if at and math.isfinite(value):
            out.setdefault(name, []).append((value, full))
    return {name: sorted(found) for name, found in out.items()}


def agreement(measures: Mapping[str, Array]) -> list[Agreement]:
    """For each measure with two radii or more."""
    out = []
    for name, found in families(measures).items():
        if len(found) > 1:
            columns = [measures[full] for _, full in found]
            taus = tuple(tuple(tau_b(a, b) for b in columns) for a in columns)
            out.append(Agreement(name, tuple(r for r, _ in found), taus))
    return out
