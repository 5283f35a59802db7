"""Pairs of checkpoints trained alike but for one hyperparameter: what a measure says along each of them.

Two statistics go over these pairs. The granulated tau of Jiang et al. averages tau within groups that differ in one
hyperparameter only, so that a measure cannot score by telling large from small learning rates everywhere. The sign
error of Dziugaite et al. asks, for each change of one value into another, how often the measure is wrong about whether
the gap grows, and looks at the worst such change, not at the mean.

Hyperparameters named as `REPLICATES` tell repetitions apart, not ways of training: pairs may differ in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.study.statistics.resamples import Interval, percentiles

__all__ = ["ENOUGH", "REPLICATES", "Environment", "Granulated", "Matched", "noise_weights", "unresolved"]

Array = np.ndarray[Any, np.dtype[Any]]
REPLICATES = ("seed", "seeds", "repeat", "replicate", "run")
ENOUGH = 12  # effective pairs an environment must keep: Dziugaite et al. 2020, robust-generalization-measures


@dataclass(frozen=True)
class Granulated:
    """Tau along one hyperparameter, everything else fixed.

    Attributes:
        axis: the hyperparameter.
        tau: mean over groups of checkpoints that differ in it alone; the interval resamples groups.
        groups: how many.
        pairs: pairs of checkpoints in all of them.
    """

    axis: str
    tau: Interval
    groups: int
    pairs: int


@dataclass(frozen=True)
class Environment:
    """One change of one hyperparameter.

    Attributes:
        axis: the hyperparameter.
        change: from which value to which.
        sign_error: weighted share of pairs that the measure orders other than the target does; a tie is a half.
        pairs: all pairs of this change.
        effective: how many equally weighted pairs they are worth after the noise filter.
    """

    axis: str
    change: tuple[str, str]
    sign_error: float
    pairs: int
    effective: float

    @property
    def kept(self) -> bool:
        """Whether enough pairs differ by more than the noise of the test set."""
        return self.effective >= ENOUGH


class Matched:
    """All pairs that differ in exactly one hyperparameter.

    Args:
        hp: hyperparameters, one value for each checkpoint; missing values are a value of their own.
        replicates: names of those that only number repetitions.
    """

    def __init__(self, hp: Mapping[str, Sequence[Any]], replicates: Sequence[str] = REPLICATES) -> None:
        codes = {n: _codes(values) for n, values in hp.items() if n.lower() not in replicates}
        self.axes = tuple(n for n, (values, _) in codes.items() if len(values) > 1)
        table = np.stack([codes[n][1] for n in self.axes], -1) if self.axes else np.zeros((0, 0), dtype=int)
        i, j = np.triu_indices(len(table), 1)
        differing, axis = np.zeros(len(i), dtype=int), np.zeros(len(i), dtype=int)
        for number in range(len(self.axes)):  # one at a time: all at once is too much memory for 1,000 checkpoints
            differs = table[i, number] != table[j, number]
            differing += differs
            axis[differs] = number
        self._pairs = {
            name: _Pairs(i[mine], j[mine], table, number, codes[name][0])
            for number, name in enumerate(self.axes)
            for mine in [np.flatnonzero((differing == 1) & (axis == number))]
        }

    def granulated(self, measure: Array, target: Array, resamples: int = 2000, seed: int = 0,
                   confidence: float = 0.95) -> list[Granulated]:  # fmt: skip
        """Psi of every axis (Jiang et al. 2020, Sec. 4): the mean over groups of tau within the group.

        Within a group every pair that differs in the axis counts alike and a tie counts 0, as in tau-a.
        """
        out = []
        for axis, pairs in self._pairs.items():
            agree, there = pairs.agreement(measure, target)
            total = np.bincount(pairs.group[there], minlength=1)
            taus = np.bincount(pairs.group[there], agree[there], minlength=1)[total > 0] / total[total > 0]
            rng = np.random.default_rng(seed)
            drawn = taus[rng.integers(0, len(taus), (resamples, len(taus)))].mean(-1) if len(taus) > 1 else np.empty(0)
            tau = Interval(float(taus.mean()) if len(taus) else math.nan, *percentiles(drawn, confidence))
            out.append(Granulated(axis, tau, len(taus), int(there.sum())))
        return out

    def environments(self, measure: Array, target: Array, examples: int | None) -> list[Environment]:
        """Sign error of every change of one value into another, with pairs weighted by `noise_weights`."""
        out = []
        for axis, pairs in self._pairs.items():
            agree, there = pairs.agreement(measure, target)
            change = pairs.change[there]
            weights = noise_weights(np.abs(target[pairs.i] - target[pairs.j])[there], examples)
            sums = [np.bincount(change, w, len(pairs.changes)) for w in (
                np.ones(len(change)), weights, weights**2, weights * (1 - agree[there]) / 2)]  # fmt: skip
            for words, (count, total, squares, wrong) in zip(pairs.changes, zip(*sums, strict=True), strict=True):
                if count:
                    error, worth = (wrong / total, total**2 / squares) if total else (math.nan, 0.0)
                    out.append(Environment(axis, words, float(error), int(count), float(worth)))
        return out


class _Pairs:
    """Pairs that differ in one axis alone: in which group each is, and which change it makes."""

    def __init__(self, i: Array, j: Array, table: Array, number: int, values: Sequence[str]) -> None:
        self.i, self.j = i, j
        rest = np.delete(table[i], number, axis=1)
        self.group = np.unique(rest, axis=0, return_inverse=True)[1].reshape(-1) if rest.size else np.zeros_like(i)
        ends = np.sort(np.stack([table[i, number], table[j, number]], -1), axis=1)
        kinds, self.change = np.unique(ends[:, 0] * len(values) + ends[:, 1], return_inverse=True)
        self.changes = [(values[k // len(values)], values[k % len(values)]) for k in kinds]

    def agreement(self, measure: Array, target: Array) -> tuple[Array, Array]:
        """+1, -1 or 0 (a tie) for each pair, and which pairs have all four numbers."""
        with np.errstate(invalid="ignore"):
            agree = np.sign(measure[self.i] - measure[self.j]) * np.sign(target[self.i] - target[self.j])
        return agree, np.isfinite(agree)


def _codes(values: Sequence[Any]) -> tuple[list[str], Array]:
    """The different values in order, numbers by size, and which of them each checkpoint has."""

    def key(value: Any) -> tuple[bool, float, str]:
        number = isinstance(value, int | float)
        return not number, float(value) if number else 0.0, str(value)

    order = {k: n for n, k in enumerate(sorted({key(v) for v in values}))}
    return [k[2] for k in order], np.array([order[key(v)] for v in values], dtype=int)


def noise_weights(differences: Array, examples: int | None) -> Array:
    """How far a difference of two error rates can be trusted: 0 where the test set cannot tell which is larger.

    ``max(0, (max(0, 1 - 2 exp(-2 n (d/2)^2)))^2 - 1/2)``: by Hoeffding, both rates are within d/2 of the truth with
    the probability that is squared. Without a size of the test set all pairs weigh 1.

    Reference: Dziugaite et al. (2020), In search of robust measures of generalization, Sec. 4.

    >>> noise_weights(np.array([0.01, 0.5]), 1000).round(3).tolist()
    [0.0, 0.5]
    """
    if examples is None:
        return np.ones_like(differences)
    sure = np.maximum(0.0, 1 - 2 * np.exp(-2 * examples * (differences / 2) ** 2))
    weights: Array = np.maximum(0.0, sure**2 - 0.5)
    return weights


def unresolved(target: Array, examples: int) -> float:
    """Share of all pairs of checkpoints whose difference the test set cannot tell from noise: their weight is 0."""
    finite = target[np.isfinite(target)]
    i, j = np.triu_indices(len(finite), 1)
    return float((noise_weights(np.abs(finite[i] - finite[j]), examples) == 0).mean()) if len(i) else math.nan
