"""Are the second derivatives of this model right? Checked once, on one example, before curvature is measured."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from spiritlevel.core import tensors
from spiritlevel.core.batches import batch_size, cut
from spiritlevel.core.losses import CrossEntropy, TorchLoss, logits_of
from spiritlevel.core.spread import any_entry, dot, norm
from spiritlevel.errors import DerivativeError, SpiritlevelError
from spiritlevel.geometry import Chart, Euclidean
from spiritlevel.problem.curvature import Curvature
from spiritlevel.problem.objective import Objective
from spiritlevel.problem.problem import Problem

__all__ = ["check_second_derivatives"]

_STEP = {torch.float64: 1e-5, torch.float32: 2.0**-9}  # ours, relative to the weights: rounding and bend balance there
_PART = 0.1  # ours: a parameter's part of the product may be off by so much (torch's known defects: 0.05 to 0.8) ...
_WHOLE = 0.02  # ... where it is at least so much of the whole product
_SYMMETRY = 1e-2  # ours: |u.Hv - v.Hu| relative to their size


def check_second_derivatives(problem: Problem, seed: int = 0) -> float:
    """Compare one Hessian product with differences of the gradient, and ``u.Hv`` with ``v.Hu``; once for a problem.

    On one example; costs three gradients and two products there. What a difference itself cannot resolve (rounding,
    kinks, bend: the part that is even in the step) is not held against the product.

    Returns:
        The relative error of the whole product, as far as differences can tell.

    Raises:
        DerivativeError: naming the parameters whose second derivatives are wrong.
    """
    if problem.self_checked is not None:
        return problem.self_checked
    with problem.measuring("the check of second derivatives"):
        problem.self_checked = _check(problem, seed)
    return problem.self_checked


def _check(problem: Problem, seed: int) -> float:
    chart = problem.chart(Euclidean())
    batch = _one_example(problem)
    problem = _well_conditioned(problem, chart, batch, seed)
    u, v = (_direction(chart, seed + i) for i in (0, 1))
    hu, hv = Curvature(problem, chart, batch)(torch.stack([u, v]))
    if not any_entry(hv) and not any_entry(hu):
        return 0.0
    objective, step = Objective(problem, chart, batch), _STEP[chart.dtype]
    centre, up, down = (objective(s * step * v)[1] for s in (0.0, 1.0, -1.0))
    odd, even = (up - down) / (2 * step), (up + down - 2 * centre) / (2 * step)
    _compare(problem, chart, hv, odd, even)
    forth, back = dot(u, hv), dot(v, hu)
    rounding = 1e-5 * max(norm(u) * norm(hv), norm(v) * norm(hu))  # all there is where one of them is in the null space
    if abs(forth - back) > _SYMMETRY * max(abs(forth), abs(back)) + rounding:
        raise DerivativeError(
            f"expected a symmetric Hessian, got u.Hv = {forth:.6g} and v.Hu = {back:.6g}: a second derivative in the "
            "model is wrong; look at layers with custom autograd functions"
        )
    return norm(odd - hv) / max(norm(odd), norm(hv))


def _well_conditioned(problem: Problem, chart: Chart, batch: Any, seed: int) -> Problem:
    """The same model under a squared distance of its scores, where the loss is one of torch's own.

    The cross-entropy of an example that is fitted to rounding has no digits left to compare: its second derivative is
    right, and as good as 0. What can be wrong are the model's layers, and these the squares show just as well.
    """
    if not isinstance(problem.loss, CrossEntropy | TorchLoss):
        return problem
    try:
        with torch.no_grad():
            scores = logits_of(problem.output(chart.weights(chart.zeros()), batch))
    except SpiritlevelError:
        return problem
    noise = torch.randn(scores.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    aim = noise.to(scores.device, scores.dtype) * scores.square().mean().sqrt()
    other = copy.copy(problem)
    other.loss = lambda output, batch: (logits_of(output) - aim).square().mean()
    return other


def _one_example(problem: Problem) -> Any:
    """The first example that has a loss term."""
    batch = problem.sample()
    size = batch_size(batch)
    for i in range(size):
        one = cut(batch, i, i + 1, size)
        if problem.terms(one):
            return one
    return batch


def _direction(chart: Chart, seed: int) -> Tensor:
    """Random signs, as large in each parameter as its weights."""
    signs = chart.signs(torch.Generator().manual_seed(seed))
    weights = chart.weights(chart.zeros())
    for name, stretches in chart.layers().items():
        for s in stretches:
            signs[s] *= tensors.norm(weights[name]) / weights[name].numel() ** 0.5 or 1e-2
    return signs


def _compare(problem: Problem, chart: Chart, product: Tensor, odd: Tensor, even: Tensor) -> None:
    whole = max(norm(product), norm(odd))
    bad: list[tuple[str, float]] = []
    for name, s in ((n, s) for n, stretches in chart.layers().items() for s in stretches):
        ours, theirs = product[s], odd[s]
        off, size = tensors.norm(ours - theirs), max(tensors.norm(ours), tensors.norm(theirs))
        if off > _PART * size + 2 * tensors.norm(even[s]) and off > _WHOLE * whole:
            bad.append((name, off / size))
    bad = problem.together("wrong second derivatives", bad)
    if bad:
        modules = dict(problem.model.named_modules())
        named = ", ".join(f"{n} ({_owner(n, modules)}, off by {100 * x:.0f} %)" for n, x in bad[:4])
        raise DerivativeError(
            f"expected second derivatives that agree with differences of the gradient, but they do not at {named}: "
            "a custom autograd function or a defect of torch; replace that layer by its formula written out"
        )


def _owner(name: str, modules: dict[str, Any]) -> str:
    """The class of the module a parameter belongs to."""
    owner = modules.get(name.rpartition(".")[0])
    return type(owner).__name__ if owner is not None else "?"
