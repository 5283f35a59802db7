"""The analysis in words: which measure tells, whether the difference is significant, and what could fool the reader."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from spiritlevel.study.statistics.analysis import NORM, Analysis, Relation
from spiritlevel.study.statistics.kendall import chance_spread
from spiritlevel.study.table import StudyTable

__all__ = ["Finding", "Kind", "findings"]

FEW = 30  # ours: below, an interval of tau is wider than +-0.2 whatever tau is (chance_spread(30) = 0.13)
TIED = 0.05  # ours: from here on tau-a and tau-b differ by what a reader would notice
COARSE = 0.25  # ours: a quarter of all pairs is what separates a tau of 0.5 from one of 0.75 in the worst case
APART = 0.7  # ours: below, two radii order one pair in seven and more the other way round


class Kind(StrEnum):
    """What a sentence is for."""

    RESULT = "result"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing a reader should know.

    Attributes:
        kind: result, warning or note.
        text: in plain words.
        target: the column it is about; empty where it is about all.
    """

    kind: Kind
    text: str
    target: str = ""


def findings(table: StudyTable, analysis: Analysis) -> list[Finding]:
    """Results first, then warnings, then notes."""
    found = [f for target in analysis.targets for f in _of_target(analysis, target)]
    found += _of_study(table, analysis)
    order = list(Kind)
    return sorted(found, key=lambda f: order.index(f.kind))


def _of_target(analysis: Analysis, target: str) -> Iterator[Finding]:
    rows = [r for r in analysis.of(target, baselines=False) if math.isfinite(r.tau.value)]
    if not rows:
        yield Finding(Kind.WARNING, f"{target}: no measure has a tau, for want of two checkpoints that differ.", target)
        return
    best = rows[0]
    yield Finding(Kind.RESULT, " ".join(_result(analysis, best, len(rows))), target)
    yield from _confounders(analysis, rows, target)
    yield from _fixed_hyperparameters(analysis, best)
    tied = max(max(r.tied) for r in rows)
    if tied > TIED:
        yield Finding(
            Kind.WARNING,
            f"{target}: up to {tied:.0%} of the pairs are tied. Tau-b leaves ties out, tau-a counts them as "
            f"disagreement: {best.measure} has {best.tau.value:.2f} and {best.tau_a:.2f}.",
            target,
        )


def _result(analysis: Analysis, best: Relation, count: int) -> Iterator[str]:
    level = 1 - analysis.settings.confidence
    known = f"tau {best.tau} over {best.count:,} checkpoints"
    if not (best.p_family <= level and best.tau.excludes_zero):
        yield (
            f"{best.target}: none of the {count} measures tells more than chance. The largest tau is that of "
            f"{best.measure}, {known} (p {_p(best.p)}, {_p(best.p_family)} after correction for all measures)."
        )
        return
    corrected = f"p {_p(best.p_family)} after correction"
    yield f"{best.target}: {best.measure} orders the checkpoints best, {known} ({corrected})."
    if best.tau.value < 0:
        yield "The sign is negative: checkpoints with smaller values do worse."
    yield from _rivals(analysis, best)
    choice = analysis.choices.get((best.measure, best.target))
    if choice is not None and best.tau.value > 0:
        yield (
            f"Chosen by it, {choice.checkpoint} would be place {choice.rank:,} of {choice.count:,} with "
            f"{choice.value:.4g} (the best has {choice.best:.4g}, the middle one {choice.middle:.4g})."
        )


def _rivals(analysis: Analysis, best: Relation) -> Iterator[str]:
    """How sure the first place is."""
    baselines = {r.measure for r in analysis.relations if r.baseline}
    mine = [c for c in analysis.comparisons if c.target == best.target and c.second not in baselines]
    if not mine:
        return
    confidence = analysis.settings.confidence
    level = [c for c in mine if not c.significant(confidence)]
    if not level:
        closest = min(mine, key=lambda c: c.difference.value)
        others = "" if len(mine) == 1 else f", as is that over each of the other {len(mine) - 1}"
        yield f"Its lead over {closest.second}, {closest.difference}, is significant{others}."
        return
    next_best = min(level, key=lambda c: c.difference.value)
    yield (
        f"Its lead over {next_best.second} is {next_best.difference} and not significant: which of the two is better "
        + ("is open." if len(level) == 1 else f"is open, as it is with {len(level)} of the {len(mine)} others.")
    )
    yield f"It comes first in {best.first:.0%} of the resamples."


def _confounders(analysis: Analysis, rows: list[Relation], target: str) -> Iterator[Finding]:
    """Whether the measures tell anything that training loss and norm do not."""
    best = rows[0]
    if not best.given:
        return
    given = " and ".join(_plain(z) for z in best.given)
    fooled = [
        r for r in rows if r.tau.excludes_zero and not (r.partial.excludes_zero and r.partial.value * r.tau.value > 0)
    ]
    if fooled:
        yield Finding(
            Kind.WARNING,
            f"{target}: given {given}, nothing certain is left of the tau of {_listed([r.measure for r in fooled])}. "
            f"{best.measure} falls from {best.tau.value:.2f} to {best.partial}.",
            target,
        )
    else:
        yield Finding(
            Kind.NOTE, f"{target}: given {given}, {best.measure} keeps a partial tau of {best.partial}.", target
        )
    yield from _against_baselines(analysis, best)
    if abs(best.training) > 0.5:
        yield Finding(
            Kind.WARNING,
            f"{target}: {best.measure} has tau {best.training:.2f} with {_plain('train_loss')}, so much of what it "
            "tells may be how well the training data is fit.",
            target,
        )


