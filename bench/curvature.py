"""What curvature costs in gradients, beside curvlinops and PyHessian: CPU seconds of one thread, interleaved, one run.

The peers are those of ``peers.txt``. A gradient is timed before and after each task, and a task counts in the mean of
the two. Memory is that of torch's tensors at their most (of a short run, where a long one holds no more). Set-up
(checks, self-check, symmetries, graph) is in every task of ours; for the peers construction is, with their own check of
determinism switched off.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

import spiritlevel as sl
from bench.costs import peak, seconds
from spiritlevel.geometry import Geometry

PRODUCT_BATCH, TASK_BATCH, CNN_BATCH = 128, 16, 128  # as in the measurements of the peers
VECTORS, STEPS, ROUNDS = 100, 40, 5
SKETCH_BATCH = 32  # of the convolutional net, for the comparison at equal accuracy


class Scores(nn.Module):
    """A transformers model that returns its scores, as the peers want it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x).logits
        return out


def vit(batch: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Hidden 192, 6 layers, 3 heads, 32 x 32 images in patches of 4; attention that all three can differentiate."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768, image_size=32, patch_size=4,
        num_labels=10, attn_implementation="eager",
    )  # fmt: skip
    model = Scores(transformers.ViTForImageClassification(config).eval())
    g = torch.Generator().manual_seed(1)
    return model, (torch.randn(batch, 3, 32, 32, generator=g), torch.randint(10, (batch,), generator=g))


