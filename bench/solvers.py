"""How many gradients a solver needs: SphereAscent against Auto-PGD, batch by batch and radius by radius."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn

import spiritlevel as sl
from spiritlevel.geometry import Geometry
from spiritlevel.problem import Objective, Problem
from spiritlevel.solvers import AutoPGD, L2Ball, SphereAscent
from spiritlevel.solvers.base import Solver

RADII = (0.1, 0.15, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the elementwise chart
QUOTIENT_RADII = (0.02, 0.05, 0.1, 0.2, 0.4)  # the loss rises by as much as it does from 0.1 to 2 there
SHARES = (0.99, 0.999)  # of the best known rise
STEPS = 20
LONG = 100  # steps of the long runs that the best known maximum comes from
SOLVERS: dict[str, Solver] = {"sphere": SphereAscent(steps=STEPS), "autopgd": AutoPGD(steps=STEPS)}
REFERENCES: tuple[Solver, ...] = (AutoPGD(steps=LONG), SphereAscent(steps=LONG, tolerance=1e-7))


def reached(rises: Sequence[float], goal: float, budget: int = STEPS) -> int:
    """Evaluations until a rise reaches the goal; one more than the budget where none does.

    >>> reached([0.5, 0.9, 1.0], 0.9), reached([0.5], 0.9)
    (2, 21)
    """
    return next((i for i, rise in enumerate(rises, 1) if rise >= goal), budget + 1)


def case(objective: Objective, radius: float, solvers: Mapping[str, Solver]) -> dict[str, Any]:
    """One batch at one radius: rises in the order computed for each solver, and the best rise known."""
    centre, ball = objective(objective.chart.zeros()), L2Ball(radius)
    runs = {name: solver.maximise(objective, ball, centre) for name, solver in solvers.items()}
    long = [solver.maximise(objective, ball, centre).value for solver in REFERENCES]
    return {
        "best": max(*long, *(r.value for r in runs.values())) - centre[0],
        "rises": {name: [v - centre[0] for v in r.history] for name, r in runs.items()},
        "status": {name: str(r.status) for name, r in runs.items()},
    }


def row(cases: Sequence[dict[str, Any]], ours: str, theirs: str) -> dict[str, Any]:
    """Counts, ratios of counts, and rises of one solver against another over the batches of one radius."""
    found: dict[str, Any] = {}
    for share in SHARES:
        count = {n: [reached(c["rises"][n], share * c["best"]) for c in cases] for n in (ours, theirs)}
        ratios = [a / b for a, b in zip(count[ours], count[theirs], strict=True)]
        found[f"{share:g}"] = {
            "evaluations": count,
            "ratios": ratios,
            "median": statistics.median(ratios),
            "worst": max(ratios),
        }
        found[f"{share:g}"]["neither"] = sum(min(a, b) > STEPS for a, b in zip(count[ours], count[theirs], strict=True))
    top = {n: [max(c["rises"][n]) for c in cases] for n in (ours, theirs)}
    found["rise_ratios"] = [a / b for a, b in zip(top[ours], top[theirs], strict=True)]
    found["rise_ratio_worst"] = min(found["rise_ratios"])
    found["rise_ratio_of_means"] = sum(top[ours]) / sum(top[theirs])
    found["of_best"] = {n: sum(top[n]) / sum(c["best"] for c in cases) for n in (ours, theirs)}
    found["spent"] = statistics.mean(len(c["rises"][ours]) for c in cases)
    return found


def overall(rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The same ratios over all radii together.

    A case that neither solver gets to the goal, too slow or in a lower local maximum, counts as 1 and says nothing;
    ``neither`` is their number. ``low_ends`` are final values more than 0.5 % below those of the other solver.

    >>> stuck = {"best": 1.0, "rises": {"ours": [0.5], "theirs": [0.6]}}
    >>> quick = {"best": 1.0, "rises": {"ours": [1.0], "theirs": [0.5, 1.0]}}
    >>> found = overall({"1": row([stuck, quick], "ours", "theirs")})
    >>> found["0.99"]["median"], found["0.99"]["neither"], found["low_ends"]
    (0.75, 1, 1)
    """
    rises = [x for r in rows.values() for x in r["rise_ratios"]]
    result: dict[str, Any] = {
        "rise_ratio_worst": min(rises),
        "rise_ratio_mean": statistics.mean(rises),
        "low_ends": sum(x < 0.995 for x in rises),
    }
    for share in SHARES:
        ratios = [x for r in rows.values() for x in r[f"{share:g}"]["ratios"]]
        result[f"{share:g}"] = {
            "median": statistics.median(ratios),
            "geometric_mean": statistics.geometric_mean(ratios),
            "worst": max(ratios),
            "worse_cases": sum(x > 1 for x in ratios),
            "neither": sum(r[f"{share:g}"]["neither"] for r in rows.values()),
            "cases": len(ratios),
        }
    return result


def show(rows: Mapping[str, dict[str, Any]], title: str) -> Table:
    """A line for each radius."""
    table = Table(title=title, title_justify="left", caption="never reached counts as the budget plus one")
    columns = ("rho", "99 %: median", "worst", "99.9 %: median", "worst", "rise: worst", "of means", "evaluations")
    for column in columns:
        table.add_column(column, justify="right")
    for radius, r in rows.items():
        counts = [f"{r[f'{s:g}'][key]:.2f}" for s in SHARES for key in ("median", "worst")]
        rises = [f"{r[key]:.3f}" for key in ("rise_ratio_worst", "rise_ratio_of_means")]
        table.add_row(radius, *counts, *rises, f"{r['spent']:.1f}")
    return table


def solvers(
    models: Sequence[nn.Module],
    batches: Sequence[Any],
    geometry: Geometry | None = None,
    radii: Sequence[float] = RADII,
    *,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure on trained models and print the table.

    Args:
        models: trained; more than one, since the ratios differ from training to training.
        batches: each is a case of its own with each model.
        geometry: whose chart; elementwise by default.
        radii: of the balls.
        console: where the table goes.

    Returns:
        Plain data: for each radius and over all of them, ratios of the evaluations needed for each share.
    """
    geometry = sl.Elementwise() if geometry is None else geometry
    problems = [Problem(model, batches) for model in models]
    charts = [problem.chart(geometry) for problem in problems]
    objectives = [Objective(p, c, batch) for p, c in zip(problems, charts, strict=True) for batch in p.batches()]
    rows = {
        f"{radius:g}": row([case(objective, radius, SOLVERS) for objective in objectives], "sphere", "autopgd")
        for radius in radii
    }
    result = {"radii": rows, "all": overall(rows)}
    (console or Console()).print(show(rows, f"Evaluations of SphereAscent / Auto-PGD, {type(geometry).__name__}"))
    return result
