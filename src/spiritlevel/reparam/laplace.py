"""The Laplace approximation to the evidence, with the signs that it has, naive and transported.

    log Z = log p(D | theta*) + log p(theta*) + (d/2) log 2 pi - (1/2) log det H,

``H`` the Hessian (or Gauss-Newton matrix) of the negative log-posterior at its mode. (The paper's Eq. 5 has both signs
of the last two terms flipped, its App. E.3 also loses the 1/2.) ``H`` is a bilinear form, so its determinant changes
with the coordinates; that of ``G^-1 H`` does not, and neither does the number of dimensions it is taken over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor, nn

from spiritlevel.core.display import Displayed
from spiritlevel.core.losses import CrossEntropy, TorchLoss, logits_of
from spiritlevel.core.results import plain
from spiritlevel.errors import ArgumentError, DerivativeError, LossError
from spiritlevel.geometry import Euclidean
from spiritlevel.problem import Curvature, Problem
from spiritlevel.reparam.maps import Reparametrisation
from spiritlevel.reparam.problem import original_of

__all__ = ["Evidence", "laplace_evidence"]


@dataclass(frozen=True)
class Evidence(Displayed):
    """``log Z`` and what it is made of.

    Attributes:
        value: the sum of the next four.
        log_likelihood: of the data at the mode.
        log_prior: of the weights there.
        log_two_pi: ``(d/2) log 2 pi``.
        log_det: ``-(1/2) log det H``.
        dimension: d.
        settings: everything that fixes the number.
    """

    value: float
    log_likelihood: float
    log_prior: float
    log_two_pi: float
    log_det: float
    dimension: int
    settings: dict[str, Any]

    @property
    def rest(self) -> float:
        """All but the likelihood: the Occam factor."""
        return self.value - self.log_likelihood

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {n: plain(v) for n, v in self.__dict__.items()}

    def __rich__(self) -> Table:
        table = Table(title="Laplace evidence", title_justify="left", show_header=False)
        table.add_row("log Z", f"{self.value:.6g}")
        table.add_row("log likelihood", f"{self.log_likelihood:.6g}")
        table.add_row("log prior", f"{self.log_prior:.6g}")
        table.add_row("(d/2) log 2 pi", f"{self.log_two_pi:.6g} (d = {self.dimension})")
        table.add_row("-(1/2) log det H", f"{self.log_det:.6g}")
        for key, value in self.settings.items():
            table.add_row(key, str(value))
        return table


def laplace_evidence(
    problem: Problem,
    prior_precision: float = 1.0,
    *,
    noise: float = 1.0,
    change: Reparametrisation | None = None,
    matrix: Literal["gauss_newton", "hessian"] = "gauss_newton",
) -> Evidence:
    """The Laplace evidence of a trained network under an isotropic Gaussian prior, for small networks (dense).

    Naive in any coordinates: ``change=None`` takes prior, dimension and Hessian in the parameters the problem has. With
    ``change`` they are those of ``theta`` although the problem is in ``psi``: prior, mode and determinant are
    transported (``det J^-T H J^-1 / det J^-T J^-1``), so the value is the one of ``theta``, for redundant maps too.

    Args:
        problem: at a mode of the posterior; cross-entropy, or mean squared error for a Gaussian likelihood.
        prior_precision: of the weights.
        noise: standard deviation of the Gaussian likelihood (mean squared error only).
        change: ``theta -> psi``, where the problem's parameters are ``psi``.
        matrix: ``gauss_newton``, which is positive, or ``hessian``.

    Raises:
        DerivativeError: where the posterior has no maximum here (a Hessian that is not positive definite).
    """
    for name, value in (("prior_precision", prior_precision), ("noise", noise)):
        if not 0 < value < math.inf:
            raise ArgumentError(f"expected {name} above 0, got {value!r}")
    if matrix not in ("gauss_newton", "hessian"):
        raise ArgumentError(f"expected matrix 'gauss_newton' or 'hessian', got {matrix!r}")
    problem.check()
    scale, constant = _likelihood(problem, noise)
    weights = problem.weights if change is None else original_of(problem, change).weights
    loss = math.fsum(share * problem.value(problem.weights, part) for part, share in problem.shares())
    square = math.fsum(float(w.double().square().sum()) for w in weights.values())
    d = sum(w.numel() for w in weights.values())
    chart = problem.chart(Euclidean() if change is None else Euclidean().transported(change))
    curvature = Curvature(problem, chart, matrix=matrix)
    h = scale * curvature(torch.eye(d, dtype=chart.dtype, device=chart.device)).double()
    log_det = _log_det((h + h.mT) / 2 + prior_precision * torch.eye(d, dtype=h.dtype, device=h.device))
    parts = {
        "log_likelihood": constant - scale * loss,
        "log_prior": d / 2 * math.log(prior_precision / (2 * math.pi)) - prior_precision / 2 * square,
        "log_two_pi": d / 2 * math.log(2 * math.pi),
        "log_det": -log_det / 2,
    }
    settings = {
        "prior precision": prior_precision,
        "noise": noise,
        "matrix": matrix,
        "coordinates": "the problem's own" if change is None else f"transported by {change}",
    }
    return Evidence(value=math.fsum(parts.values()), **parts, dimension=d, settings=settings)


def _likelihood(problem: Problem, noise: float) -> tuple[float, float]:
    """The log-likelihood is the second minus the first times the mean loss."""
    if isinstance(problem.loss, CrossEntropy):
        return float(sum(problem.terms(b) for b in problem.batches())), 0.0
    if isinstance(problem.loss, TorchLoss) and isinstance(problem.loss.module, nn.MSELoss):
        with torch.no_grad():
            count = sum(logits_of(problem.output(problem.weights, b)).numel() for b in problem.batches())
        return count / (2 * noise**2), -count * math.log(noise * math.sqrt(2 * math.pi))
    raise LossError(f"expected cross-entropy or mean squared error for a likelihood, got {problem.loss}")


def _log_det(matrix: Tensor) -> float:
    values = torch.linalg.eigvalsh(matrix)
    if not float(values[0]) > 0:
        raise DerivativeError(
            f"expected a positive definite Hessian of the negative log-posterior, got a smallest eigenvalue of "
            f"{float(values[0]):.3g}: this is no mode; train on, or take matrix='gauss_newton'"
        )
    return float(values.log().sum())
