"""What a geodesic step costs beside a plain forward-backward pass: time, memory, set-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import spiritlevel as sl
from spiritlevel.geometry import Geometry
from spiritlevel.problem import Objective
from spiritlevel.solvers import Centre, L2Ball, SphereAscent
from spiritlevel.symmetry import check_blocks

GEOMETRIES: dict[str, Geometry] = {
    "Euclidean": sl.Euclidean(),
    "Elementwise": sl.Elementwise(),
    "Quotient inverse_gram exact": sl.Quotient(),
    "Quotient inverse_gram second_order": sl.Quotient(curve="second_order"),
    "Quotient cross_gram second_order": sl.Quotient("cross_gram", "second_order"),
    "Quotient cross_gram exact": sl.Quotient("cross_gram"),
}
_EVALUATIONS = 3  # of one solver run in the timing; the vectors a solver moves between them are in the time


def vit(hidden: int, layers: int, heads: int, image: int, patch: int, channels: int = 3) -> nn.Module:
    """A vision transformer of the given shape with random weights."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        image_size=image,
        patch_size=patch,
        num_channels=channels,
        num_labels=10,
    )
    model: nn.Module = transformers.ViTForImageClassification(config).eval()
    return model


def small() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The bench model: hidden 192, 6 layers, 3 heads, 32 x 32 images in patches of 4, batch 128."""
    g = torch.Generator().manual_seed(0)
    return vit(192, 6, 3, 32, 4), (torch.randn(128, 3, 32, 32, generator=g), torch.randint(10, (128,), generator=g))


def base() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """ViT-B/32, batch 8."""
    g = torch.Generator().manual_seed(0)
    return vit(768, 12, 12, 224, 32), (torch.randn(8, 3, 224, 224, generator=g), torch.randint(10, (8,), generator=g))


def plain(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """One forward-backward pass as in training."""
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(batch[0]).logits, batch[1]).backward()


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of this process: steadier than wall clock on a shared machine."""
    began = time.process_time()
    work()
    return time.process_time() - began


def steps(rounds: int = 4) -> dict[str, Any]:
    """One evaluation inside a solver run against one plain pass, rounds interleaved, medians of ratios."""
    model, batch = small()
    problem = sl.Problem(model, [batch])
    runs: dict[str, Callable[[], Any]] = {}
    counts: list[int] = []
    solver = SphereAscent(steps=_EVALUATIONS, tolerance=0.0)
    for name, geometry in GEOMETRIES.items():
        chart = problem.chart(geometry)
        objective = Objective(problem, chart, batch)
        centre = objective(chart.zeros())

        def run(objective: Objective = objective, centre: tuple[float, Tensor] = centre) -> None:
            counts.append(solver.maximise(objective, L2Ball(0.1), centre).evaluations)

        runs[name] = run
    plain(model, batch)
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    base_times = []
    for _ in range(rounds):
        for name, run in runs.items():
            before = seconds(lambda: plain(model, batch))
            spent = seconds(run)
            mine = spent / counts[-1]
            after = seconds(lambda: plain(model, batch))
            base_times += [before, after]
            ratios[name].append(mine / ((before + after) / 2))
    return {
        "model": "ViT 192 x 6, batch 128, float32, one thread",
        "plain forward-backward, CPU seconds": statistics.median(base_times),
        "step / plain": {name: statistics.median(found) for name, found in ratios.items()},
        "all ratios": ratios,
    }


def peak(work: Callable[[], Any]) -> float:
    """Most bytes of tensors alive at once during the work, beyond those alive before it.

    Counted from the allocator's own events: resident memory moves by several times the parameters from run to run.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return float(most)


def memory() -> dict[str, Any]:
    """Peak memory above that of a plain forward-backward, in parameters; set-up and solver included."""
    model, batch = small()
    plain(model, batch)
    model.zero_grad(set_to_none=True)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())

    def measured(geometry: Geometry) -> None:
        chart = sl.Problem(model, [batch]).chart(geometry)
        objective = Objective(sl.Problem(model, [batch]), chart, batch)
        SphereAscent(steps=4, tolerance=0.0).maximise(objective, L2Ball(0.02), Centre(*objective(chart.zeros())))

    alone = peak(lambda: plain(model, batch))
    model.zero_grad(set_to_none=True)
    names = ("Euclidean", "Elementwise", "Quotient inverse_gram exact", "Quotient cross_gram second_order")
    found = {name: peak(lambda name=name: measured(GEOMETRIES[name])) for name in names}  # type: ignore[misc]
    return {
        "parameters, MB": parameters / 1e6,
        "plain peak, MB": alone / 1e6,
        "above plain, in parameters": {name: (value - alone) / parameters for name, value in found.items()},
    }


def certificate(rounds: int = 3) -> dict[str, Any]:
    """Finding symmetries of all kinds on data and certifying them, in plain passes of the same batch (ViT-B, 8)."""
    model, batch = base()
    plain(model, batch)
    times: dict[str, list[float]] = {"plain": [], "structure only": [], "all kinds": [], "certificate": []}
    for seed in range(rounds):
        found: list[Any] = []
        times["plain"].append(seconds(lambda: plain(model, batch)))
        model.zero_grad(set_to_none=True)
        times["structure only"].append(seconds(lambda: sl.find_symmetries(model)))
        times["all kinds"].append(
            seconds(lambda found=found: found.append(sl.find_symmetries(model, kinds="all", batch=batch)))  # type: ignore[misc]
        )
        times["certificate"].append(
            seconds(lambda found=found, seed=seed: check_blocks(model, batch, found[0], seed))  # type: ignore[misc]
        )
    medians = {n: statistics.median(t) for n, t in times.items()}
    return {
        "model": "ViT-B/32, 86M parameters, batch 8",
        "CPU seconds": medians,
        "(all kinds + certificate) / plain": (medians["all kinds"] + medians["certificate"]) / medians["plain"],
    }


def setup(rounds: int = 3) -> dict[str, Any]:
    """Finding the symmetries and factoring all heads of ViT-B, in plain forward-backward passes."""
    model, batch = base()
    plain(model, batch)
    blocks, weights = sl.find_symmetries(model), {n: p.detach() for n, p in model.named_parameters()}
    times: dict[str, list[float]] = {"plain": [], "find": [], "chart": []}
    for _ in range(rounds):
        times["plain"].append(seconds(lambda: plain(model, batch)))
        times["find"].append(seconds(lambda: sl.find_symmetries(model)))
        times["chart"].append(seconds(lambda: sl.Quotient().chart(weights, blocks)))
    medians = {n: statistics.median(t) for n, t in times.items()}
    return {
        "model": "ViT-B/32, 86M parameters, batch 8",
        "CPU seconds": medians,
        "set-up / plain": (medians["find"] + medians["chart"]) / medians["plain"],
    }
