"""Pairs of checkpoints trained alike but for one hyperparameter: what a measure says along each of them.

Two statistics go over these pairs. The granulated tau of Jiang et al. averages tau within groups that differ in one
hyperparameter only, so that a measure cannot score by telling large from small learning rates everywhere. The sign
error of Dziugaite et al. asks, for each change of one value into another, how often the measure is wrong about whether
the gap grows, and looks at the worst such change, not at the mean.

Hyperparameters named as `REPLICATES` tell repetitions apart, not ways of training: pairs may differ in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.study.statistics.kendall import pair_signs
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
        self._values = {n: codes[n][0] for n in self.axes}
        count = len(next(iter(hp.values()), ()))
        self._table = np.stack([codes[n][1] for n in self.axes], -1) if self.axes else np.zeros((count, 0), dtype=int)
        i, j = np.triu_indices(count, 1)
        differing, axis = np.zeros(len(i), dtype=int), np.zeros(len(i), dtype=int)
        for number in range(len(self.axes)):  # one at a time: all at once is too much memory for 1,000 checkpoints
            differs = self._table[i, number] != self._table[j, number]
            differing += differs
            axis[differs] = number
        self._i, self._j, self._axis = i[differing == 1], j[differing == 1], axis[differing == 1]

    def granulated(self, measure: Array, target: Array, resamples: int = 2000, seed: int = 0,
                   confidence: float = 0.95) -> list[Granulated]:  # fmt: skip
        """Psi of every axis (Jiang et al. 2020, Sec. 4): the mean over groups of tau within the group.

        Within a group every pair that differs in the axis counts alike and a tie counts 0, as in tau-a.
        """
        agree, there = self._agreement(measure, target)
        out = []
        for number, axis in enumerate(self.axes):
            chosen = (self._axis == number) & there
            rest = np.delete(self._table[self._i[chosen]], number, axis=1)
            taus = _group_means(agree[chosen], rest)
            rng = np.random.default_rng(seed)
            drawn = taus[rng.integers(0, len(taus), (resamples, len(taus)))].mean(-1) if len(taus) > 1 else np.empty(0)
            tau = Interval(float(taus.mean()) if len(taus) else math.nan, *percentiles(drawn, confidence))
            out.append(Granulated(axis, tau, len(taus), int(chosen.sum())))
        return out

    def environments(self, measure: Array, target: Array, examples: int | None) -> list[Environment]:
        """Sign error of every change of one value into another, with pairs weighted by `noise_weights`."""
        agree, there = self._agreement(measure, target)
        with np.errstate(invalid="ignore"):
            weights = noise_weights(np.abs(target[self._i] - target[self._j]), examples)
        out = []
        for number, change, chosen in self._changes(there):
            w = weights[chosen]
            total = float(w.sum())
            error = float((w * (1 - agree[chosen]) / 2).sum() / total) if total else math.nan
            effective = total**2 / float((w**2).sum()) if total else 0.0
            out.append(Environment(self.axes[number], change, error, int(chosen.sum()), effective))
        return out

    def _agreement(self, measure: Array, target: Array) -> tuple[Array, Array]:
        there = np.isfinite(measure) & np.isfinite(target)
        agree = (pair_signs(measure) * pair_signs(target))[self._i, self._j].astype(np.float64)
        return agree, there[self._i] & there[self._j]

    def _changes(self, there: Array) -> Iterator[tuple[int, tuple[str, str], Array]]:
        for number, axis in enumerate(self.axes):
            mine = (self._axis == number) & there
            a, b = self._table[self._i, number], self._table[self._j, number]
            low, high = np.minimum(a, b), np.maximum(a, b)
            for one, two in np.unique(np.stack([low[mine], high[mine]], -1), axis=0):
                change = (str(self._values[axis][one]), str(self._values[axis][two]))
                yield number, change, mine & (low == one) & (high == two)


def _codes(values: Sequence[Any]) -> tuple[list[str], Array]:
    """The different values in order, numbers by size, and which of them each checkpoint has."""

    def key(value: Any) -> tuple[bool, float, str]:
        number = isinstance(value, int | float)
        return not number, float(value) if number else 0.0, str(value)

    order = {k: n for n, k in enumerate(sorted({key(v) for v in values}))}
    return [k[2] for k in order], np.array([order[key(v)] for v in values], dtype=int)


def _group_means(agree: Array, rest: Array) -> Array:
    """Mean agreement in each group of pairs with the same other hyperparameters."""
    if not len(agree):
        return np.empty(0)
    _, group = (
        np.unique(rest, axis=0, return_inverse=True) if rest.shape[1] else (None, np.zeros(len(agree), dtype=int))
    )
    group = group.reshape(-1)
    means: Array = np.bincount(group, agree) / np.bincount(group)
    return means


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
