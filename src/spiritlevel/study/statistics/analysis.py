"""All statistics of a study's table at once, as plain data: what the report prints and draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from spiritlevel.core.results import plain
from spiritlevel.errors import ArgumentError
from spiritlevel.study.statistics.chance import holm, permutation_p
from spiritlevel.study.statistics.choice import Choice, choose
from spiritlevel.study.statistics.kendall import tau_a
from spiritlevel.study.statistics.matched import Environment, Granulated, Matched, unresolved
from spiritlevel.study.statistics.partial import partial_taus
from spiritlevel.study.statistics.radii import Agreement, agreement
from spiritlevel.study.statistics.resamples import Interval, Resamples, two_sided
from spiritlevel.study.table import StudyTable

__all__ = ["NORM", "TRAINING", "Analysis", "Comparison", "Noise", "Relation", "Settings", "analyse"]

NORM = "parameter-norm"
TRAINING = ("train_loss", "train_error", "train_acc")  # the first there is stands for how well the training data is fit


@dataclass(frozen=True)
class Settings:
    """What fixes the numbers.

    Attributes:
        targets: columns of ``gen`` to explain; empty for every gap, or without gaps every test error, or else loss.
        measures: columns of ``complexity``; empty for all.
        resamples: bootstrap resamples of the checkpoints; 2,000 can tell a difference among up to 50 measures.
        permutations: for p-values.
        confidence: of all intervals.
        seed: of resamples and permutations.
    """

    targets: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    resamples: int = 2000
    permutations: int = 2000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.resamples < 100 or self.permutations < 100:
            raise ArgumentError(
                f"expected 100 resamples and permutations or more, got {self.resamples} and {self.permutations}"
            )
        if not 0.5 <= self.confidence < 1:
            raise ArgumentError(f"expected a confidence from 0.5 to below 1, got {self.confidence}")


@dataclass(frozen=True)
class Relation:
    """One measure and one target.

    Attributes:
        measure: a column of ``complexity``, or the training loss as a baseline.
        target: a column of ``gen``.
        count: checkpoints that have both.
        tau: Kendall's tau-b with its bootstrap interval.
        tau_a: over all pairs, ties among them.
        p: by permutation, two-sided, for this pair alone.
        p_family: the same after Holm's correction over all measures of this target.
        training: tau-b of the measure with the training loss.
        partial: what is left of tau given ``given``.
        given: training loss and parameter norm, as far as there are.
        first: in which share of resamples this measure has the largest ``|tau|`` of all measures.
        tied: the share of tied pairs in measure and in target.
        baseline: whether this is training loss or parameter norm rather than a measure of flatness.
    """

    measure: str
    target: str
    count: int
    tau: Interval
    tau_a: float
    p: float
    p_family: float
    training: float
    partial: Interval
    given: tuple[str, ...]
    first: float
    tied: tuple[float, float]
    baseline: bool


@dataclass(frozen=True)
class Comparison:
    """Two measures on the same resamples, each in the direction in which it orders the checkpoints.

    Attributes:
        target: what they are compared on.
        first: the measure with the largest ``|tau|``.
        second: another.
        difference: ``|tau|`` of the first minus that of the second.
        p: two-sided, by the paired bootstrap.
        p_family: after Holm's correction over all that the first is compared with.
    """

    target: str
    first: str
    second: str
    difference: Interval
    p: float
    p_family: float

    def significant(self, confidence: float = 0.95) -> bool:
        """Whether the difference stands after correction."""
        return self.difference.excludes_zero and self.p_family <= 1 - confidence


@dataclass(frozen=True)
class Noise:
    """How fine the test set is.

    Attributes:
        target: the gap or error.
        examples: size of its test set; None where unknown.
        unresolved: share of pairs of checkpoints it cannot tell apart.
    """

    target: str
    examples: int | None
    unresolved: float


@dataclass(frozen=True)
class Analysis:
    """Everything the report says, as numbers."""

    checkpoints: int
    settings: Settings
    targets: tuple[str, ...]
    measures: tuple[str, ...]
    relations: tuple[Relation, ...]
    comparisons: tuple[Comparison, ...]
    granulated: dict[tuple[str, str], list[Granulated]] = field(default_factory=dict)
    environments: dict[tuple[str, str], list[Environment]] = field(default_factory=dict)
    agreement: tuple[Agreement, ...] = ()
    noise: tuple[Noise, ...] = ()
    choices: dict[tuple[str, str], Choice] = field(default_factory=dict)

    def of(self, target: str, baselines: bool = True) -> list[Relation]:
        """Relations with one target, the strongest first."""
        rows = [r for r in self.relations if r.target == target and (baselines or not r.baseline)]
        return sorted(rows, key=lambda r: -abs(r.tau.value) if math.isfinite(r.tau.value) else 2.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""

        def listed(found: dict[tuple[str, str], Any]) -> list[dict[str, Any]]:
            many = ((k, v if isinstance(v, list) else [v]) for k, v in found.items())
            return [{"measure": m, "target": t, **asdict(one)} for (m, t), values in many for one in values]

        content = asdict(self) | {
            "granulated": listed(self.granulated),
            "environments": listed(self.environments),
            "choices": listed(self.choices),
        }
        out = plain(content)
        assert isinstance(out, dict)
        return out


def analyse(table: StudyTable, settings: Settings | None = None) -> Analysis:
    """Every statistic of a table. The same table and settings give the same numbers, bit for bit.

    Cost: 2,000 resamples of 72 checkpoints, 20 measures and 3 targets take about a second; the cost grows with the
    square of the number of checkpoints.
    """
    settings = settings or Settings()
    targets = _chosen("gen", settings.targets, table.gen, _default_targets(table))
    measures = _chosen("complexity", settings.measures, table.complexity, tuple(table.complexity))
    training = next((n for n in TRAINING if n in table.gen), None)
    work = _Work(table, settings, targets, measures, training)
    relations = [r for t in targets for r in work.relations(t)]
    matched = Matched(table.hp)
    keys = [(m, t) for t in targets for m in measures]
    sizes = {t: _examples(table, t) for t in targets}
    return Analysis(
        checkpoints=len(table),
        settings=settings,
        targets=targets,
        measures=measures,
        relations=tuple(relations),
        comparisons=tuple(c for t in targets for c in work.comparisons(t, relations)),
        granulated={(m, t): matched.granulated(table.complexity[m], table.gen[t], settings.resamples, settings.seed,
                                               settings.confidence) for m, t in keys},
        environments={(m, t): matched.environments(table.complexity[m], table.gen[t], sizes[t]) for m, t in keys},
        agreement=tuple(agreement({m: table.complexity[m] for m in measures})),
        noise=tuple(Noise(t, n, math.nan if n is None else unresolved(table.gen[t], n)) for t, n in sizes.items()),
        choices={(m, t): c for m, t in keys if (c := choose(table.names, table.complexity[m], table.gen[t]))},
    )  # fmt: skip


class _Work:
    """The resamples that all statistics of a table share."""

    def __init__(self, table: StudyTable, settings: Settings, targets: Sequence[str], measures: Sequence[str],
                 training: str | None) -> None:  # fmt: skip
        self._settings, self._training = settings, training
        columns = {f"gen.{t}": table.gen[t] for t in targets}
        columns |= {m: table.complexity[m] for m in (*measures, *[NORM] * (NORM in table.complexity))}
        if training is not None:
            columns[training] = table.gen[training]
        self._columns = columns
        self._measures = list(measures)
        self._baselines = [n for n in (training, NORM) if n is not None and n in columns]
        self._resamples = Resamples(columns, settings.resamples, settings.seed)

    def relations(self, target: str) -> list[Relation]:
        names = list(dict.fromkeys([*self._measures, *self._baselines]))
        y = self._columns[f"gen.{target}"]
        p_values = [permutation_p(self._columns[m], y, self._settings.permutations, self._settings.seed) for m in names]
        strengths = np.stack([np.abs(self._resamples.taus(m, f"gen.{target}"))[1:] for m in names])
        judged = [i for i, m in enumerate(names) if m not in self._baselines] or list(range(len(names)))
        firsts = dict.fromkeys(range(len(names)), math.nan) | _shares(judged, strengths)
        corrected = holm(p_values)
        return [self._relation(m, target, p_values[i], corrected[i], firsts[i]) for i, m in enumerate(names)]

    def _relation(self, measure: str, target: str, p: float, p_family: float, first: float) -> Relation:
        x, y = self._columns[measure], self._columns[f"gen.{target}"]
        both = np.isfinite(x) & np.isfinite(y)
        given = tuple(
            z for z in self._baselines if z != measure and z != target and len(np.unique(self._columns[z])) > 1
        )
        taus = self._resamples.taus(measure, f"gen.{target}")
        left = partial_taus(self._resamples, measure, f"gen.{target}", given) if given else np.full(2, np.nan)
        loss = None if self._training == measure else self._training
        training = math.nan if loss is None else float(self._resamples.taus(measure, loss)[0])
        interval = self._resamples.interval
        confidence = self._settings.confidence
        return Relation(
            measure, target, int(both.sum()), interval(taus, confidence), tau_a(x, y), p, p_family, training,
            interval(left, confidence), given, first, (_tied(x[both]), _tied(y[both])), measure in self._baselines,
        )  # fmt: skip

    def comparisons(self, target: str, relations: Sequence[Relation]) -> list[Comparison]:
        rows = [r for r in relations if r.target == target and math.isfinite(r.tau.value)]
        best = max((r for r in rows if not r.baseline), key=lambda r: abs(r.tau.value), default=None)
        if best is None:
            return []
        found = []
        for other in rows:
            if other.measure != best.measure:
                gap = self._oriented(best, target) - self._oriented(other, target)
                found.append(
                    (other.measure, self._resamples.interval(gap, self._settings.confidence), two_sided(gap[1:]))
                )
        corrected = holm([p for *_, p in found])
        return [Comparison(target, best.measure, m, d, p, q) for (m, d, p), q in zip(found, corrected, strict=True)]

    def _oriented(self, row: Relation, target: str) -> Any:
        """Taus on all resamples, in the direction the measure has on the data: folding each one would favour noise."""
        return self._resamples.taus(row.measure, f"gen.{target}") * (-1.0 if row.tau.value < 0 else 1.0)


def _shares(judged: Sequence[int], strengths: Any) -> dict[int, float]:
    """In which share of the resamples each of the judged rows is the largest; equals share."""
    known = np.nan_to_num(strengths[list(judged)], nan=-1.0)
    largest = known == known.max(0)
    shares = (largest / largest.sum(0)).mean(1)
    return {row: float(share) for row, share in zip(judged, shares, strict=True)}


def _chosen(kind: str, asked: tuple[str, ...], there: Any, default: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [n for n in asked if n not in there]
    if unknown:
        raise ArgumentError(f"expected columns {kind}.* out of {', '.join(there)}; got {', '.join(unknown)}")
    chosen = asked or default
    if not chosen:
        raise ArgumentError(f"expected at least one column {kind}.* to analyse, got {', '.join(there) or 'none'}")
    return chosen


def _default_targets(table: StudyTable) -> tuple[str, ...]:
    for ending in ("gap", "error", "loss"):
        found = tuple(n for n in table.gen if n.endswith(ending) and not n.startswith("train_"))
        if found:
            return found
    return ()


def _examples(table: StudyTable, target: str) -> int | None:
    """The size of the test set behind a gap or an error rate; the noise of a loss is not known from it."""
    name = next((target.removesuffix(f"_{e}") for e in ("gap", "error") if target.endswith(f"_{e}")), None)
    if name is None and target == "gap" and len(table.sizes) == 1:
        return next(iter(table.sizes.values()))
    return None if name is None else table.sizes.get(name)


def _tied(values: Any) -> float:
    """Share of pairs with equal values."""
    n = len(values)
    _, counts = np.unique(values, return_counts=True)
    return float((counts * (counts - 1)).sum() / (n * (n - 1))) if n > 1 else 0.0
