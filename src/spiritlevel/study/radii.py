"""Radii chosen by rule: where the mean of a measure over a few checkpoints reaches a stated level.

Radii of different geometries cannot be compared as numbers; radii at which the loss rises equally on the same networks
can. They are found once for a study, rounded to three digits, and kept in its store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from spiritlevel.core.progress import Advance
from spiritlevel.errors import ArgumentError, LossError, SpiritlevelError
from spiritlevel.measures import MEASURES
from spiritlevel.study.config import Measure, RadiusRule
from spiritlevel.study.jobs import measure_settings, measured
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.session import Session
from spiritlevel.study.store import Store
from spiritlevel.study.units import Column

__all__ = ["chosen_radii", "radius_of_rise"]

_FACTOR = 4.0  # ours: step of the search for a bracket
_MOST = 40  # ours: evaluations before giving up; a bracket takes about 3, the root in it about 5
_FAR = 1e12  # ours: ratios to the level beyond this are all the same
_CLOSE = 0.01  # ours: relative, far below what differs between checkpoints


def radius_of_rise(rise: Callable[[float], float], level: float, start: float) -> float:
    """The radius at which an increasing function reaches a level, to a percent of it; three digits.

    A bracket is found by factors of four, then the chord of ``log rise`` over ``log rho`` is followed (Illinois
    variant of regula falsi: the end that stays twice gets half its weight).

    >>> radius_of_rise(lambda rho: 3 * rho**2, 0.12, start=7.0)
    0.2
    """

    def height(x: float) -> float:
        try:
            return math.log(min(max(rise(math.exp(x)) / level, 1 / _FAR), _FAR))
        except LossError:  # no finite loss that far out
            return math.log(_FAR)

    a = math.log(start)
    fa = height(a)
    step = math.log(_FACTOR) * (-1 if fa > 0 else 1)
    b, fb, spent = a, fa, 1
    while fa * fb > 0:
        if spent >= _MOST // 2:
            raise ArgumentError(
                f"expected a radius where the rise reaches {level:g}, got a rise of {level * math.exp(fb):.4g} at "
                f"{math.exp(b):.4g} still: take another level"
            )
        a, fa = b, fb
        b += step
        fb, spent = height(b), spent + 1
    x, fx = (a, fa) if abs(fa) < abs(fb) else (b, fb)
    while abs(fx) > _CLOSE and spent < _MOST:
        x = (a * fb - b * fa) / (fb - fa)
        fx, spent = height(x), spent + 1
        if fx * fb < 0:
            a, fa = b, fb
        else:
            fa /= 2
        b, fb = x, fx
    return float(f"{math.exp(x):.3g}")


def chosen_radii(
    session: Session, store: Store, measure: Measure, zoo: Sequence[Checkpoint], advance: Advance
) -> list[dict[str, object]]:
    """The radii of a rule, with how they came about: from the store, or found now and stored."""
    assert isinstance(measure.rho, RadiusRule)
    rule, known = measure.rho, {}
    for level in rule.rise:
        settings = {**measure_settings(session, measure), "rise": level, "checkpoints": rule.checkpoints}
        known[level] = Column(measure.name, settings).key
    found = []
    for level, key in known.items():
        details = store.radius(key)
        if details is None:
            details = _calibrated(session, measure, level, zoo, advance)
            store.set_radius(key, details)
        found.append({"measure": measure.name, **details})
    return found


def _calibrated(
    session: Session, measure: Measure, level: float, zoo: Sequence[Checkpoint], advance: Advance
) -> dict[str, object]:
    assert isinstance(measure.rho, RadiusRule)
    judges: list[Checkpoint] = []
    rises: dict[float, list[float]] = {}

    def mean_rise(rho: float) -> float:
        rises[rho] = [measured(session.load(c), measure, (rho,))[0].value for c in judges]
        advance(f"rise {fmean(rises[rho]):.3g} at {rho:.3g}", 0)
        return fmean(rises[rho])

    try:
        judges += _judges(session, zoo, measure.rho.checkpoints)
        rho = radius_of_rise(mean_rise, level, start=MEASURES[measure.measure].radii[0])
        reached = mean_rise(rho)
    except SpiritlevelError as error:
        raise type(error)(f"{measure.name}: choosing the radius of a mean rise of {level:g} failed: {error}") from error
    return {"rise": level, "rho": rho, "reached": reached, "checkpoints": [c.name for c in judges], "each": rises[rho]}


def _judges(session: Session, zoo: Sequence[Checkpoint], count: int) -> list[Checkpoint]:
    """So many checkpoints that can be loaded, spread evenly; for one that cannot, the next."""
    at = [round((i + 0.5) * len(zoo) / count - 0.5) for i in range(min(count, len(zoo)))] if count < len(zoo) else []
    order = [zoo[i] for i in at] + [c for i, c in enumerate(zoo) if i not in at]
    judges: list[Checkpoint] = []
    problems = []
    for checkpoint in order:
        if len(judges) == min(count, len(zoo)):
            break
        try:
            bench = session.load(checkpoint)
            bench.check(None)
            bench.problem.check()
        except Exception as error:  # whatever is wrong with it, its own row will say
            problems.append(f"{checkpoint.name}: {error}")
        else:
            judges.append(checkpoint)
    if not judges:
        raise ArgumentError(f"expected a checkpoint to choose radii on, but none can be measured: {problems[0]}")
    return judges
