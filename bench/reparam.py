"""What a transported measure costs beside the untransported one: gradients and Hessian products in new parameters."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor, nn

import spiritlevel as sl
from bench.costs import seconds, vit
from spiritlevel.problem import Curvature, Objective
from spiritlevel.reparam import Monotone, Reparametrisation, Scaling, WeightNorm, reparametrised

_MODELS = {"CNN": "90 000 weights, batch 128", "ViT": "192 x 2, batch 32"}


def _cnn() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(1024, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    g = torch.Generator().manual_seed(0)
    return model, (torch.randn(128, 3, 32, 32, generator=g), torch.randint(10, (128,), generator=g))


def _vit() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return vit(192, 2, 3, 32, 4), (torch.randn(32, 3, 32, 32, generator=g), torch.randint(10, (32,), generator=g))


def maps(model: nn.Module) -> dict[str, Reparametrisation]:
    """Weight norm, scaling by layer, and an elementwise map."""
    matrices = [n for n, p in model.named_parameters() if p.dim() in (2, 4)]
    scales = {n: 0.5 + i % 3 for i, (n, _) in enumerate(model.named_parameters())}
    return {
        "weight norm": WeightNorm(matrices),
        "scaling by layer": Scaling(scales),
        "elementwise": Monotone(torch.sinh, torch.asinh, label="sinh"),
    }


def _work(problem: sl.Problem, geometry: Any, batch: Any) -> tuple[Any, Any]:
    """One gradient, and one Hessian product on a kept graph."""
    chart = problem.chart(geometry)
    objective, curvature = Objective(problem, chart, batch), Curvature(problem, chart, batch)
    z = torch.randn(chart.size, generator=torch.Generator().manual_seed(0)) * 1e-4
    curvature(z)
    return lambda: objective(z), lambda: curvature(z)


def reparam(rounds: int = 5) -> dict[str, Any]:
    """Transported over untransported, rounds interleaved, medians of ratios of CPU time."""
    found: dict[str, Any] = {}
    for name, build in (("CNN", _cnn), ("ViT", _vit)):
        model, batch = build()
        problem = sl.Problem(model, [batch])
        plain = _work(problem, sl.Euclidean(), batch)
        runs = {
            n: _work(reparametrised(problem, m), sl.Euclidean().transported(m), batch) for n, m in maps(model).items()
        }
        for i, kind in enumerate(("gradient", "Hessian product")):
            ratios: dict[str, list[float]] = {n: [] for n in runs}
            for _ in range(rounds):
                for n, run in runs.items():
                    before, mine, after = seconds(plain[i]), seconds(run[i]), seconds(plain[i])
                    ratios[n].append(2 * mine / (before + after))
            found[f"{name} ({_MODELS[name]}): {kind}, transported / plain"] = {
                n: statistics.median(r) for n, r in ratios.items()
            }
    return found
