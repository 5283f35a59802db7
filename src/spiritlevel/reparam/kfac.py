"""K-FAC as a metric, by curvlinops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.evaluation import evaluating
from spiritlevel.core.losses import CrossEntropy, TorchLoss
from spiritlevel.errors import ArgumentError, LossError, MissingDependencyError, ModelError
from spiritlevel.problem import Problem
from spiritlevel.reparam.metrics import Form, Metric, Transforms

__all__ = ["KFAC"]


class _KroneckerForm(Form):
    def __init__(self, problem: Problem, damping: float) -> None:
        super().__init__(problem)
        try:
            from curvlinops import KFACInverseLinearOperator, KFACLinearOperator
        except ImportError as error:
            raise MissingDependencyError(
                "expected curvlinops to be installed for K-FAC, got none: pip install 'spiritlevel[curvlinops]'"
            ) from error
        named = dict(problem.model.named_parameters())
        strange = [n for n in self.layout.shapes if n not in named]
        if strange:
            raise ModelError(
                f"expected the model's own parameters for K-FAC, got {strange[:3]}: take it of the original problem "
                "and transport it"
            )
        parameters = [named[n] for n in self.layout.shapes]
        self._first, self._damping = parameters[0], damping
        with evaluating(problem.model):  # it calls the model itself
            self._forward: Any = KFACLinearOperator(
                problem.model, _module(problem), parameters, list(problem.batches()), fisher_type="type-2",
                check_deterministic=False,
            )  # fmt: skip
            self._forward.compute_kronecker_factors()
            self._inverse: Any = KFACInverseLinearOperator(self._forward, damping=damping, use_exact_damping=True)

    @property
    def _dtype(self) -> torch.dtype:
        return self._first.dtype

    @property
    def _device(self) -> torch.device:
        return self._first.device

    def product(self, v: Tensor) -> Tensor:
        product: Tensor = self._forward @ v
        return product + self._damping * v

    def solve(self, w: Tensor) -> Tensor:
        solved: Tensor = self._inverse @ w
        return solved


def _module(problem: Problem) -> nn.Module:
    """The loss as curvlinops takes it."""
    if isinstance(problem.loss, CrossEntropy) and not problem.loss.normalize_logits:
        return nn.CrossEntropyLoss()
    if isinstance(problem.loss, TorchLoss) and isinstance(problem.loss.module, nn.MSELoss | nn.CrossEntropyLoss):
        return problem.loss.module
    raise LossError(f"expected cross-entropy or mean squared error for K-FAC, got {problem.loss}")


@dataclass(frozen=True)
class KFAC(Metric):
    """The Kronecker-factored Fisher matrix (Martens and Grosse 2015) of linear and convolutional layers, by curvlinops.

    Args:
        damping: added to each block ``A x B``, above 0.
    """

    damping: float = 1e-3
    transforms = Transforms.LAYERWISE

    def __post_init__(self) -> None:
        """Check the damping."""
        if not 0 < self.damping < float("inf"):
            raise ArgumentError(f"expected a damping above 0, got {self.damping!r}")

    def at(self, problem: Problem) -> Form:
        problem.check()
        return _KroneckerForm(problem, self.damping)
