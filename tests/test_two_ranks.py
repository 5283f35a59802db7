"""Two processes over gloo: distributed training equals one process. All of it runs in one pair of processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sam_oracles as oracles
from sam_oracles import build, flat, gradient
from spiritlevel.errors import ArgumentError
from spiritlevel.optim import SAM, TrajectoryLoss, rules

F = nn.functional
STEPS, LR, RHO = 4, 0.1, 0.3
RULES = {
    "SAM": rules.Plain(RHO),
    "LookSAM": rules.LookSAM(RHO, every=2),
    "GSAM": rules.GSAM(RHO),
    "geodesic": rules.GeodesicSAM(RHO),
    "SSAM-D": rules.SSAMD(RHO, every=1),
}


def train(sam: SAM, model: nn.Module, x: Tensor, y: Tensor, micro: int = 1) -> np.ndarray:
    for _ in range(STEPS):
        parts = list(zip(x.chunk(micro), y.chunk(micro), strict=True))
        sam.step([lambda a=a, b=b: F.cross_entropy(model(a), b) for a, b in parts])
    return flat(model)


def logits(epoch: int, rows: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(epoch)
    return torch.randn(8, 4, generator=g)[rows]


def trajectory(rank: int, world: int, path: str | None) -> list[float]:
    extra = TrajectoryLoss(8, 4, lag=1, start=0, path=path, dtype=torch.float32)
    values = []
    for epoch in range(3):
        extra.set_epoch(epoch)
        order = torch.randperm(8, generator=torch.Generator().manual_seed(epoch))  # as DistributedSampler does
        for rows in order[rank::world].split(2):
            values.append(extra(logits(epoch, rows), rows).item())
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
    return values


def _rank(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world)
    found: dict[str, Any] = {}
    mine = slice(rank * 6, rank * 6 + 6)
    for name in (*RULES, "local", "local SAM-ON", "micro", "mask"):
        inner, x, y = build()
        model = DistributedDataParallel(inner)
        rule = {"mask": rules.SSAMF(RHO), "local SAM-ON": rules.NormOnly(rules.Plain(RHO))}.get(name, RULES.get(name))
        sync = "local" if name.startswith("local") else "global"
        sam = SAM(torch.optim.SGD(inner.parameters(), lr=LR), rule or rules.Plain(RHO), model=model, sync=sync)
        if name == "mask":
            rows = range(mine.start, mine.stop)
            each = [(x[i : i + 1], y[i : i + 1]) for i in rows]
            sam.update_mask([lambda a=a, b=b, m=inner: F.cross_entropy(m(a), b) for a, b in each])
        found[name] = train(sam, model, x[mine], y[mine], 2 if name == "micro" else 1)
    found["file"] = trajectory(rank, world, f"{folder}/logits")
    found["gathered"] = trajectory(rank, world, None)
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(_rank, (2, str(folder)), nprocs=2)
    return [torch.load(Path(folder) / f"{r}.pt", weights_only=False) for r in range(2)]


@pytest.mark.parametrize("name", [*RULES, "micro", "mask"])
def test_two_ranks_equal_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    # Kills: each rank its own perturbation unasked, a mask of its own, gradients exchanged twice or not at all.
    model, x, y = build()
    rule = rules.SSAMF(RHO) if name == "mask" else RULES.get(name, rules.Plain(RHO))
    sam = SAM(torch.optim.SGD(model.parameters(), lr=LR), rule, model=model)
    if name == "mask":
        sam.update_mask(lambda i=i: F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(12))
    wanted = train(sam, model, x, y)
    for found in ranks:
        np.testing.assert_allclose(found[name], wanted, atol=1e-9)


@pytest.mark.parametrize("name", ["local", "local SAM-ON"])
def test_each_rank_may_perturb_along_its_own_gradient(name: str, ranks: list[dict[str, Any]]) -> None:
    # m-sharpness: the mean over ranks of the gradient at w + epsilon_rank. Kills: a forward pass outside of no_sync,
    # after which gradients are exchanged all the same; ranks that drift apart.
    model, x, y = build()
    w = flat(model)
    places = oracles.where(model)
    live = np.r_[places["scales.weight"], places["scales.bias"]] if "ON" in name else np.arange(len(w))
    for _ in range(STEPS):
        parts = []
        for rows in (slice(0, 6), slice(6, 12)):
            g = gradient(model, w, x[rows], y[rows])
            epsilon = np.zeros_like(w)
            epsilon[live] = oracles.sam(g[live], RHO)
            parts.append(gradient(model, w + epsilon, x[rows], y[rows]))
        w = w - LR * sum(parts) / 2
    for found in ranks:
        np.testing.assert_allclose(found[name], w, atol=1e-9)
    assert np.abs(ranks[0]["SAM"] - w).max() > 1e-4


@pytest.mark.parametrize("way", ["file", "gathered"])
def test_every_rank_finds_the_logits_of_every_example(way: str, ranks: list[dict[str, Any]]) -> None:
    # Kills: private buffers, in which a rank finds only what it saw itself (half of the examples after a reshuffle).
    for rank in range(2):
        wanted = []
        for epoch in range(3):
            order = torch.randperm(8, generator=torch.Generator().manual_seed(epoch))
            for rows in order[rank::2].split(2):
                past, now = (logits(max(e, 0), rows).double().numpy() for e in (epoch - 1, epoch))
                p, q = softmax(past / 5, axis=1), softmax(now / 5, axis=1)
                wanted.append(0.3 * 25 * np.mean(np.sum(p * np.log(p / q), axis=1)) if epoch else 0.0)
        np.testing.assert_allclose(ranks[rank][way], wanted, rtol=1e-4, atol=1e-6)


def test_rules_that_join_both_gradients_need_the_same_on_all_ranks() -> None:
    model, *_ = build()
    model.no_sync = contextlib.nullcontext  # type: ignore[assignment]
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    for rule in (rules.GSAM(), rules.LookSAM(), rules.GeodesicSAM()):
        with pytest.raises(ArgumentError, match="expected sync='global'"):
            SAM(base, rule, model=model, sync="local")
