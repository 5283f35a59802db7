"""What all curvature measures share: the matrices to go over, layers, progress, stopping, and the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch import Tensor

from spiritlevel.core.progress import Advance, progress
from spiritlevel.core.results import Measurement, Status, standard_error, worst
from spiritlevel.core.spread import same
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over, base_settings
from spiritlevel.measures.hessian.operator import Group, HessianOperator, PerLayer, groups_of, hessian_operator
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Found", "How", "Layer", "LayeredMeasurement", "Run", "check_counts", "directions", "settled", "signs"]

_SETTLED = 1e-3  # ours: a relative change below which more Lanczos steps are not worth asking for


@dataclass(frozen=True)
class Layer:
    """A measure of the diagonal block of one layer, or of several joined.

    Attributes:
        name: of a parameter, of a block of the quotient, or of the group.
        value: of the measure.
        standard_error: of the estimate; None where there is none.
        dimension: how many independent coordinates belong to it.
        details: more numbers of the same layer (further eigenvalues, other orders).
    """

    name: str
    value: float
    standard_error: float | None
    dimension: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**self.__dict__, "details": dict(self.details)}


@dataclass(frozen=True)
class LayeredMeasurement(Measurement):
    """A measured number, and the same for each layer where that was asked for.

    Attributes:
        layers: in the order of the coordinates; empty where not asked for.
    """

    layers: tuple[Layer, ...] = ()

    @property
    def drawable(self) -> bool:
        """Whether there is a figure of it."""
        return bool(self.layers)

    def figure(self) -> Figure:
        """One bar for each layer."""
        from spiritlevel.measures.hessian.figures import layer_figure

        return layer_figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**super().to_dict(), "layers": [x.to_dict() for x in self.layers]}

    def __rich__(self) -> Table:
        table = super().__rich__()
        if self.layers:
            table.add_section()
            for x in self.layers:
                error = "" if x.standard_error is None else f" ± {x.standard_error:.2g}"
                table.add_row(x.name, f"{x.value:.6g}{error}")
        return table


@dataclass(frozen=True)
class How:
    """What the user chose and every curvature measure takes.

    Attributes:
        matrix: which curvature.
        engine: how products are computed.
        over: one matrix for all data (``union``), or one for each batch.
        seed: of everything random.
        seconds: no further product after this time.
        show_progress: force the progress bar on or off.
    """

    matrix: Matrix
    engine: Engine
    over: Over
    seed: int
    seconds: float | None
    show_progress: bool | None

    def __post_init__(self) -> None:
        """Check what no one below checks."""
        if self.over not in ("batches", "union"):
            raise ArgumentError(f"expected over='batches' or over='union', got {self.over!r}")
        if self.seconds is not None and not self.seconds > 0:
            raise ArgumentError(f"expected a time in seconds above 0, got {self.seconds!r}")


@dataclass(frozen=True)
class Found:
    """What was found for one matrix, or for one layer of it.

    Attributes:
        value: of the measure.
        error: standard error of the estimate; None where there is none.
        status: how it ended.
        products: how many vectors were multiplied.
        detail: what the solver gave.
        layers: the same for each layer.
    """

    value: float
    error: float | None
    status: Status
    products: int
    detail: Any = None
    layers: Mapping[str, Found] = field(default_factory=dict)


class Run:
    """One measurement: matrices and layers one by one, until all are done, the time is up, or somebody stops it.

    Args:
        name: of the measure.
        problem: model, loss and data.
        geometry: what a unit length is.
        how: the settings all measures have.
        products: expected for each matrix or layer, for the progress bar.
        per_layer: also layer by layer.
        names: which layers; None for all that can move.
    """

    def __init__(
        self,
        name: str,
        problem: Problem,
        geometry: Geometry,
        how: How,
        products: int,
        per_layer: PerLayer = False,
        names: Sequence[str] | None = None,
    ) -> None:
        self.name, self.problem, self.geometry, self.how = name, problem, geometry, how
        self._expected, self._per_layer, self._names = products, per_layer, names
        self._began = time.perf_counter()
        self._advance: Advance = lambda note="", steps=1: None
        self.chart: Any = None
        self.groups: dict[str, Group] = {}
        self.found: list[Found] = []
        self._ended: Status | None = None

    def measure(
        self, f: Callable[[HessianOperator, int], Found], *, whole: bool = True, split: bool = True
    ) -> list[Found]:
        """``f`` of each matrix and a seed, and of each layer of it.

        Args:
            f: what is measured; within a layer the operator is restricted to it.
            whole: also of the matrix itself; otherwise only of its layers.
            split: of each layer by itself; otherwise ``f`` sees to the layers.
        """
        with self.problem.measuring(f"{self.name}, {self.geometry}, {self.how}, {self._expected} products"):
            self._measure(f, whole, split)
        if not self.found:
            raise KeyboardInterrupt
        return self.found

    def _measure(self, f: Callable[[HessianOperator, int], Found], whole: bool, split: bool) -> None:
        for i, operator in enumerate(self._operators()):
            found: Found | None = None
            layers: dict[str, Found] = {}
            try:
                if whole:
                    found = self._heeded(f(operator, self.how.seed + i))
                for group in self.groups.values() if split else ():
                    if self._time_is_up() and (found or layers):
                        break
                    with operator.only(group):
                        layers[group.name] = self._heeded(f(operator, self.how.seed + i))
            except KeyboardInterrupt:
                self._ended = Status.STOPPED
            if found is None and layers and (not self.found or len(layers) == len(self.groups)):
                found = Found(math.nan, None, worst([x.status for x in layers.values()]), 0)
            if found is not None:
                self.found.append(replace(found, layers=layers) if split else found)

    def _heeded(self, found: Found) -> Found:
        """A solver that was stopped by hand has swallowed the interrupt: nothing more is begun."""
        if found.status is Status.STOPPED:
            self._ended = Status.STOPPED
        return found

    def _time_is_up(self) -> bool:
        if self._ended is None and self.left is not None and same(self.left <= 0):
            self._ended = Status.BUDGET
        return self._ended is not None

    def _operators(self) -> Iterator[HessianOperator]:
        """The matrices to measure; the graph of one is released before the next is built."""
        kind = {"matrix": self.how.matrix, "engine": self.how.engine}
        batches = self._batches()
        operator = hessian_operator(self.problem, self.geometry, next(batches), **kind)  # type: ignore[arg-type]
        self.chart, self.groups = operator.chart, self._chosen(groups_of(operator.chart, self._per_layer))
        count = self.problem.count() if self.how.over == "batches" else 1
        total = None if count is None else count * self._expected * (1 + len(self.groups))
        with progress(self.name, total, self.how.show_progress) as self._advance:
            yield operator
            operator.release()
            for batch in batches:
                if self._time_is_up():
                    break
                operator = HessianOperator(self.problem, self.geometry, batch, **kind, chart=self.chart)  # type: ignore[arg-type]
                yield operator
                operator.release()

    def _batches(self) -> Iterator[Any]:
        """Batches one by one; for all data None, or the only batch, whose graph can be kept."""
        batches = self.problem.batches()
        if self.how.over == "batches":
            yield from batches
            return
        first = next(batches)
        yield first if next(batches, None) is None else None

    def _chosen(self, groups: dict[str, Group]) -> dict[str, Group]:
        if self._names is None:
            return groups
        unknown = [n for n in self._names if n not in groups]
        if unknown:
            raise ArgumentError(f"expected layers out of {', '.join(list(groups)[:6])} ...; got {unknown[:3]}")
        return {n: groups[n] for n in self._names}

    @property
    def left(self) -> float | None:
        """Seconds that are left; None for no limit."""
        return None if self.how.seconds is None else self.how.seconds - (time.perf_counter() - self._began)

    def step(self, products: int = 1) -> Callable[[str], None]:
        """A callback for solvers: so many products were made; a few words on the estimate."""
        return lambda note: self._advance(note, products)

    @property
    def block(self) -> int:
        """How many vectors to multiply at once: several where a graph serves only one call."""
        kept = self.how.over == "batches" or self.problem.count() == 1
        return 1 if kept and self.problem.micro_batch is None else 8

    def layers(self, details: Callable[[list[Found]], Mapping[str, Any]] = lambda found: {}) -> list[Layer]:
        """The means over matrices, layer by layer.

        Args:
            details: more to say about a layer.
        """
        every = [f for f in self.found if f.layers]
        names = [n for n in self.groups if every and all(n in f.layers for f in every)]
        result = []
        for n in names:
            each = [f.layers[n] for f in every]
            value, error = fmean(x.value for x in each), _combined(each)
            result.append(Layer(n, value, error, self.groups[n].dimension, details(each)))
        return result

    def result(
        self,
        stats: Mapping[str, Any],
        own: Mapping[str, Any],
        layers: Sequence[Layer] | None = None,
        error: float | None = None,
    ) -> LayeredMeasurement:
        """The mean over matrices.

        Args:
            stats: what the solver did, apart from products and time.
            own: settings that only this measure has.
            layers: by default those of `layers`.
            error: by default the estimates' own together, else that over batches.
        """
        everything = [x for f in self.found for x in (f, *f.layers.values())]
        states = [x.status for x in everything] + ([self._ended] if self._ended else [])
        facts = {
            "products": sum(x.products for x in everything),
            "self-check": self.problem.self_checked,
            "seconds": time.perf_counter() - self._began,
        }
        kind = {"matrix": self.how.matrix, "engine": self.how.engine}
        base = base_settings(self.problem, self.geometry, self.chart, self.how.over)
        return LayeredMeasurement(
            name=self.name,
            value=fmean(f.value for f in self.found),
            per_batch=tuple(f.value for f in self.found),
            standard_error=_combined(self.found) if error is None else error,
            status=worst(states),
            stats={**stats, **facts},
            settings={**own, "seed": self.how.seed, **kind, **base},
            layers=tuple(self.layers() if layers is None else layers),
        )


def _combined(found: Sequence[Found]) -> float | None:
    """Standard error of the mean over matrices, as far as sampling goes; else over batches."""
    if any(x.error is not None for x in found):
        return math.sqrt(math.fsum((x.error or 0.0) ** 2 for x in found)) / len(found)
    return standard_error([x.value for x in found])


def signs(operator: HessianOperator, seed: int) -> Iterator[Tensor]:
    """Vectors of random signs, the same on every device; vertical parts are harmless, the matrix is 0 there."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield operator.inside(operator.chart.signs(generator))


def directions(operator: HessianOperator, seed: int) -> Iterator[Tensor]:
    """Standard Gaussians on the horizontal space, or on one layer of it."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield operator.gaussian(generator)


def settled(m: LayeredMeasurement, change: float) -> LayeredMeasurement:
    """The measurement with the change that the last third of its Lanczos steps made.

    The standard error knows of the probes only. Where the change is larger, the steps were too few: ``budget``.
    """
    stats = {**m.stats, "change in the last third of the steps": change}
    enough = change <= max(m.standard_error or 0.0, _SETTLED * abs(m.value))
    return replace(m, stats=stats, status=m.status if enough else worst([m.status, Status.BUDGET]))


def check_counts(**counts: int) -> None:
    """Whole numbers from 1 on."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"expected {name} to be a whole number from 1 on, got {value!r}")
