"""A small transformer, its data, every measure on them, and several processes that measure together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import spiritlevel as sl

F = nn.functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(F.gelu(self.up(x)))


class Small(nn.Module):
    """Token embedding, tied to nothing; two layers; a score for each token."""

    def __init__(self, width: int = 8, heads: int = 2, layers: int = 2, words: int = 11, classes: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def network(seed: int = 0) -> Small:
    torch.manual_seed(seed)
    model = Small().double().eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "q_proj.w" in n or "k_proj.w" in n:
                p.mul_(3)
    return model


def data() -> list[tuple[Tensor, Tensor]]:
    """Batches of 5, 4 and 1 sequences with different numbers of targets that count."""
    g = torch.Generator().manual_seed(1)
    batches = []
    for n in (5, 4, 1):
        x, y = torch.randint(0, 11, (n, 3), generator=g), torch.randint(0, 4, (n, 3), generator=g)
        y[0, 1:] = -100  # padding
        batches.append((x, y))
    batches[0][1][3] = -100  # an example without any term
    return batches


class Mean:
    """A loss that is NaN where no target counts."""

    def __call__(self, output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())

    def terms(self, batch: tuple[Tensor, Tensor]) -> int:
        return int((batch[1] != -100).sum())


MEASURES: dict[str, Callable[[sl.Problem], Any]] = {
    "geodesic": lambda p: sl.geodesic_sharpness(p, [0.05, 0.1]).values,
    "adaptive": lambda p: sl.adaptive_sharpness(p, 0.5).per_batch,
    "union": lambda p: sl.worst_case(p, sl.Euclidean(), 0.1, over="union").value,
    "autopgd": lambda p: sl.worst_case(p, sl.Elementwise(), 0.5, sl.solvers.AutoPGD(steps=4, restarts=1)).value,
    "linf": lambda p: sl.worst_case(p, sl.Elementwise(), 0.002, sl.solvers.SphereAscent(steps=4), norm="linf").value,
    "average": lambda p: sl.average_case(p, sl.Quotient(), 0.05, samples=4).per_batch,
    "gradient": lambda p: sl.gradient_norm(p, sl.Quotient()).per_batch,
    "cross gram": lambda p: sl.gradient_norm(p, sl.Quotient("cross_gram", "second_order")).value,
    "trace": lambda p: traces(sl.hessian_trace(p, sl.Quotient(), samples=4, tolerance=0, per_layer=True)),
    "norm": lambda p: sl.hessian_norm(p, sl.Elementwise(), samples=3, tolerance=0).value,
    "eigenvalues": lambda p: sl.hessian_eigenvalues(p, sl.Quotient(), k=2, tolerance=1e-6).eigenvalues,
    "density": lambda p: sl.hessian_density(p, sl.Elementwise(), steps=5).quadratures[0].nodes[0].tolist(),
    "gauss-newton": lambda p: sl.hessian_trace(p, sl.Euclidean(), samples=3, tolerance=0, matrix="gauss_newton").value,
    "empirical": lambda p: sl.hessian_trace(p, sl.Euclidean(), samples=3, tolerance=0, matrix="empirical_fisher").value,
    "batches": lambda p: sl.hessian_trace(p, sl.Euclidean(), samples=3, tolerance=0, over="batches").per_batch,
    "geodesic curve": lambda p: (
        sl.worst_case(p, sl.Elementwise("geodesic"), 0.3, sl.solvers.SphereAscent(steps=3)).value
    ),
}


def traces(m: Any) -> list[float]:
    return [m.value, *(x.value for x in m.layers)]


def measured(problem: sl.Problem, names: Any = MEASURES) -> dict[str, Any]:
    return {n: MEASURES[n](problem) for n in names}


def _rank(rank: int, world: int, folder: str, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world)
    try:
        found = work(rank, world, *args)
    except sl.errors.SpiritlevelError as error:
        found = error
    torch.save(found, f"{folder}/{rank}.pt.part")
    os.rename(f"{folder}/{rank}.pt.part", f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def together(work: Callable[..., Any], *args: Any, world: int = 2) -> list[Any]:
    """What ``work(rank, world, *args)`` returns on each rank, or the error of ours that it raised; None if it died."""
    folder = tempfile.mkdtemp()
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(r, world, folder, work, args)) for r in range(world)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    paths = [Path(folder) / f"{r}.pt" for r in range(world)]
    return [torch.load(p, weights_only=False) if p.exists() else None for p in paths]
