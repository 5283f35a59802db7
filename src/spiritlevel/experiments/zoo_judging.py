"""A zoo's table, design by design: taus with intervals, and which of two measures tells more, paired by network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spiritlevel.errors import ArgumentError
from spiritlevel.study import StudyTable, analyse
from spiritlevel.study.statistics import Settings
from spiritlevel.study.statistics.analysis import Relation
from spiritlevel.study.statistics.resamples import Interval, Resamples, two_sided

__all__ = ["Judged", "Lead", "judged", "of_design", "with_loss_gaps"]


@dataclass(frozen=True)
class Lead:
    """By how much one measure orders the networks better than another, on the same resamples of the networks.

    Attributes:
        target: what they are compared on.
        first: a measure.
        second: another.
        difference: ``|tau|`` of the first minus that of the second; on the resamples each keeps the direction that it
            has on the data.
        p: two-sided, by the paired bootstrap.
    """

    target: str
    first: str
    second: str
    difference: Interval
    p: float


@dataclass(frozen=True)
class Judged:
    """What the measures tell in one design.

    Attributes:
        table: its networks.
        relations: by measure and target.
        leads: by first measure, second measure and target.
    """

    table: StudyTable
    relations: Mapping[tuple[str, str], Relation]
    leads: Mapping[tuple[str, str, str], Lead]

    def tau(self, measure: str, target: str) -> Interval:
        """Kendall's tau-b with its interval."""
        return self.relations[measure, target].tau

    def rows(self) -> list[dict[str, Any]]:
        """All taus as plain data in three digits, intervals as value, low, high."""
        return [
            {
                "measure": r.measure, "target": r.target, "tau": _three(r.tau), "p": _digits(r.p),
                "tau with training loss": _digits(r.training), "partial": _three(r.partial),
            }
            for r in self.relations.values()
        ]  # fmt: skip

    def lead_rows(self) -> list[dict[str, Any]]:
        """All paired differences as plain data."""
        return [
            {"first": x.first, "second": x.second, "target": x.target, "lead": _three(x.difference), "p": _digits(x.p)}
            for x in self.leads.values()
        ]


def with_loss_gaps(table: StudyTable) -> StudyTable:
    """The table with ``SET_loss_gap`` beside ``SET_gap``: test loss minus training loss."""
    train = table.gen["train_loss"]
    sets = [n.removesuffix("_loss") for n in table.gen if n.endswith("_loss") and n != "train_loss"]
    return replace(table, gen={**table.gen, **{f"{s}_loss_gap": table.gen[f"{s}_loss"] - train for s in sets}})


def of_design(table: StudyTable, design: str) -> StudyTable:
    """The rows whose hyperparameter ``design`` is this."""
    if "design" not in table.hp:
        raise ArgumentError(f"expected a hyperparameter 'design' in the table, got {', '.join(table.hp) or 'none'}")
    at = [i for i, d in enumerate(table.hp["design"]) if d == design]
    if not at:
        raise ArgumentError(f"expected networks of the design {design!r}, got {sorted(set(table.hp['design']))}")
    names = tuple(table.names[i] for i in at)
    return replace(
        table,
        names=names,
        hp={n: tuple(v[i] for i in at) for n, v in table.hp.items()},
        complexity={n: v[at] for n, v in table.complexity.items()},
        gen={n: v[at] for n, v in table.gen.items()},
        per_batch={n: tuple(v[i] for i in at) for n, v in table.per_batch.items()},
        failures=tuple(f for f in table.failures if f[0] in names),
    )


def judged(
    table: StudyTable, targets: Sequence[str], pairs: Sequence[tuple[str, str]], resamples: int = 2000, seed: int = 0
) -> Judged:
    """Everything about one design.

    Args:
        table: its networks.
        targets: columns of ``gen``.
        pairs: measures to compare on the gaps among the targets, as (first, second).
        resamples: of the networks, and permutations for p-values.
        seed: fixes them.
    """
    settings = Settings(tuple(targets), resamples=resamples, permutations=resamples, seed=seed)
    relations = {(r.measure, r.target): r for r in analyse(table, settings).relations}
    measures = dict.fromkeys(m for pair in pairs for m in pair)
    columns: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {f"gen.{t}": table.gen[t] for t in targets}
    drawn = Resamples(columns | {m: table.complexity[m] for m in measures}, resamples, seed)
    gaps = [t for t in targets if t.endswith("gap")]
    leads = [_lead(drawn, first, second, t) for first, second in pairs for t in gaps]
    return Judged(table, relations, {(x.first, x.second, x.target): x for x in leads})


def _lead(drawn: Resamples, first: str, second: str, target: str) -> Lead:
    def strength(measure: str) -> Any:
        taus = drawn.taus(measure, f"gen.{target}")
        return -taus if taus[0] < 0 else taus

    difference = strength(first) - strength(second)
    return Lead(target, first, second, drawn.interval(difference), two_sided(difference[1:]))


def _three(of: Interval) -> list[float | None]:
    return [_digits(of.value), _digits(of.low), _digits(of.high)]


def _digits(value: float) -> float | None:
    return None if value != value else float(f"{value:.3g}")
