"""What an ablation does to a number: paired over networks, by the same bootstrap resamples for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spiritlevel.errors import DataError
from spiritlevel.experiments.ablation_plan import BASES, Variant
from spiritlevel.study import StudyTable
from spiritlevel.study.statistics.chance import holm
from spiritlevel.study.statistics.resamples import Interval, Resamples, two_sided

__all__ = ["Effect", "Effects", "effects_of", "prefix"]

Array = np.ndarray[Any, np.dtype[np.float64]]
_TARGET = "the target"
_RESAMPLES = 4000  # ours: enough for a Holm-corrected 5 % among 17 comparisons, each way


@dataclass(frozen=True)
class Effect:
    """One variant beside the number it varies.

    Attributes:
        variant: which.
        rho: its radius.
        tau: with the target, with its interval.
        change: of tau against the base, in the direction in which the base orders networks: negative is a loss. None
            for the first base.
        p: of the change, two-sided, after Holm's correction over all variants.
        ratio: of its values to those of the base, the geometric mean over networks.
        order: tau between the two, over networks.
        failed: networks without a number.
    """

    variant: Variant
    rho: float
    tau: Interval
    change: Interval | None
    p: float
    ratio: Interval | None
    order: float
    failed: int


@dataclass(frozen=True)
class Effects:
    """All variants on one set of networks and one target.

    Attributes:
        count: networks.
        target: column of ``gen``.
        rows: by name of the variant.
        batches: for the bases, numbers of batches, tau of the mean over the first so many, and how far that is from
            tau with all of them, in the direction of the base.
        losses: the resamples of each variant's change, to compare changes with each other.
    """

    count: int
    target: str
    rows: Mapping[str, Effect]
    batches: Mapping[str, Sequence[tuple[int, Interval, Interval]]]
    losses: Mapping[str, Array] = field(repr=False, default_factory=dict)

    def larger_loss(self, one: str, other: str) -> Interval | None:
        """How much more of tau the first loses than the second; None where one of them was not measured."""
        if one not in self.losses or other not in self.losses:
            return None
        return _interval(self.losses[other] - self.losses[one])


def effects_of(
    table: StudyTable, batches: StudyTable, variants: Sequence[Variant], rows: Sequence[int], target: str, seed: int
) -> Effects:
    """Compare on some rows of a study's table.

    Args:
        table: from `measured_ablations`.
        batches: from `measured_batches`, with the same rows.
        variants: what to compare.
        rows: the networks.
        target: column of ``gen``.
        seed: of the resamples.
    """
    names = {v.name: _column(table, v.name) for v in variants}
    chosen = list(rows)
    whole = {b.name: _column(batches, b.name) for b in BASES}
    counts = {b.name: _counts(batches, whole[b.name], chosen) for b in BASES}
    columns = {name: table.complexity[column][chosen] for name, column in names.items()}
    aim = table.gen[target][chosen]
    prefixes = {f"{n} {k}": prefix(batches, whole[n], chosen, k) for n, ks in counts.items() for k in ks}
    resamples = Resamples({**columns, **prefixes, _TARGET: aim}, _RESAMPLES, seed)
    count = len(chosen)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), _RESAMPLES).astype(float)
    signs = {b.name: -1.0 if resamples.taus(b.name, _TARGET)[0] < 0 else 1.0 for b in BASES}
    losses = {
        v.name: signs[v.base] * (resamples.taus(v.name, _TARGET) - resamples.taus(v.base, _TARGET)) + 0.0  # no -0
        for v in variants
        if v.base is not None
    }
    corrected = dict(zip(losses, holm([two_sided(x[1:]) for x in losses.values()]), strict=True))
    found = {}
    for v in variants:
        base = None if v.base is None else columns[v.base]
        found[v.name] = Effect(
            v,
            float(names[v.name].rpartition("@")[2]),
            resamples.interval(resamples.taus(v.name, _TARGET)),
            None if base is None else resamples.interval(losses[v.name]),
            corrected.get(v.name, math.nan),
            None if base is None else _ratio(columns[v.name], base, draws),
            1.0 if v.base is None else float(resamples.taus(v.name, v.base)[0]),
            int((~np.isfinite(columns[v.name])).sum()),
        )
    steps = {}
    for n, ks in counts.items():
        taus = {k: resamples.taus(f"{n} {k}", _TARGET) for k in ks}
        changes = {k: signs[n] * (x - taus[ks[-1]]) + 0.0 for k, x in taus.items()}
        steps[n] = [(k, resamples.interval(taus[k]), resamples.interval(changes[k])) for k in ks]
    return Effects(count, target, found, steps, losses)


def prefix(table: StudyTable, column: str, rows: Sequence[int], batches: int) -> Array:
    """The number as it would be on the first so many batches: a worst case is a mean over batches."""
    return np.array([float(np.mean(each[:batches])) if each else math.nan
                     for each in (table.per_batch[column][i] for i in rows)])  # fmt: skip


def _counts(table: StudyTable, column: str, rows: Sequence[int]) -> list[int]:
    """1, 2, 4, ... batches, and all of them."""
    there = min((len(b) for i in rows if (b := table.per_batch[column][i])), default=1)
    return [*(2**k for k in range(there.bit_length()) if 2**k < there), there]


def _column(table: StudyTable, name: str) -> str:
    """A variant is measured at one radius."""
    found = [c for c in table.complexity if c.rpartition("@")[0] == name]
    if len(found) != 1:
        raise DataError(f"expected one column {name}@RADIUS, got {', '.join(found) or 'none'}: measure the ablations")
    return found[0]


def _ratio(values: Array, base: Array, draws: Array) -> Interval:
    """The geometric mean over networks, on the networks as they are and on each resample."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(values / base)
    there = np.isfinite(logs)
    counts = np.vstack([np.ones(len(values)), draws])[:, there]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.exp(counts @ logs[there] / counts.sum(1))
    return _interval(means)


def _interval(values: Array) -> Interval:
    finite = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(finite, [0.025, 0.975]) if len(finite) > 1 else (math.nan, math.nan)
    return Interval(float(values[0]), float(low), float(high))
