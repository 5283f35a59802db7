"""The Riemannian Hessian as a linear operator, for SciPy's, curvlinops's and our own estimators."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from spiritlevel.core.bare import here
from spiritlevel.errors import ArgumentError, MissingDependencyError
from spiritlevel.geometry import Chart, Geometry
from spiritlevel.problem import Curvature, Matrix, Problem, check_second_derivatives
from spiritlevel.problem.curvature import Engine

__all__ = ["Group", "HessianOperator", "PerLayer", "by_block", "groups_of", "hessian_operator"]

PerLayer = bool | Callable[[str], str]
"""Whether to measure layer by layer; a function of the layer's name gives the name of the group it belongs to."""

_BLOCK = re.compile(r"^(.*?(?:^|[._])\d+)(?=[.:_\s]|$)")


@dataclass(frozen=True)
class Group:
    """Coordinates that are measured together: one layer, or several.

    Attributes:
        name: of the layer, or of the group.
        stretches: where its coordinates lie.
        dimension: how many of them are independent.
    """

    name: str
    stretches: tuple[slice, ...]
    dimension: int


def by_block(name: str) -> str:
    """The block a layer belongs to: its name up to the first number in it.

    >>> by_block("vit.layers.3.attention.q_proj.weight"), by_block("classifier.weight")
    ('vit.layers.3', 'classifier.weight')
    """
    found = _BLOCK.match(name)
    return found.group(1) if found else name


def groups_of(chart: Chart, per_layer: PerLayer) -> dict[str, Group]:
    """The layers of a chart that can move, one by one or joined by name."""
    if not per_layer:
        return {}
    layers, dimensions = chart.layers(), chart.layer_dimensions()
    found: dict[str, Group] = {}
    for name, stretches in layers.items():
        if not dimensions[name]:
            continue
        key = name if per_layer is True else per_layer(name)
        before = found.get(key, Group(key, (), 0))
        found[key] = Group(key, before.stretches + stretches, before.dimension + dimensions[name])
    return found


class HessianOperator(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """Symmetric products with the curvature of ``f(z) = L(Exp_w(z))`` at 0, in orthonormal coordinates of a geometry.

    ``operator @ v`` takes numpy arrays and torch tensors alike, one vector or a matrix of columns. It is a SciPy
    ``LinearOperator``; `to_curvlinops` makes it one of curvlinops's. Vertical directions have curvature 0.

    When the model's weights were edited in the meantime, chart and graph are built anew.

    Attributes:
        chart: the coordinates; `Chart.tangent` takes a vector back to weight space.
        dimension: of the horizontal space.
        products: how many vectors were multiplied.
    """

    def __init__(
        self,
        problem: Problem,
        geometry: Geometry,
        batch: Any = None,
        matrix: Matrix = "hessian",
        engine: Engine = "reverse",
        chart: Chart | None = None,
    ) -> None:
        self.problem, self.geometry = problem, geometry
        self._batch, self._matrix, self._engine = batch, matrix, engine
        self._group: Group | None = None
        self._before = 0
        self._build(chart)
        super().__init__(dtype=np.dtype(str(self.chart.dtype).removeprefix("torch.")), shape=(self.chart.size,) * 2)

    def _build(self, chart: Chart | None = None) -> None:
        self.chart: Chart = self.problem.chart(self.geometry.osculating()) if chart is None else chart
        self._marks = _marks(self.problem)
        self._curvature = Curvature(self.problem, self.chart, self._batch, self._matrix, self._engine)

    @property
    def dimension(self) -> int:
        """Of the horizontal space; inside `only`, of the part of it that belongs to those layers."""
        whole: int = self.chart.dimension
        return whole if self._group is None else self._group.dimension

    @property
    def products(self) -> int:
        """How many vectors were multiplied."""
        return self._before + self._curvature.products

    def apply(self, vectors: Tensor) -> Tensor:
        """Products with the rows of ``(count, size)``, or with one flat vector."""
        if _marks(self.problem) != self._marks:
            self._before += self._curvature.products
            self._build()
        if self._group is None:
            return self._curvature(vectors)
        return self.inside(self._curvature(self.inside(vectors)))

    def inside(self, vectors: Tensor) -> Tensor:
        """The part in the chosen layers; everything outside `only`."""
        if self._group is None:
            return vectors
        kept = torch.zeros_like(vectors)
        for s in self._group.stretches:
            kept[..., s] = vectors[..., s]
        return kept

    def project(self, v: Tensor) -> Tensor:
        """Onto the horizontal space; inside `only`, onto the part of it that belongs to those layers."""
        return self.chart.project(v) if self._group is None else self.chart.partwise(self.inside(v))

    def gaussian(self, generator: torch.Generator) -> Tensor:
        """A standard Gaussian there, the same on every device (for a generator on the CPU)."""
        if self._group is None:
            return self.chart.gaussian(generator)
        return self.project(self.chart.normal(generator))

    @contextmanager
    def only(self, layer: str | Group | None) -> Iterator[None]:
        """The diagonal block of one layer (a name out of ``chart.layers()``) or group, zero elsewhere."""
        if isinstance(layer, str):
            layers = groups_of(self.chart, True)
            if layer not in layers:
                raise ArgumentError(f"expected a layer out of {', '.join(list(layers)[:6])} ...; got {layer!r}")
            layer = layers[layer]
        before, self._group = self._group, layer
        try:
            yield
        finally:
            self._group = before

    def release(self) -> None:
        """Forget the kept graph; the next product builds it again."""
        self._curvature.release()

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Tensor):
            return self.apply(other.mT).mT if other.dim() == 2 else self.apply(other)
        return super().__matmul__(other)

    def _matvec(self, x: Any) -> Any:
        return self._matmat(np.asarray(x).reshape(-1, 1)).reshape(-1)

    def _matmat(self, x: Any) -> Any:
        columns = torch.from_numpy(np.ascontiguousarray(np.asarray(x).T)).to(self.chart.device, self.chart.dtype)
        return self.apply(columns).cpu().numpy().T

    def _adjoint(self) -> HessianOperator:
        return self

    def to_curvlinops(self) -> Any:
        """The same as a curvlinops ``PyTorchLinearOperator`` (needs the package ``curvlinops-for-pytorch``)."""
        try:
            from curvlinops._torch_base import PyTorchLinearOperator
        except ImportError as error:
            raise MissingDependencyError(
                "expected curvlinops to be installed, got none: pip install 'spiritlevel[curvlinops]'"
            ) from error
        ours = self

        class _Wrapped(PyTorchLinearOperator):  # type: ignore[misc]  # its base is only known here
            SELF_ADJOINT = True
            device = property(lambda _: ours.chart.device)
            dtype = property(lambda _: ours.chart.dtype)

            def _matmat(self, x: list[Tensor]) -> list[Tensor]:
                return [ours.apply(x[0].mT).mT]

        return _Wrapped([(self.shape[1],)], [(self.shape[0],)])


