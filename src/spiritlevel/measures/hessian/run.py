"""What all curvature measures share: the operators to go over, progress, and the result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from spiritlevel.core.progress import Advance, progress
from spiritlevel.core.results import Measurement, Status, standard_error, worst
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Geometry
from spiritlevel.measures.common import Over, base_settings
from spiritlevel.measures.hessian.operator import HessianOperator, hessian_operator
from spiritlevel.problem import Matrix, Problem
from spiritlevel.problem.curvature import Engine

__all__ = ["Layer", "LayeredMeasurement", "Run", "check_counts", "directions", "signs"]


@dataclass(frozen=True)
class Layer:
    """A measure of the diagonal block of one layer.

    Attributes:
        name: of a parameter, or of a block of the quotient.
        value: of the measure.
        standard_error: of the estimate; None where there is none.
        coordinates: how many belong to the layer.
        details: more numbers of the same layer (further eigenvalues, other orders).
    """

    name: str
    value: float
    standard_error: float | None
    coordinates: int
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


class Run:
    """One measurement: operators one by one, the time, and what they gave.

    Args:
        name: of the measure.
        problem: model, loss and data.
        geometry: what a unit length is.
        over: one operator for all data (``union``), or one for each batch.
        matrix: which curvature.
        engine: how products are computed.
        products: expected for each operator, for the progress bar.
        show_progress: force the progress bar on or off.
    """

    def __init__(
        self,
        name: str,
        problem: Problem,
        geometry: Geometry,
        over: Over,
        matrix: Matrix,
        engine: Engine,
        products: int,
        show_progress: bool | None,
    ) -> None:
        if over not in ("batches", "union"):
            raise ArgumentError(f"expected over='batches' or over='union', got {over!r}")
        self.name, self.problem, self.geometry, self.over = name, problem, geometry, over
        self._matrix, self._engine, self._expected, self._show = matrix, engine, products, show_progress
        self._began = time.perf_counter()
        self._advance: Advance = lambda note="", steps=1: None
        self.spent = 0
        self.values: list[float] = []
        self.errors: list[float | None] = []
        self.states: list[Status] = []
        self.chart: Any = None

    def operators(self) -> Iterator[HessianOperator]:
        """The matrices to measure; the graph of one is released before the next is built."""
        count = self.problem.count() if self.over == "batches" else 1
        total = None if count is None else count * self._expected
        with progress(self.name, total, self._show) as self._advance:
            for batch in self._batches():
                kind = {"matrix": self._matrix, "engine": self._engine}
                if self.chart is None:
                    operator = hessian_operator(self.problem, self.geometry, batch, **kind)  # type: ignore[arg-type]
                else:
                    operator = HessianOperator(self.problem, self.geometry, batch, **kind, chart=self.chart)  # type: ignore[arg-type]
                self.chart, before = operator.chart, self.spent
                yield operator
                operator.release()
                self._advance(steps=max(self._expected - (self.spent - before), 0))

    def _batches(self) -> Iterator[Any]:
        """Batches one by one; for all data None, or the only batch, whose graph can be kept."""
        batches = self.problem.batches()
        if self.over == "batches":
            yield from batches
            return
        first = next(batches)
        yield first if next(batches, None) is None else None

    def step(self, products: int = 1) -> Any:
        """A callback for solvers: so many products were made; a few words on the estimate."""

        def done(note: str) -> None:
            self.spent += products
            self._advance(note, products)

        return done

    def add(self, value: float, error: float | None, status: Status) -> None:
        """The result for one operator."""
        self.values.append(value)
        self.errors.append(error)
        self.states.append(status)

    @property
    def block(self) -> int:
        """How many vectors to multiply at once: several where a graph serves only one call."""
        kept = self.over == "batches" or self.problem.count() == 1
        return 1 if kept and self.problem.micro_batch is None else 8

    def facts(self, products: int) -> dict[str, Any]:
        """What was done, for the stats of the result."""
        return {
            "products": products,
            "self-check": self.problem.self_checked,
            "seconds": time.perf_counter() - self._began,
        }

    def settings(self, **own: Any) -> dict[str, Any]:
        """Everything that fixes the number."""
        base = base_settings(self.problem, self.geometry, self.chart, self.over)
        return {**own, "matrix": self._matrix, "engine": self._engine, **base}

    def combined_error(self) -> float | None:
        """Standard error of the mean over operators, as far as sampling goes; else over batches."""
        if any(e is not None for e in self.errors):
            return math.sqrt(math.fsum((e or 0.0) ** 2 for e in self.errors)) / len(self.errors)
        return standard_error(self.values)

    def result(
        self, stats: Mapping[str, Any], settings: Mapping[str, Any], layers: Sequence[Layer] = ()
    ) -> LayeredMeasurement:
        """The mean over operators."""
        return LayeredMeasurement(
            name=self.name,
            value=fmean(self.values),
            per_batch=tuple(self.values),
            standard_error=self.combined_error(),
            status=worst(self.states),
            stats=stats,
            settings=settings,
            layers=tuple(layers),
        )


def signs(operator: HessianOperator, seed: int) -> Iterator[Tensor]:
    """Vectors of random signs, the same on every device; vertical parts are harmless, the matrix is 0 there."""
    generator, chart = torch.Generator().manual_seed(seed), operator.chart
    while True:
        v = torch.randint(0, 2, (chart.size,), generator=generator, dtype=torch.int8)
        yield operator.inside((v * 2 - 1).to(chart.device, chart.dtype))


def directions(operator: HessianOperator, seed: int) -> Iterator[Tensor]:
    """Standard Gaussians on the horizontal space, or on one layer of it."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield operator.inside(operator.chart.gaussian(generator))


def check_counts(**counts: int) -> None:
    """Whole numbers from 1 on."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"expected {name} to be a whole number from 1 on, got {value!r}")
