"""Metrics that users have, beyond the entrywise ones: Fisher, Gauss-Newton and empirical Fisher, matrix-free; K-FAC.

Which of them come out right by themselves when autodiff computes them in new parameters (paper, App. C), that is, equal
``J^-T G J^-1`` without transport:

==============================================  ==============================================================
metric                                          by itself under
==============================================  ==============================================================
Fisher, Gauss-Newton, empirical Fisher          every smooth map, without damping
their diagonals                                 maps of single entries
K-FAC                                           linear maps of a layer's inputs and outputs
identity (`Euclidean`)                          isometries
Adam's and RMSProp's root (`from_optimizer`)    changes of sign
any of them with damping added                  isometries
==============================================  ==============================================================

Transported by `TransportedMetric` or `Geometry.transported`, each is right under every map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.core.tensors import dot, norm
from spiritlevel.errors import ArgumentError, ReparametrisationError
from spiritlevel.geometry import Dense, Diagonal, Euclidean, Geometry
from spiritlevel.problem import Curvature, Problem
from spiritlevel.reparam.flat import Layout
from spiritlevel.reparam.maps import Reparametrisation
from spiritlevel.reparam.problem import original_of

__all__ = ["CurvatureMetric", "Form", "Metric", "Transforms", "TransportedMetric", "empirical_fisher", "fisher",
           "gauss_newton"]  # fmt: skip

Kind = Literal["fisher", "gauss_newton", "empirical_fisher"]
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}  # ours: residual of the solve, relative


class Transforms(StrEnum):
    """Under which maps a metric that autodiff computes anew is the transported one."""

    ALWAYS = "every smooth map"
    ENTRYWISE = "maps of single entries"
    LAYERWISE = "linear maps of a layer's inputs and outputs"
    NEVER = "isometries only"


class Form(ABC):
    """A metric at a point: a positive definite matrix known by its products, over flat weights in their order.

    Attributes:
        layout: where each parameter lies.
    """

    def __init__(self, problem: Problem) -> None:
        self.layout = Layout(problem.weights)

    @abstractmethod
    def product(self, v: Tensor) -> Tensor:
        """``G v``."""

    def solve(self, w: Tensor) -> Tensor:
        """``G^-1 w``, by conjugate gradients to 1e-12 (1e-6 in float32)."""
        tolerance = _TOLERANCE.get(w.dtype, 1e-6) * norm(w)
        x, residual, direction = torch.zeros_like(w), w.clone(), w.clone()
        square = dot(residual, residual)
        for _ in range(10 * self.layout.size):
            if square**0.5 <= tolerance:
                return x
            image = self.product(direction)
            curvature = dot(direction, image)
            if not curvature > 1e-14 * norm(image) * norm(direction):
                raise self._singular(direction, curvature)
            step = square / curvature
            x, residual = x + step * direction, residual - step * image
            before, square = square, dot(residual, residual)
            direction = residual + square / before * direction
        raise self._singular(residual, 0.0)

    def matrix(self) -> Tensor:
        """The dense matrix, symmetric to the last digit."""
        weights = self.layout.size
        columns = torch.stack([self.product(e) for e in torch.eye(weights, dtype=self._dtype, device=self._device)])
        return (columns + columns.mT) / 2

    @property
    @abstractmethod
    def _dtype(self) -> torch.dtype: ...

    @property
    @abstractmethod
    def _device(self) -> torch.device: ...

    def _singular(self, direction: Tensor, curvature: float) -> ReparametrisationError:
        """Names the parameter that has the largest part of a direction of length 0."""
        parts = {n: norm(direction[s]) for n, s in self.layout.slices().items()}
        name = max(parts, key=lambda n: parts[n])
        return ReparametrisationError(
            f"expected a positive definite metric, but it is singular along {name!r} (squared length "
            f"{curvature:.3g} there): add damping, or freeze what the data do not determine"
        )


class Metric(ABC):
    """A positive definite bilinear form at the weights of a problem.

    Attributes:
        transforms: under which maps it comes out right by itself.
    """

    transforms = Transforms.NEVER

    @abstractmethod
    def at(self, problem: Problem) -> Form:
        """The form at the problem's weights."""

    @property
    def lines(self) -> Geometry:
        """The geometry whose straight lines the metric is constant along."""
        return Euclidean()

    def geometry(self, problem: Problem) -> Geometry:
        """A geometry for every measure, from the dense matrix: small networks only."""
        form = self.at(problem)
        matrix = form.matrix()
        values, vectors = torch.linalg.eigh(matrix)
        if not float(values[0]) > 1e-14 * float(values[-1]):
            raise form._singular(vectors[:, 0], float(values[0]))
        return Dense(matrix)

    def transported(self, change: Reparametrisation) -> TransportedMetric:
        """The same metric for somebody whose parameters are ``change(theta)``."""
        return TransportedMetric(self, change)