def _marks(problem: Problem) -> list[Any]:
    """Changes when weights or buffers are edited, whichever way; of frozen ones too, for the graph holds them all."""
    held = [here(t) for t in (*problem.model.parameters(), *problem.model.buffers())]
    most = max((t.numel() for t in held), default=0)
    ramps = {d: torch.linspace(1, 2, most, device=d) for d in {t.device for t in held}}
    return [(t.data_ptr(), t._version, _weighed(t, ramps[t.device])) for t in held]


def _weighed(t: Tensor, ramp: Tensor) -> float:
    """A sum that sees signs and places too: edits through ``.data`` leave no other trace."""
    if not t.is_floating_point():
        return 0.0
    found = float(t.reshape(-1).float() @ ramp[: t.numel()])
    return found if math.isfinite(found) else 0.0


def hessian_operator(
    problem: Problem,
    geometry: Geometry,
    batch: Any = None,
    *,
    matrix: Matrix = "hessian",
    engine: Engine = "reverse",
) -> HessianOperator:
    """The curvature of the loss in a geometry, as a matrix-free operator.

    At 0 of normal coordinates the Christoffel term vanishes, so this is the Riemannian Hessian away from minima too.
    With `Euclidean` it is the ordinary Hessian of the loss.

    A first operator of a problem checks the second derivatives on one example. Costs one gradient for the graph (for
    each micro-batch and call, where a batch comes in several), then about two for each vector.

    Args:
        problem: model, loss and data.
        geometry: what a unit length is.
        batch: what it is the curvature of; None for all data, weighted by number of loss terms.
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` (of the model's own predictions) or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short (3.3 gradients a vector, Hessian only).

    Raises:
        DerivativeError: where a second derivative is missing or wrong.

    >>> import torch, spiritlevel as sl
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> data = [(torch.ones(4, 1), torch.zeros(4, 1))]
    >>> problem = Problem(model, data, torch.nn.MSELoss())
    >>> float((hessian_operator(problem, sl.Euclidean()) @ torch.ones(1))[0])  # L = w^2
    2.0
    """
    problem.check()
    check_second_derivatives(problem)
    return HessianOperator(problem, geometry, batch, matrix, engine)
