"""Products with the curvature of the pulled-back loss, matrix-free.

The Hessian of ``f(z) = L(Exp_w(z))`` at 0 is the Riemannian Hessian on the horizontal space (normal coordinates: the
Christoffel term vanishes). The engine is reverse over reverse on a kept gradient graph: one gradient with its graph,
then about two gradients' time for each vector, which is the floor. Nested forward mode is offered where memory is
short: forward over reverse, and never the other nestings, which torch 2.13 gets wrong at normalisation layers.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad, jvp

from spiritlevel.core.evaluation import twice_differentiable
from spiritlevel.core.losses import CrossEntropy, logits_of
from spiritlevel.core.registry import Registry
from spiritlevel.core.spread import all_finite
from spiritlevel.errors import ArgumentError, DerivativeError, LossError
from spiritlevel.geometry import Chart
from spiritlevel.problem.problem import Problem

__all__ = ["MATRICES", "Curvature", "Engine", "Matrix", "Products", "second_derivatives"]

Matrix = Literal["hessian", "gauss_newton", "fisher", "empirical_fisher"]
Engine = Literal["reverse", "forward"]


class Products(ABC):
    """``v -> A v`` for one micro-batch, on a graph that is kept.

    Args:
        problem: model, loss and data.
        chart: coordinates.
        part: the micro-batch.
        share: its share in the mean.
    """

    def __init__(self, problem: Problem, chart: Chart, part: Any, share: float) -> None:
        self.share = share
        self.z = chart.zeros().requires_grad_()
        output, loss = problem.judged(chart.weights(self.z), part)
        self.value = float(loss.detach()) * share
        self._build(problem, part, output, loss)

    @abstractmethod
    def _build(self, problem: Problem, part: Any, output: Any, loss: Tensor) -> None:
        """Keep what a product needs."""

    @abstractmethod
    def __call__(self, v: Tensor) -> Tensor:
        """One product, with the share in it."""

    def _pulled(self, outputs: Tensor, seed: Tensor | None = None, *, graph: bool = False) -> Tensor:
        """The gradient in ``z``."""
        (g,) = torch.autograd.grad(outputs, self.z, seed, create_graph=graph, retain_graph=True, materialize_grads=True)
        return g


MATRICES: Registry[type[Products]] = Registry("curvature matrix")


@MATRICES.register("hessian")
class _Hessian(Products):
    """Second derivatives of the loss."""

    def _build(self, problem: Problem, part: Any, output: Any, loss: Tensor) -> None:
        if not loss.requires_grad:
            self.gradient = torch.zeros_like(self.z, requires_grad=False)
            return
        self.gradient = self._pulled(loss * self.share, graph=True)

    def __call__(self, v: Tensor) -> Tensor:
        if not self.gradient.requires_grad:  # linear in the weights, or independent of them
            return torch.zeros_like(v)
        return self._pulled(self.gradient, v)


class _Linearised(Products):
    """``J^T M J`` with J the derivative of ``self.outputs`` in ``z``, which is kept as a graph linear in ``self.u``."""

    outputs: Tensor

    def _linearise(self, outputs: Tensor) -> None:
        if not outputs.requires_grad:
            raise DerivativeError("expected outputs that depend on the measured weights, got constant ones")
        self.outputs = outputs
        self.u = torch.zeros_like(outputs).requires_grad_()
        self.transposed = self._pulled(outputs, self.u, graph=True)

    def _pushed(self, v: Tensor) -> Tensor:
        (pushed,) = torch.autograd.grad(self.transposed, self.u, v, retain_graph=True, materialize_grads=True)
        return pushed


@MATRICES.register("gauss_newton")
class _GaussNewton(_Linearised):
    """``J^T H J``, J the derivative of the model's scores, H the Hessian of the loss in them."""

    def _build(self, problem: Problem, part: Any, output: Any, loss: Tensor) -> None:
        scores = logits_of(output)
        self._linearise(scores)
        (self.slope,) = torch.autograd.grad(loss * self.share, scores, create_graph=True, allow_unused=True)
        if self.slope is None:
            raise LossError("expected a loss computed from the model's scores, got one that does not depend on them")

    def __call__(self, v: Tensor) -> Tensor:
        if not self.slope.requires_grad:  # the loss is linear in the scores
            return torch.zeros_like(v)
        (bent,) = torch.autograd.grad(
            self.slope, self.outputs, self._pushed(v), retain_graph=True, materialize_grads=True
        )
        return self._pulled(self.outputs, bent)


@MATRICES.register("fisher")
class _Fisher(_GaussNewton):
    """The Fisher matrix of the model's own predictions; for cross-entropy it is the Gauss-Newton matrix."""

    def _build(self, problem: Problem, part: Any, output: Any, loss: Tensor) -> None:
        if not isinstance(problem.loss, CrossEntropy):
            raise ArgumentError(
                f"expected cross-entropy for the Fisher matrix, got {problem.loss}: take matrix='gauss_newton', which "
                "is the Fisher matrix of every exponential family in its natural parameters"
            )
        super()._build(problem, part, output, loss)


@MATRICES.register("empirical_fisher")
class _EmpiricalFisher(_Linearised):
    """``mean g_i g_i^T`` over loss terms (one for each target), ``g_i`` the gradient of one term."""

    def _build(self, problem: Problem, part: Any, output: Any, loss: Tensor) -> None:
        terms = _terms(problem, part, output, float(loss.detach()))
        self._linearise(terms)
        self._weight = self.share / len(terms)

    def __call__(self, v: Tensor) -> Tensor:
        return self._pulled(self.outputs, self._pushed(v) * self._weight)


