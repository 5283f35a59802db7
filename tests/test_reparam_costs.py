"""What a change of variables costs: CPU time of transported against untransported measures, interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.problem import Curvature, Objective
from spiritlevel.reparam import Monotone, Reparametrisation, Scaling, WeightNorm, reparametrised

MAPS: dict[str, Callable[[], Reparametrisation]] = {
    "weight norm": lambda: WeightNorm(),
    "scaling": lambda: Scaling(3.0),
    "elementwise": lambda: Monotone(torch.sinh, torch.asinh),
}


def network() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return model, (torch.randn(64, 3, 24, 24), torch.randint(10, (64,)))


def works(problem: sl.Problem, geometry: sl.geometry.Geometry, batch: Any) -> list[Callable[[], Any]]:
    chart = problem.chart(geometry)
    objective, curvature = Objective(problem, chart, batch), Curvature(problem, chart, batch)
    z = 1e-4 * torch.randn(chart.size)
    curvature(z)
    return [lambda: objective(z), lambda: curvature(z)]


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MAPS))
def test_a_transported_measure_costs_at_most_a_third_more(name: str) -> None:
    # Kills: a dense Jacobian, a solve, or the map computed anew for every micro-batch. `make bench` has larger models.
    model, batch = network()
    problem, change = sl.Problem(model, [batch]), MAPS[name]()
    plain = works(problem, sl.Euclidean(), batch)
    moved = works(reparametrised(problem, change), sl.Euclidean().transported(change), batch)
    for before, after in zip(plain, moved, strict=True):
        ratios = []
        for _ in range(15):
            first, mine, last = seconds(before), seconds(after), seconds(before)
            ratios.append(2 * mine / (first + last))
        assert statistics.median(ratios) <= 1.3
