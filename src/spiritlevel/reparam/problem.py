"""A problem in other parameters, and a model whose parameters are the new ones, for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spiritlevel.core.blocks import Block, Symmetries
from spiritlevel.core.evaluation import measurable
from spiritlevel.errors import ArgumentError
from spiritlevel.geometry import Chart, Geometry
from spiritlevel.problem import DistributedProblem, Problem
from spiritlevel.reparam.flat import Weights
from spiritlevel.reparam.maps import Reparametrisation

__all__ = ["Reparametrised", "ReparametrisedProblem", "original_of", "reparametrise", "reparametrised"]


class ReparametrisedProblem(Problem):
    """The loss as a function of ``psi``: ``L(phi^-1(psi))``.

    The user's model is evaluated at ``phi^-1(psi)``; it is never changed, and nothing is copied.

    Attributes:
        original: the problem in ``theta``.
        change: ``theta -> psi``.
    """

    def __init__(self, original: Problem, change: Reparametrisation) -> None:
        if isinstance(original, DistributedProblem):
            raise ArgumentError(
                "expected a problem of one process to change the variables of, got one that several ranks share: make "
                "a spiritlevel.Problem on one rank"
            )
        self.original, self.change = original, change
        super().__init__(
            original.model,
            original._batches,
            original.loss,
            original._names,
            micro_batch=original.micro_batch,
            max_batches=original.max_batches,
        )
        change.forward(original.weights)  # names and domain are checked at once

    @property
    def weights(self) -> dict[str, Tensor]:
        with torch.no_grad():
            return self.change.forward(self.original.weights)

    @property
    def _stored(self) -> dict[str, Tensor]:
        return self.weights

    @property
    def symmetries(self) -> Symmetries:  # blocks of the original parameters
        return self.original.symmetries

    def blocks_of(self, geometry: Geometry) -> Sequence[Block]:
        return self.original.blocks_of(geometry)

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "parameters as": str(self.change)}

    def chart(self, geometry: Geometry) -> Chart:
        if not geometry.needs_blocks:
            return super().chart(geometry)
        self.check()
        blocks = self.blocks_of(geometry)
        self.original.verify(blocks)
        return geometry.chart(self.weights, blocks)

    def output(self, weights: Weights, batch: Any) -> Any:
        return self.original.output(self.change.inverse(weights), batch)


def reparametrised(problem: Problem, change: Reparametrisation) -> ReparametrisedProblem:
    """The same loss as a function of other parameters.

    Measured in ``geometry.transported(change)`` it gives what the original gives in ``geometry``; in the geometry
    itself it gives what somebody gets who does not know that the parameters were changed. Costs two passes of
    ``change`` on top of each pass of the model.

    Args:
        problem: in ``theta``. For a model that carries parametrisations, its parameters are the new ones already:
            ``reparametrised(problem, carried(model).inverted)`` is the problem in its plain weights.
        change: ``theta -> psi``.

    >>> import spiritlevel as sl
    >>> model = nn.Linear(1, 1, bias=False)
    >>> problem = sl.Problem(model, [(torch.ones(1, 1), torch.zeros(1, 1))], nn.MSELoss())
    >>> tripled = sl.reparam.Scaling(3.0)
    >>> new = reparametrised(problem, tripled)
    >>> float(sl.hessian_trace(new, sl.Euclidean())), float(sl.hessian_trace(new, sl.Euclidean().transported(tripled)))
    (0.2222, 2.0)
    """
    return ReparametrisedProblem(problem, change)


def original_of(problem: Problem, change: Reparametrisation) -> Problem:
    """The problem in ``theta`` behind one in ``psi``."""
    if isinstance(problem, ReparametrisedProblem) and problem.change is change:
        return problem.original
    return ReparametrisedProblem(problem, change.inverted)


class Reparametrised(nn.Module):
    """A model whose parameters are ``psi``: train it with any optimiser.

    Made from a snapshot of the model's weights; the model itself is called with ``phi^-1(psi)`` and not changed (its
    buffers are shared and updated in training mode, as in any forward pass).

    Args:
        model: in ``theta``.
        change: ``theta -> psi``.
    """

    def __init__(self, model: nn.Module, change: Reparametrisation) -> None:
        super().__init__()
        self._hidden = (model,)  # in a tuple, so that its parameters are not registered twice
        self.change = change
        trainable = {n for n, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            start = change.forward({n: w for n, w in measurable(model).items() if n in trainable})
        for name, w in start.items():
            _plant(self, name, nn.Parameter(w.detach().clone()))

    @property
    def model(self) -> nn.Module:
        """The original."""
        return self._hidden[0]

    def plain(self) -> dict[str, Tensor]:
        """``theta`` now, differentiable in the parameters."""
        return self.change.inverse(dict(self.named_parameters()))

    def write_back(self) -> None:
        """Put ``theta`` into the original model."""
        with torch.no_grad():
            weights = self.plain()
            for name, p in self.model.named_parameters():
                if name in weights:
                    p.copy_(weights[name])

    def train(self, mode: bool = True) -> Reparametrised:
        """Training or evaluation mode, of the original too."""
        self.model.train(mode)
        super().train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Device and precision, of the original too."""
        self.model._apply(fn)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's

    def modules(self, *args: Any) -> Iterator[nn.Module]:
        """The original's modules as well, so that whoever sets their mode for a while puts it back."""
        yield from super().modules()
        yield from self.model.modules()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's output at ``phi^-1(psi)``."""
        return functional_call(self.model, self.plain(), args, kwargs, tie_weights=True)


def _plant(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register under a dotted name, with a bare module for each part of it."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_parameter(last, parameter)


def reparametrise(model: nn.Module, change: Reparametrisation) -> Reparametrised:
    """A model with ``psi`` for parameters, for training; see `Reparametrised`.

    >>> from spiritlevel.reparam import WeightNorm
    >>> sorted(n for n, _ in reparametrise(nn.Linear(2, 1), WeightNorm()).named_parameters())
    ['bias', 'weight.direction', 'weight.length']
    """
    return Reparametrised(model, change)