def _terms(problem: Problem, part: Any, output: Any, mean: float) -> Tensor:
    """The terms of the loss one by one; their mean is the loss."""
    if isinstance(problem.loss, CrossEntropy):
        for shift in (0, 1):  # transformers' language models predict the next token
            try:
                terms = problem.loss.each(output, part, shift)
            except (RuntimeError, IndexError, ValueError):
                continue
            if len(terms) and abs(float(terms.detach().mean()) - mean) <= 1e-4 * max(abs(mean), 1.0):
                return terms
    raise LossError(
        f"expected a mean of cross-entropy terms for the empirical Fisher matrix, got {problem.loss}: take "
        "matrix='gauss_newton'"
    )


class _Forward:
    """Hessian products by forward over reverse: nothing is kept, a product costs about 3.3 gradients."""

    def __init__(self, problem: Problem, chart: Chart, part: Any, share: float) -> None:
        self._function = grad(lambda z: problem.tensor(chart.weights(z), part) * share)
        self._zero = chart.zeros()

    def __call__(self, v: Tensor) -> Tensor:
        product: Tensor = jvp(self._function, (self._zero,), (v,))[1]
        return product


class Curvature:
    """A symmetric matrix of second derivatives at the centre of a chart, as products with vectors.

    Vectors are looped inside each micro-batch, so that its graph is built once for all of them; a batch in one piece
    keeps its graph from call to call.

    Args:
        problem: model, loss and data.
        chart: from `Problem.chart`.
        batch: what it is the curvature of; None for the mean over all batches of the problem, each weighted by its
            number of loss terms.
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse`` (over reverse, on a kept graph) or ``forward`` (over reverse, less memory, Hessian only).

    Attributes:
        products: how many vectors were multiplied.
        graphs: how many gradients were computed with their graph.
    """

    def __init__(
        self, problem: Problem, chart: Chart, batch: Any = None, matrix: Matrix = "hessian", engine: Engine = "reverse"
    ) -> None:
        if engine not in ("reverse", "forward"):
            raise ArgumentError(f"expected engine 'reverse' or 'forward', got {engine!r}")
        if engine == "forward" and matrix != "hessian":
            raise ArgumentError(f"expected matrix='hessian' for engine='forward', got {matrix!r}: take 'reverse'")
        if engine == "forward":
            problem.need_whole("engine='forward'")
        self._kind = MATRICES[matrix]
        self.problem, self.chart, self._batch, self._engine = problem, chart, batch, engine
        self.products = self.graphs = 0
        self._kept: Products | None = None

    def __call__(self, vectors: Tensor) -> Tensor:
        """The products with each row of ``(count, size)``, or with one flat vector."""
        rows = vectors.detach().reshape(-1, self.chart.size).to(self.chart.dtype)
        total: list[Tensor] = []
        for products in self._operators():
            for i, row in enumerate(rows):
                with torch.enable_grad(), second_derivatives():
                    product = products(row).detach()
                if i < len(total):
                    total[i] = total[i] + product
                else:  # where the gradient is the point itself, autograd gives the vector back
                    total.append(product.clone() if product.data_ptr() == row.data_ptr() else product)
            del products  # its graph goes before the next one is built
        total = total or [torch.zeros_like(row) for row in rows]  # a rank without examples
        out = total[0] if len(total) == 1 else torch.stack(total)
        self.problem.joined("a product", 0.0, out)
        self.products += len(rows)
        if not all_finite([out]):
            raise DerivativeError(
                "expected a finite product with the curvature matrix, got NaN or infinity although the loss is finite: "
                "look for square roots, norms or divisions at 0 in the model or loss"
            )
        return out.reshape(vectors.shape)

    def _operators(self) -> Iterator[Products | _Forward]:
        """One for each micro-batch; a graph is released before the next is built."""
        if self._kept is not None:
            yield self._kept
            return
        pieces = self.problem.shares(self._batch)
        first, second = next(pieces, None), next(pieces, None)
        if first is None:  # a rank without examples
            return
        if second is None:
            self._kept = self._build(*first)
            yield self._kept
            return
        for part in itertools.chain((first, second), pieces):
            yield self._build(*part)

    def _build(self, part: Any, share: float) -> Any:
        if self._engine == "forward":
            return _Forward(self.problem, self.chart, part, share)
        self.graphs += 1
        with torch.enable_grad(), second_derivatives(kept=True), self.problem.differentiating():
            return self._kind(self.problem, self.chart, part, share)

    def release(self) -> None:
        """Forget the kept graph."""
        self._kept = None


@contextmanager
def second_derivatives(kept: bool = False) -> Iterator[None]:
    """Right second derivatives; a missing one comes out as one of our errors, with the way around it."""
    try:
        with twice_differentiable(kept):
            yield
    except (RuntimeError, NotImplementedError) as error:
        text = str(error)
        if "attention" in text and "not implemented" in text:
            raise DerivativeError(
                "expected an attention kernel with second derivatives, got a fused one: load the model with "
                "attn_implementation='eager' or 'sdpa'"
            ) from error
        if any(w in text for w in ("not implemented", "does not require grad", "once_differentiable", "twice")):
            raise DerivativeError(
                f"expected every part of the model to have a second derivative, but: {text.splitlines()[0]}"
            ) from error
        raise
