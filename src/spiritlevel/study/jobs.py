"""What is done with a loaded checkpoint: each job makes one or more units in one pass.

A job that is asked for some of its units only gives the same numbers as if it had been asked for all: what a unit's
number depends on stands in its settings, and nothing else does.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from spiritlevel.core.results import Measurement
from spiritlevel.errors import RanksError
from spiritlevel.geometry import Quotient
from spiritlevel.measures import MEASURES, CurvatureOptions, Options
from spiritlevel.study.config import Measure, StudyConfig
from spiritlevel.study.identity import identity
from spiritlevel.study.session import MEASURED, TRAIN, Bench, Session
from spiritlevel.study.units import Column, Outcome

__all__ = ["Job", "jobs_of", "measure_settings", "measured"]


class Job(ABC):
    """Units that one pass makes together."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """What it makes, in the order of the table."""

    def ladder(self) -> tuple[Measure, tuple[float, ...]] | None:
        """The measure behind it with all its radii, where there is one."""
        return None

    @abstractmethod
    def outcomes(self, bench: Bench, wanted: Collection[str]) -> Iterator[tuple[str, Outcome]]:
        """The wanted outcomes by settings hash. Failures are outcomes too."""


@dataclass(frozen=True)
class _MeasureJob(Job):
    """A measure at all its radii, from small to large; each search starts from the maximiser at the radius below.

    Attributes:
        measure: its settings.
        radii: as numbers; empty for a measure without.
        settings: what fixes the numbers apart from the radii.
    """

    measure: Measure
    radii: tuple[float, ...]
    settings: Mapping[str, Any]

    def ladder(self) -> tuple[Measure, tuple[float, ...]]:
        return self.measure, self.radii

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        name = f"complexity.{self.measure.name}"
        if not self.radii:
            return (Column(name, self.settings),)
        ladders = [self.radii[: i + 1] for i in range(len(self.radii))]
        return tuple(Column(f"{name}@{up[-1]:g}", {**self.settings, "rho": list(up)}) for up in ladders)

    def outcomes(self, bench: Bench, wanted: Collection[str]) -> Iterator[tuple[str, Outcome]]:
        asked = 1 + max(i for i, c in enumerate(self.columns) if c.key in wanted)
        out: dict[str, Outcome] = {}
        while asked:  # a radius that fails must not take the smaller ones with it
            columns, began = self.columns[:asked], time.perf_counter()
            try:
                found = measured(bench, self.measure, self.radii[:asked])
                out |= {c.key: Outcome.of(m) for c, m in zip(columns, found, strict=True)}
                break
            except RanksError:  # nothing can be measured without the other ranks
                raise
            except Exception as error:  # whatever a user's model does, the study goes on
                asked -= 1
                out[columns[-1].key] = Outcome.failed(error, time.perf_counter() - began)
        yield from ((c.key, out[c.key]) for c in self.columns if c.key in wanted)


@dataclass(frozen=True)
class _ScoreJob(Job):
    """Loss and errors on one set, and how many more errors than on the training data.

    Attributes:
        name: of the set.
        settings: what fixes its numbers.
        train: what fixes those of the training data.
        errors: whether there are errors to count.
    """

    name: str
    settings: Mapping[str, Any]
    train: Mapping[str, Any]
    errors: bool

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        parts: dict[str, Mapping[str, Any]] = {"loss": self.settings}
        if self.errors:
            parts["error"] = self.settings
            if self.name != TRAIN:
                parts["gap"] = {**self.settings, "train": self.train}
        return tuple(Column(f"gen.{self.name}_{what}", {"what": what, **s}) for what, s in parts.items())

    def outcomes(self, bench: Bench, wanted: Collection[str]) -> Iterator[tuple[str, Outcome]]:
        makers: tuple[Callable[[Bench], tuple[float, tuple[float, ...]]], ...] = (self._loss, self._error, self._gap)
        for column, make in zip(self.columns, makers, strict=False):
            if column.key not in wanted:
                continue
            began = time.perf_counter()
            try:
                value, per_batch = make(bench)
            except Exception as error:  # as above
                yield column.key, Outcome.failed(error, time.perf_counter() - began)
                continue
            seconds, size = time.perf_counter() - began, bench.scores(self.name).size
            if not math.isfinite(value):
                yield column.key, Outcome.failed(f"expected a finite number, got {value}", seconds)
                continue
            yield column.key, Outcome(value, per_batch, seconds=seconds, stats={"examples": size})

    def _loss(self, bench: Bench) -> tuple[float, tuple[float, ...]]:
        scores = bench.scores(self.name)
        return scores.loss, scores.losses

    def _error(self, bench: Bench) -> tuple[float, tuple[float, ...]]:
        scores = bench.scores(self.name)
        if scores.uncounted is not None:
            raise scores.uncounted
        return scores.error, scores.errors

    def _gap(self, bench: Bench) -> tuple[float, tuple[float, ...]]:
        scores, train = bench.scores(self.name), bench.scores(TRAIN)
        if scores.uncounted or train.uncounted:
            raise scores.uncounted or train.uncounted  # type: ignore[misc]  # one of them is an error
        return scores.error - train.error, tuple(e - train.error for e in scores.errors)


@dataclass(frozen=True)
class _NormJob(Job):
    """The norm of all weights."""

    builder: str | None

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column("complexity.parameter-norm", {"what": "parameter norm", "builder": self.builder}),)

    def outcomes(self, bench: Bench, wanted: Collection[str]) -> Iterator[tuple[str, Outcome]]:
        del wanted
        value = bench.norm
        key = self.columns[0].key
        yield key, Outcome(value) if math.isfinite(value) else Outcome.failed(f"expected finite weights, got {value}")


def measured(bench: Bench, measure: Measure, radii: tuple[float, ...]) -> list[Measurement]:
    """A measure of the study at the given radii, from small to large, one measurement for each."""
    ahead = bench.measured.get(measure.name)
    if ahead is not None:
        return ahead[: max(len(radii), 1)]
    seed = bench.session.config.seed if measure.seed is None else measure.seed
    torch.manual_seed(seed)  # for models and losses that draw from torch's own generator
    space = measure.space
    options = Options(
        rho=radii,
        geometry=space,
        quotient=space if isinstance(space, Quotient) else Quotient(),
        solver=measure.search,
        samples=measure.samples,
        seed=seed,
        curvature=CurvatureOptions() if measure.curvature is None else measure.curvature.build(),
    )
    return MEASURES[measure.measure].run(bench.problem, options)


def jobs_of(session: Session, radii: Mapping[str, tuple[float, ...]]) -> tuple[Job, ...]:
    """Everything a study does with one checkpoint.

    Args:
        session: with the data loaded.
        radii: of each measure by name, chosen or given.
    """
    config = session.config
    common = _common(config)
    scores = {
        name: {**common, "errors": config.data.errors, "data": session.fingerprints[name]}
        for name in (TRAIN, *config.data.tests)
    }
    for name, given in config.data.scores.items():
        scores[name]["scores"] = identity(given)
    jobs: list[Job] = [_ScoreJob(n, s, scores[TRAIN], config.data.errors) for n, s in scores.items()]
    jobs.append(_NormJob(identity(config.zoo.builder)))
    for m in config.measures:
        jobs.append(_MeasureJob(m, tuple(sorted(radii[m.name])), measure_settings(session, m)))
    return tuple(jobs)


def _common(config: StudyConfig) -> dict[str, Any]:
    """What fixes all numbers that a model and data are needed for."""
    return {
        "builder": identity(config.zoo.builder),
        "loss": identity(config.loss.function),
        "normalize_logits": config.loss.normalize_logits,
        "micro": config.batches.micro,
        "device": config.device.partition(":")[0],
    }


def measure_settings(session: Session, measure: Measure) -> dict[str, Any]:
    """What fixes a measure, apart from its radii."""
    config = session.config
    curvature = {} if measure.curvature is None else measure.curvature.model_dump(exclude_none=True)
    return {
        **({"curvature": curvature} if curvature else {}),
        "what": measure.measure,
        "geometry": None if measure.space is None else str(measure.space),
        "solver": None if measure.search is None else str(measure.search),
        "samples": measure.samples,
        "seed": config.seed if measure.seed is None else measure.seed,
        "data": session.fingerprints[MEASURED],
        **_common(config),
    }
