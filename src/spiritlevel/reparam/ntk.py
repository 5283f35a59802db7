"""The empirical neural tangent kernel in any geometry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spiritlevel.core.losses import logits_of
from spiritlevel.geometry import Geometry
from spiritlevel.problem import Problem

__all__ = ["empirical_ntk"]


def empirical_ntk(problem: Problem, geometry: Geometry, batch: Any = None) -> Tensor:
    """``K = <grad f_i, grad f_j>`` between all outputs on a batch: inner products of gradients, not of differentials.

    ``grad = G^-1 df``, so ``K = df G^-1 df^T`` is invariant under reparametrisation when the metric moves along (paper,
    App. E.1). Costs one backward pass for each output.

    Args:
        problem: model and data; which parameters are measured decides whose kernel it is (the last layer's, all).
        geometry: the metric; `Euclidean` gives what is usually meant, in the coordinates at hand.
        batch: inputs; the problem's first batch by default.

    Returns:
        The matrix over examples and outputs, flattened together: ``(n k, n k)``.
    """
    problem.check()
    chart = problem.chart(geometry.osculating())
    z = chart.zeros().requires_grad_()
    output = logits_of(problem.output(chart.weights(z), next(problem.batches()) if batch is None else batch))
    rows = [torch.autograd.grad(y, z, retain_graph=True, materialize_grads=True)[0] for y in output.reshape(-1)]
    jacobian = torch.stack(rows)
    return jacobian @ jacobian.mT
