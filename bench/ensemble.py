"""Many small networks together against one by one: CPU time of the same numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import spiritlevel as sl
from bench.costs import seconds
from spiritlevel.solvers import AutoPGD
from spiritlevel.study.ensemble import Ensemble, average_cases, gradient_norms, worst_cases

COUNT = 50
ROUNDS = 3


class DiagonalNet(nn.Module):
    """``x . (u * v)``."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.u * self.v)


def squares(output: Tensor, batch: Any) -> Tensor:
    """Mean squared error."""
    return (output - batch[1]).square().mean()


def _perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, 5)).double()


def _zoos() -> dict[str, tuple[list[nn.Module], list[Any], Any]]:
    """In float64: sharpness is a small difference of losses, so that in float32 both ways round in its fifth digit."""
    torch.manual_seed(0)
    x, y, labels = torch.randn(256, 20).double(), torch.randn(256).double(), torch.randint(5, (256,))
    return {
        "diagonal, 40 weights": ([DiagonalNet().double() for _ in range(COUNT)], [(x[:40], y[:40])], squares),
        "perceptron, 421 weights": ([_perceptron(16) for _ in range(COUNT)], [(x[:128], labels[:128])], None),
        "perceptron, 5k weights": ([_perceptron(200) for _ in range(COUNT)], [(x[:128], labels[:128])], None),
        "perceptron, 25k weights": ([_perceptron(1000) for _ in range(COUNT)], [(x[:128], labels[:128])], None),
    }


Values = Callable[[Sequence[nn.Module], list[Any], Any], list[float]]
_SPACE, _SOLVER, _RHO = sl.Elementwise(), AutoPGD(), 0.1


def _alone(measure: Callable[[sl.Problem], Any]) -> Values:
    return lambda models, batches, loss: [float(measure(sl.Problem(m, batches, loss))) for m in models]


def _together(measure: Callable[[Ensemble], Any]) -> Values:
    return lambda models, batches, loss: [float(m) for m in measure(Ensemble(models, batches, loss))]


_PAIRS: dict[str, tuple[Values, Values]] = {
    "gradient norm": (
        _alone(lambda p: sl.gradient_norm(p, _SPACE)),
        _together(lambda e: gradient_norms(e, _SPACE)),
    ),
    "average case": (
        _alone(lambda p: sl.average_case(p, _SPACE, _RHO)),
        _together(lambda e: average_cases(e, _SPACE, _RHO)),
    ),
    "worst case, Auto-PGD": (
        _alone(lambda p: sl.worst_case(p, _SPACE, _RHO, _SOLVER)),
        _together(lambda e: [c[0] for c in worst_cases(e, _SPACE, _RHO, _SOLVER)]),
    ),
}


def ensemble() -> dict[str, Any]:
    """Ratios of CPU seconds, rounds interleaved, median of rounds; and how far the numbers are apart, relative."""
    found: dict[str, Any] = {"networks": COUNT, "one by one / together": {}, "largest relative difference": {}}
    for zoo, given in _zoos().items():
        for what, (alone, together) in _PAIRS.items():
            numbers: dict[str, list[float]] = {}
            ratios = []
            for _ in range(ROUNDS):
                slow = seconds(lambda: numbers.update(alone=alone(*given)))  # noqa: B023  # called at once
                fast = seconds(lambda: numbers.update(together=together(*given)))  # noqa: B023
                ratios.append(slow / fast)
            apart = [abs(a - b) / max(abs(a), 1e-3) for a, b in zip(numbers["alone"], numbers["together"], strict=True)]
            found["one by one / together"][f"{zoo}: {what}"] = statistics.median(ratios)
            found["largest relative difference"][f"{zoo}: {what}"] = max(apart)
    return found
