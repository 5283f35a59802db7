"""The trace estimators by themselves, on matrices whose trace is known."""

import numpy as np
import pytest
import torch
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.solvers import hutch_pp, xtrace

N = 40


def matrix(sign: float) -> Tensor:
    """Indefinite or positive, with a decaying spectrum."""
    q = torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    values = torch.arange(1, N + 1, dtype=torch.float64) ** -1.0
    values[1::3] *= sign
    return q @ torch.diag(values) @ q.mT


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("estimate", [hutch_pp, xtrace])
def test_sketches_are_unbiased_and_state_their_error(estimate: object, sign: float) -> None:
    # Kills: the left-out direction counted twice, a remainder without its dimension, an error of the wrong size.
    a, found = matrix(sign), []
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        probes = (torch.randn(N, dtype=torch.float64, generator=g) for _ in range(10**6))
        found.append(estimate(lambda v: v @ a, probes, samples=24, dimension=N))  # type: ignore[operator]
    values, errors = np.array([e.value for e in found]), np.array([e.error for e in found])
    assert abs(values.mean() - float(a.trace())) < 4 * values.std() / np.sqrt(len(values))
    assert 0.6 < np.sqrt(np.mean(errors**2)) / values.std() < 1.7
    assert {e.products for e in found} == {24}


@pytest.mark.parametrize("estimate", [hutch_pp, xtrace])
def test_a_matrix_of_low_rank_is_known_exactly(estimate: object) -> None:
    u = torch.randn(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a = u @ u.mT
    probes = (torch.randn(N, dtype=torch.float64) for _ in range(10**6))
    e = estimate(lambda v: v @ a, probes, samples=30, dimension=N, tolerance=1e-6)  # type: ignore[operator]
    assert e.value == pytest.approx(float(a.trace()), rel=1e-9)
    assert e.status in (Status.CONVERGED, Status.ESTIMATE)