class _CurvatureForm(Form):
    def __init__(self, problem: Problem, kind: Kind, damping: float) -> None:
        super().__init__(problem)
        chart = problem.chart(Euclidean())
        self._curvature, self._damping = Curvature(problem, chart, matrix=kind), damping
        if problem.count() == 1:  # one batch keeps its graph
            self._curvature = Curvature(problem, chart, next(problem.batches()), kind)

    @property
    def _dtype(self) -> torch.dtype:
        return self._curvature.chart.dtype

    @property
    def _device(self) -> torch.device:
        return self._curvature.chart.device

    def product(self, v: Tensor) -> Tensor:
        product = self._curvature(v)
        return product + self._damping * v if self._damping else product


@dataclass(frozen=True)
class CurvatureMetric(Metric):
    """A curvature matrix as a metric: ``G = C + damping I``, by products.

    Mean over loss terms, as the loss is. Without damping it is singular wherever there are more weights than the data
    determine (always, for an overparametrised network), and then it is no metric.

    Args:
        kind: ``fisher`` (of the model's own predictions), ``gauss_newton`` or ``empirical_fisher``.
        damping: added to the diagonal, from 0 on; what makes it positive definite and breaks its own transformation.
    """

    kind: Kind = "fisher"
    damping: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.kind not in ("fisher", "gauss_newton", "empirical_fisher"):
            raise ArgumentError(f"expected 'fisher', 'gauss_newton' or 'empirical_fisher', got {self.kind!r}")
        if not 0 <= self.damping < float("inf"):
            raise ArgumentError(f"expected a damping from 0 on, got {self.damping!r}")

    @property
    def transforms(self) -> Transforms:  # type: ignore[override]  # depends on the damping
        return Transforms.NEVER if self.damping else Transforms.ALWAYS

    def at(self, problem: Problem) -> Form:
        problem.check()
        return _CurvatureForm(problem, self.kind, self.damping)

    def diagonal(self, problem: Problem) -> Diagonal:
        """Its diagonal alone, exactly: one product for each weight. By itself right under maps of single entries."""
        form = self.at(problem)
        entries = form.matrix().diagonal()
        bad = int((entries <= 0).sum())
        if bad:
            raise form._singular((entries <= 0).to(entries.dtype), float(entries.min()))
        return Diagonal({n: t.clone() for n, t in form.layout.named(entries.contiguous()).items()})


def fisher(damping: float = 0.0) -> CurvatureMetric:
    """The Fisher matrix of the model's own predictions; what natural gradient steps in."""
    return CurvatureMetric("fisher", damping)


def gauss_newton(damping: float = 0.0) -> CurvatureMetric:
    """The generalised Gauss-Newton matrix ``J^T H J``; the Fisher matrix of every exponential family."""
    return CurvatureMetric("gauss_newton", damping)


def empirical_fisher(damping: float = 0.0) -> CurvatureMetric:
    """``mean g_i g_i^T`` over the gradients of single loss terms."""
    return CurvatureMetric("empirical_fisher", damping)


@dataclass(frozen=True)
class TransportedMetric(Metric):
    """``J^-T G J^-1``: a metric of ``theta`` for a problem whose parameters are ``psi``.

    The form is given over ``theta``, along whose straight lines it is constant, so that it is right for redundant maps
    too and costs what the original does; `Transport.metric` writes it out over ``psi``.

    Args:
        original: the metric of ``theta``.
        change: ``theta -> psi``.
    """

    original: Metric
    change: Reparametrisation

    transforms = Transforms.ALWAYS

    def at(self, problem: Problem) -> Form:
        return self.original.at(original_of(problem, self.change))

    @property
    def lines(self) -> Geometry:
        return self.original.lines.transported(self.change)

    def geometry(self, problem: Problem) -> Geometry:
        return self.original.geometry(original_of(problem, self.change)).transported(self.change)

    def __str__(self) -> str:
        return f"{self.original} transported by {self.change}"
