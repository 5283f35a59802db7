"""The numbers the page draws from, as JSON that cannot end its element or be read as markup."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from spiritlevel.study.report.orbit import orbit_checks
from spiritlevel.study.statistics.analysis import NORM, TRAINING, Analysis, Relation
from spiritlevel.study.statistics.radii import families
from spiritlevel.study.statistics.resamples import Interval
from spiritlevel.study.table import StudyTable

__all__ = ["embedded", "forest_order", "payload"]

_DIGITS = 6  # of a number in the page: more than a screen shows, and half the size


def payload(table: StudyTable, analysis: Analysis) -> dict[str, Any]:
    """Everything that is drawn, by name."""
    measures = {m: table.complexity[m] for m in (*analysis.measures, *[NORM] * (NORM in table.complexity))}
    given = max((r.given for r in analysis.relations), key=len, default=())
    best = analysis.of(analysis.targets[0], baselines=False)
    words = {"train_loss": "training loss", NORM: "parameter norm"}
    return {
        "names": list(table.names),
        "hp": {n: [_value(v) for v in values] for n, values in table.hp.items()},
        "gen": {n: _numbers(values) for n, values in table.gen.items()},
        "complexity": {n: _numbers(values) for n, values in measures.items()},
        "targets": list(analysis.targets),
        "training": next((n for n in TRAINING if n in table.gen), None),
        "given": " and ".join(words.get(g, g) for g in given),
        "order": forest_order(analysis),
        "start": {"measure": best[0].measure if best else next(iter(measures)), "target": analysis.targets[0]},
        "relations": [_relation(r) for r in analysis.relations],
        "families": {n: rows for n, rows in families(dict.fromkeys(analysis.measures)).items() if len(rows) > 1},
        "batches": {m: [_spread(row) for row in rows] for m, rows in table.per_batch.items() if m in measures},
        "orbit": [asdict(o) | {"before": _number(o.before), "after": _number(o.after)} for o in orbit_checks(table)],
    }


def embedded(content: Any) -> str:
    r"""JSON for a script element: without the characters that could close it.

    >>> embedded({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def forest_order(analysis: Analysis) -> list[str]:
    """Measures by strength on the first target, the baselines after them."""
    rows = analysis.of(analysis.targets[0])
    return [r.measure for r in sorted(rows, key=lambda r: r.baseline)]


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [_number(float(v)) for v in values]


def _value(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return _number(value)
    return value if isinstance(value, bool | int | None) else str(value)


def _interval(tau: Interval) -> list[float | None]:
    return [_number(v) for v in (tau.value, tau.low, tau.high)]


def _relation(r: Relation) -> dict[str, Any]:
    return {
        "measure": r.measure, "target": r.target, "count": r.count, "tau": _interval(r.tau), "a": _number(r.tau_a),
        "p": _number(r.p), "pf": _number(r.p_family), "training": _number(r.training),
        "partial": _interval(r.partial),
    }  # fmt: skip


def _spread(row: Sequence[float]) -> list[float | None] | None:
    """Least, first and third quartile, largest."""
    finite = [v for v in row if math.isfinite(v)]
    return _numbers(np.quantile(finite, [0, 0.25, 0.75, 1])) if finite else None