def cnn(batch: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Three convolutions with batch norm and a linear layer: 95 thousand weights."""
    torch.manual_seed(0)
    widths, layers = (3, 32, 64, 128), []
    for i, o in itertools.pairwise(widths):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).eval()
    g = torch.Generator().manual_seed(1)
    return model, (torch.randn(batch, 3, 32, 32, generator=g), torch.randint(10, (batch,), generator=g))


@dataclass
class Case:
    """A model with its batch, and three ways to its curvature."""

    model: nn.Module
    batch: tuple[Tensor, Tensor]

    def gradient(self) -> None:
        loss = nn.functional.cross_entropy(self.model(self.batch[0]), self.batch[1])
        torch.autograd.grad(loss, list(self.model.parameters()))

    def ours(self) -> sl.Problem:
        return sl.Problem(self.model, [self.batch])

    def curvlinops(self) -> Any:
        from curvlinops import HessianLinearOperator

        return HessianLinearOperator(
            self.model, nn.CrossEntropyLoss(), list(self.model.parameters()), [self.batch], check_deterministic=False
        )

    def pyhessian(self) -> Any:
        from pyhessian import hessian

        return hessian(self.model, nn.CrossEntropyLoss(), data=self.batch, cuda=False)

    def clean(self) -> None:
        """PyHessian leaves gradients behind that carry graphs."""
        self.model.zero_grad(set_to_none=True)
        gc.collect()

    def vector(self) -> Tensor:
        size = sum(p.numel() for p in self.model.parameters())
        return torch.randn(size, generator=torch.Generator().manual_seed(0))

    def pieces(self) -> list[Tensor]:
        """A vector as PyHessian wants it."""
        return [torch.randn_like(p) for p in self.model.parameters()]


def in_gradients(case: Case, work: Callable[[], Any], rounds: int = 1) -> tuple[float, Any]:
    """Median over rounds of the time in gradients, and what came out."""
    ratios, kept = [], []
    for _ in range(rounds):
        before = statistics.median(seconds(case.gradient) for _ in range(3))
        spent = seconds(lambda: kept.append(work()))
        after = statistics.median(seconds(case.gradient) for _ in range(3))
        ratios.append(spent / ((before + after) / 2))
    return statistics.median(ratios), kept[-1]


def products(case: Case, rounds: int) -> dict[str, Any]:
    """One product after set-up, of each tool and in three geometries, interleaved."""
    problem, v = case.ours(), case.vector()
    geometries: dict[str, Geometry] = {
        "Euclidean": sl.Euclidean(),
        "Elementwise": sl.Elementwise(),
        "Quotient": sl.Quotient(),
    }
    works: dict[str, Callable[[], Any]] = {}
    for name, geometry in geometries.items():
        operator = sl.hessian_operator(problem, geometry, case.batch)
        z = operator.chart.gaussian(torch.Generator().manual_seed(0))
        operator.apply(z)  # builds the graph
        works[name] = lambda operator=operator, z=z: operator.apply(z)  # type: ignore[misc]
    linear, pieces = case.curvlinops(), case.pieces()
    works["curvlinops"] = lambda: linear @ v
    theirs = case.pyhessian()
    from pyhessian.utils import hessian_vector_product

    works["PyHessian"] = lambda: hessian_vector_product(theirs.gradsH, theirs.params, pieces)
    found: dict[str, list[float]] = {n: [] for n in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(in_gradients(case, work)[0])
    result: dict[str, Any] = {n: statistics.median(r) for n, r in found.items()}
    result["Quotient / Euclidean"] = statistics.median(
        q / e for q, e in zip(found["Quotient"], found["Euclidean"], strict=True)
    )
    del works, linear, theirs
    case.clean()
    return result


def tasks(case: Case, vectors: int, steps: int) -> dict[str, Any]:
    """Top eigenvalue to 1e-3, trace with so many vectors, density with so many steps: gradients, result, peak in MB."""
    flat = sl.Euclidean()
    exact = sl.hessian_eigenvalues(case.ours(), flat, tolerance=1e-6).value

    def pyhessian_density(steps: int) -> Any:
        return case.pyhessian().density(iter=steps, n_v=1)

    def peers_trace(count: int) -> float:
        from curvlinops import hutchinson_trace

        linear = case.curvlinops()
        return statistics.fmean(float(hutchinson_trace(linear, num_matvecs=1)) for _ in range(count))

    def peers_density(steps: int) -> float:
        from curvlinops import lanczos_approximate_spectrum

        return float(lanczos_approximate_spectrum(case.curvlinops(), steps)[0].max())

    def top(linear: Any) -> float:
        return float(eigsh(linear.to_scipy(), k=1, which="LA", tol=1e-3, return_eigenvectors=False)[0])

    def trace(count: int) -> Any:
        return sl.hessian_trace(case.ours(), flat, samples=count, tolerance=0)

    small: dict[str, dict[str, tuple[Callable[[], Any], Callable[[], Any]]]] = {
        "top eigenvalue to 1e-3": {
            "ours": (_twice(lambda: sl.hessian_eigenvalues(case.ours(), flat))),
            "ours, Quotient": (_twice(lambda: sl.hessian_eigenvalues(case.ours(), sl.Quotient()))),
            "curvlinops, ARPACK": (lambda: top(case.curvlinops()), lambda: peers_trace(1)),
            "PyHessian": (
                lambda: case.pyhessian().eigenvalues(maxIter=100, tol=1e-3)[0][0],
                lambda: case.pyhessian().eigenvalues(maxIter=2, tol=1e-3),
            ),
        },
        f"trace, {vectors} vectors": {
            "ours": (lambda: trace(vectors), lambda: trace(2)),
            "curvlinops": (lambda: peers_trace(vectors), lambda: peers_trace(2)),
            "PyHessian": (
                lambda: float(np.mean(case.pyhessian().trace(maxIter=vectors, tol=0.0))),
                lambda: case.pyhessian().trace(maxIter=2, tol=0.0),
            ),
        },
        f"density, {steps} steps": {
            "ours": _twice(lambda: sl.hessian_density(case.ours(), flat, steps=steps)),
            "curvlinops": (lambda: peers_density(steps), lambda: peers_trace(1)),
            "PyHessian": _twice(lambda: pyhessian_density(steps)),
        },
    }
    result: dict[str, Any] = {"top eigenvalue to 1e-6": exact}
    for task, tools in small.items():
        result[task] = {}
        for tool, (work, short) in tools.items():
            try:
                spent, value = in_gradients(case, work)
            except RuntimeError as error:  # PyHessian's density: torch.eig is gone
                result[task][tool] = {"raises": str(error).splitlines()[0][:80]}
                continue
            finally:
                case.clean()
            result[task][tool] = {"gradients": spent, **_facts(value), "peak, MB": peak(short) / 1e6}
            case.clean()
    return result


def _twice(work: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Timed and weighed alike."""
    return work, work


def _facts(value: Any) -> dict[str, Any]:
    if not isinstance(value, sl.Measurement):
        return {"result": value}
    error = {} if value.standard_error is None else {"standard error": value.standard_error}
    return {"result": value.value, **error, "products": value.stats["products"]}


def sketches(case: Case, tolerance: float = 0.02, most: int = 3000) -> dict[str, Any]:
    """Products until the standard error of the trace is 2 %: sketches against plain Hutchinson."""
    result: dict[str, Any] = {}
    for matrix in ("hessian", "gauss_newton"):
        found = {
            method: sl.hessian_trace(
                case.ours(), sl.Euclidean(), samples=most, tolerance=tolerance, method=method, matrix=matrix
            )
            for method in ("hutchinson", "hutch++", "xtrace")
        }
        plain = found["hutchinson"]
        result[matrix] = {
            method: {
                **_facts(m),
                "products / Hutchinson": m.stats["products"] / plain.stats["products"],
                "off Hutchinson, in standard errors": abs(m.value - plain.value)
                / math.hypot(m.standard_error or 0.0, plain.standard_error or 1.0),
            }
            for method, m in found.items()
        }
    return result


def curvature(quick: bool = False) -> dict[str, Any]:
    """All of it; ``quick`` with fewer vectors and steps, and the smaller batch only."""
    batches, vectors, steps, rounds = (
        ((TASK_BATCH,), 20, 20, 3) if quick else ((PRODUCT_BATCH, TASK_BATCH), VECTORS, STEPS, ROUNDS)
    )
    return {
        "unit": "one forward-backward pass of the same model and batch, CPU seconds of one thread",
        "ViT 192 x 6": {
            **{f"one product, batch {b}": products(Case(*vit(b)), rounds) for b in batches},
            f"batch {TASK_BATCH}": tasks(Case(*vit(TASK_BATCH)), vectors, steps),
        },
        "CNN": {
            f"one product, batch {CNN_BATCH}": products(Case(*cnn(CNN_BATCH)), rounds),
            f"batch {CNN_BATCH}": tasks(Case(*cnn(CNN_BATCH)), vectors, steps),
            f"trace to 2 %, batch {SKETCH_BATCH}": sketches(Case(*cnn(SKETCH_BATCH))),
        },
    }