def _against_baselines(analysis: Analysis, best: Relation) -> Iterator[Finding]:
    """Whether training loss or norm would have done as well."""
    baselines = {r.measure: r for r in analysis.relations if r.baseline and r.target == best.target}
    words: dict[str, list[str]] = {}
    for c in analysis.comparisons:
        sure = c.significant(analysis.settings.confidence)
        if c.target == best.target and c.second in baselines and not (sure and c.difference.value > 0):
            verdict = "tells less than" if sure else "is not significantly better than"
            words.setdefault(verdict, []).append(
                f"{_plain(c.second)} alone, which has tau {baselines[c.second].tau} (difference {c.difference})"
            )
    for verdict, names in words.items():
        yield Finding(
            Kind.WARNING, f"{best.target}: {best.measure} {verdict} {'; nor than '.join(names)}.", best.target
        )


def _fixed_hyperparameters(analysis: Analysis, best: Relation) -> Iterator[Finding]:
    along = [g for g in analysis.granulated.get((best.measure, best.target), []) if g.groups]
    against = [g for g in along if g.tau.value * best.tau.value < 0]
    if against and best.tau.excludes_zero:
        worst = min(against, key=lambda g: g.tau.value * best.tau.value)
        yield Finding(
            Kind.WARNING,
            f"{best.target}: where only {worst.axis} differs, {best.measure} has tau {worst.tau.value:.2f} "
            f"({worst.pairs} pairs), against {best.tau.value:.2f} over all.",
            best.target,
        )
    kept = [e for e in analysis.environments.get((best.measure, best.target), []) if e.kept]
    if kept:
        bad = max(kept, key=lambda e: e.sign_error)
        yield Finding(
            Kind.NOTE,
            f"{best.target}: at its worst, from {bad.axis} {bad.change[0]} to {bad.change[1]}, {best.measure} is wrong "
            f"about the direction in {bad.sign_error:.0%} of the pairs.",
            best.target,
        )


def _of_study(table: StudyTable, analysis: Analysis) -> Iterator[Finding]:
    yield _how_many(analysis)
    for noise in analysis.noise:
        if noise.examples is not None and noise.unresolved > COARSE:
            yield Finding(
                Kind.WARNING,
                f"{noise.target}: the test set of {noise.examples:,} examples cannot tell {noise.unresolved:.0%} of "
                "the pairs of checkpoints apart; their order is partly noise, which pulls every tau towards 0.",
                noise.target,
            )
    unknown = [n.target for n in analysis.noise if n.examples is None]
    if unknown:
        yield Finding(
            Kind.NOTE, f"The size of the test set behind {_listed(unknown)} is not known: its noise is not judged."
        )
    if not any(r.given for r in analysis.relations):
        yield Finding(
            Kind.WARNING,
            "There is neither a training loss that varies (gen.train_loss) nor a parameter norm "
            f"(complexity.{NORM}): whether the measures only follow them cannot be told.",
        )
    for one in analysis.agreement:
        tau, low, high = one.least
        if tau < APART:
            yield Finding(
                Kind.WARNING,
                f"{one.measure}: the radii {low:g} and {high:g} order the checkpoints differently (tau {tau:.2f}): the "
                "answer depends on the radius.",
            )
    if table.hp and not any(g.groups for found in analysis.granulated.values() for g in found):
        yield Finding(
            Kind.NOTE,
            "No two checkpoints differ in a single hyperparameter: granulated tau and sign error do not apply.",
        )
    lacking = sorted({r.measure for r in analysis.relations if r.count < max(q.count for q in analysis.relations)})
    if lacking:
        yield Finding(
            Kind.NOTE,
            f"{_listed(lacking)} could not be had for every checkpoint; each tau is over those that have both.",
        )
    if table.failures:
        names = _listed(sorted({f[0] for f in table.failures}))
        yield Finding(Kind.WARNING, f"{_count(len(table.failures), 'measurement')} failed (of {names}): left out.")


def _how_many(analysis: Analysis) -> Finding:
    n, confidence = min((r.count for r in analysis.relations), default=0), analysis.settings.confidence
    reach = 1.96 * chance_spread(n)
    words = (
        f"With {n:,} checkpoints a tau within ±{min(reach, 1.0):.2f} is what chance gives 19 times out of 20, and "
        f"every interval here ({confidence:.0%}) is over the choice of these checkpoints."
    )
    if n < FEW:
        return Finding(
            Kind.WARNING, f"{words} So few cannot rank measures that are close: do not read much into first place."
        )
    return Finding(Kind.NOTE, words)


def _plain(column: str) -> str:
    return {"train_loss": "training loss", "train_error": "training error", "train_acc": "training accuracy",
            NORM: "parameter norm"}.get(column, column)  # fmt: skip


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _p(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.2g}" if value >= 1e-4 else "below 0.0001"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
