"""Several processes measure one model: the number of one process, on every rank; and errors instead of hangs."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spiritlevel as sl
from ranked import MEASURES, Mean, data, measured, network, together
from spiritlevel.core.fetching import Fetched
from spiritlevel.core.launched import launched, process_group
from spiritlevel.core.tensors import same_device
from spiritlevel.errors import ArgumentError, ModelError, RanksError
from spiritlevel.geometry.spread import assigned

QUICK = ("geodesic", "average", "trace")


def flat(x: Any) -> list[float]:
    return [y for z in x for y in flat(z)] if isinstance(x, list | tuple) else [float(x)]


def shard(model: nn.Module, world: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers:  # type: ignore[union-attr]  # a ModuleList
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mine(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Unequal shares of the batches: the first rank has 4 of 5, 3 of 4 and none of the last."""
    cuts = [slice(0, 4), slice(0, 3)] if rank == 0 else [slice(4, 5), slice(3, 4), slice(0, 1)]
    return [(x[s], y[s]) for (x, y), s in zip(data(), cuts, strict=False)]


def attention(name: str) -> bool:
    return "attention" in name or name == "embed.weight"


KINDS: dict[str, dict[str, Any]] = {
    "the same batches": {},
    "micro-batches": {"micro_batch": 1},
    "own": {"ranks": sl.Ranks(data="own", timeout=60)},
    "sharded": {"ranks": sl.Ranks(state="sharded", timeout=60)},
    "own, sharded": {"ranks": sl.Ranks(data="own", state="sharded", timeout=60)},
    "FSDP2": {"ranks": sl.Ranks(timeout=60)},
    "FSDP2, some weights": {"parameters": attention},
    "checkpoints": {"ranks": sl.Ranks(state="sharded", timeout=60), "checkpointing": True},
    "empty passes": {"ranks": sl.Ranks(state="sharded", timeout=60), "micro_batch": 1, "loss": Mean()},
}


def problem_of(kind: str, rank: int, world: int) -> sl.DistributedProblem:
    model: nn.Module = network()
    if kind == "the same batches":
        model = DistributedDataParallel(model)
    if kind.startswith("FSDP2"):
        model = shard(model, world)
    return sl.DistributedProblem(model, mine(rank) if kind.startswith("own") else data(), **KINDS[kind])


def measured_by_ranks(rank: int, world: int, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    problem = problem_of(kind, rank, world)
    before = {n: p.clone() for n, p in problem.model.named_parameters() if type(p) is nn.Parameter}
    found = measured(problem, names)
    assert all(torch.equal(p, before[n]) for n, p in problem.model.named_parameters() if n in before)
    return {**found, "coordinates": problem.chart(sl.Elementwise()).size}


def compare(found: list[dict[str, Any]], names: tuple[str, ...], parameters: Any = None) -> None:
    one = measured(sl.Problem(network(), data(), parameters=parameters), names)
    for name in names:
        assert all(rank[name] == found[0][name] for rank in found), name  # to the last bit
        wanted = np.array(flat(one[name]))
        np.testing.assert_allclose(flat(found[0][name]), wanted, rtol=0, atol=1e-6 * np.abs(wanted).max(), err_msg=name)


def test_two_ranks_give_the_number_of_one_process() -> None:
    """DDP. Kills: means over ranks unweighted by terms, gradients not exchanged, examples counted twice or left out."""
    compare(together(measured_by_ranks, "the same batches", QUICK), QUICK)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_every_measure_on_two_ranks(kind: str) -> None:
    """Kills: as above; a rank without examples, shares by examples rather than terms, other random numbers on the
    ranks, gradients that stay where they are computed, weights of another point fetched again on the way back."""
    names = QUICK if kind in ("checkpoints", "FSDP2, some weights", "empty passes") else tuple(MEASURES)
    found = together(measured_by_ranks, kind, names)
    chosen = KINDS[kind].get("parameters")
    compare(found, names, chosen)
    sizes = [rank["coordinates"] for rank in found]
    parameters = sum(p.numel() for n, p in network().named_parameters() if chosen is None or chosen(n))
    if problem_is_sharded := kind not in ("the same batches", "micro-batches", "own"):
        assert sum(sizes) == parameters + 2  # and a token each
    assert max(sizes) < (0.6 if problem_is_sharded else 1.01) * parameters


@pytest.mark.slow
def test_three_ranks_of_which_one_has_no_examples() -> None:
    """A batch of one sequence on three ranks; kills: a batch that is not divisible by the ranks."""
    compare(together(measured_by_ranks, "sharded", QUICK, world=3), QUICK)


# ---------------------------------------------------------------------------------------------------------- refusals


def refusals(rank: int, world: int) -> dict[str, str]:
    """The messages of what goes wrong alike on every rank, or only on the second; all ranks see each."""
    wait, found = sl.Ranks(timeout=20), {}
    other = network(1 if rank else 0)
    shuffled = data()[::-1] if rank else data()
    problem = sl.DistributedProblem(network(), data(), ranks=wait)
    tries: dict[str, Any] = {
        "weights": lambda: sl.gradient_norm(sl.DistributedProblem(other, data(), ranks=wait), sl.Euclidean()),
        "data": lambda: sl.gradient_norm(sl.DistributedProblem(network(), shuffled, ranks=wait), sl.Euclidean()),
        "arguments": lambda: sl.gradient_norm(
            sl.DistributedProblem(network(), data(), micro_batch=2 if rank else None, ranks=wait), sl.Euclidean()
        ),
        "settings": lambda: sl.adaptive_sharpness(problem, 0.5 + rank),
        "examples": lambda: sl.gradient_norm(
            sl.DistributedProblem(network(), [], ranks=sl.Ranks(data="own", timeout=20)), sl.Euclidean()
        ),
        "own error": lambda: sl.gradient_norm(
            sl.DistributedProblem(network(), data(), broken, ranks=wait), sl.Euclidean()
        ),
        "sharded": lambda: sl.gradient_norm(sl.Problem(shard(network(), world), data()), sl.Euclidean()),
        "whole": lambda: sl.DistributedProblem(shard(network(), world), data(), ranks=sl.Ranks(state="whole")),
        "batch": lambda: sl.find_symmetries(shard(network(), world), kinds="all", batch=data()[0]),
        "dense": lambda: sl.gradient_norm(
            sl.DistributedProblem(network(), data(), ranks=sl.Ranks(state="sharded")),
            sl.Dense(torch.eye(sum(p.numel() for p in network().parameters())).double()),
        ),
        "blocks": lambda: sl.gradient_norm(
            sl.DistributedProblem(network(), data(), ranks=sl.Ranks(state="sharded")),
            sl.Quotient(blocks=sl.find_symmetries(network(), kinds="all", batch=data()[0])),
        ),
        "diagonal": lambda: sl.hessian_diagonal(
            sl.DistributedProblem(network(), data(), ranks=sl.Ranks(state="sharded")), sl.Euclidean()
        ),
        "sketch": lambda: sl.hessian_trace(
            sl.DistributedProblem(network(), data(), ranks=sl.Ranks(state="sharded")), sl.Euclidean(), method="xtrace"
        ),
        "another change": lambda: sl.reparam.reparametrised(problem, sl.reparam.Scaling(3.0)),
        "after all": lambda: sl.gradient_norm(problem, sl.Euclidean()),
    }
    for name, attempt in tries.items():
        try:
            found[name] = f"{float(attempt()):.6f}"
        except sl.errors.SpiritlevelError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def broken(output: Tensor, batch: Any) -> Tensor:
    if torch.distributed.get_rank():
        raise RuntimeError("CUDA out of memory")
    return nn.functional.cross_entropy(output.flatten(0, 1), batch[1].flatten())


@pytest.mark.slow
def test_ranks_that_do_not_agree_are_told_so() -> None:
    """Each on both ranks, at once; and the next measurement works."""
    for rank, found in enumerate(together(refusals)):
        assert (
            "RanksError: expected the same weights on every rank, but rank 1 has others (first embed"
            in found["weights"]
        )
        assert "broadcast rank 0's" in found["weights"]
        assert "expected the same batches on every rank" in found["data"]
        assert "data='own'" in found["data"]
        assert (
            "expected the same settings on every rank, but rank 1 has others (first micro_batch" in found["arguments"]
        )
        assert f"but rank {rank} is at adaptive sharpness (l2)" in found["settings"]
        assert "DataError: expected examples on at least one rank, got none" in found["examples"]
        mine, theirs = "ModelError: expected the loss to work on the data", "but rank 1 stopped with an error"
        assert (mine if rank else theirs) in found["own error"]
        assert "ModelError: expected weights that are whole in this process" in found["sharded"]
        assert "ArgumentError: expected state='auto' or 'sharded'" in found["whole"]
        assert "ModelError: expected a whole model to follow a batch" in found["batch"]
        assert "ArgumentError: expected a geometry that moves weights or pairs" in found["dense"]
        assert "ArgumentError: expected only pairs" in found["blocks"]
        assert "ArgumentError: expected coordinates that are whole on every rank for the diagonal" in found["diagonal"]
        assert "whole on every rank for method='xtrace'" in found["sketch"]
        assert "ArgumentError: expected a problem of one process to change" in found["another change"]
        assert found["after all"] == f"{float(sl.gradient_norm(sl.Problem(network(), data()), sl.Euclidean())):.6f}"


class Dies(nn.Module):
    """Kills or stops its process in the middle of a search."""

    def __init__(self, how: str, at: int) -> None:
        super().__init__()
        self.inner, self.how, self.left = network(), how, at

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0 and self.how == "dies":
            os.kill(os.getpid(), 9)
        if self.left == 0 and self.how == "hangs":
            time.sleep(60)
        return self.inner(x)


def with_a_dead_rank(rank: int, world: int, how: str, state: Any) -> float:
    model = Dies(how if rank else "lives", 12).eval()
    began = time.monotonic()
    try:
        sl.adaptive_sharpness(sl.DistributedProblem(model, data(), ranks=sl.Ranks(state=state, timeout=8)), 0.5)
    except RanksError as error:
        spent = time.monotonic() - began
        return (spent if "within 8 s" in str(error) else -2.0) if rank == 0 else 0.0
    return -1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "state"), [("dies", "whole"), ("dies", "sharded"), ("hangs", "whole"), ("hangs", "sharded")]
)
def test_a_rank_that_is_gone_is_an_error_within_the_time_limit(how: str, state: str) -> None:
    """Kills: a wait without end."""
    first, second = together(with_a_dead_rank, how, state)
    assert second is None if how == "dies" else second == 0.0
    assert 0 <= first < 40


# -------------------------------------------------------------------------------------------------- in one process


def test_settings_are_checked() -> None:
    with pytest.raises(ArgumentError, match="expected data='split' or data='own', got 'mine'"):
        sl.Ranks(data="mine")  # type: ignore[arg-type]  # the user's mistake
    with pytest.raises(ArgumentError, match="expected state='auto', 'whole' or 'sharded', got 'half'"):
        sl.Ranks(state="half")  # type: ignore[arg-type]  # as above
    with pytest.raises(ArgumentError, match="expected a timeout in seconds above 0, got 0"):
        sl.Ranks(timeout=0)


def test_without_a_process_group_the_way_out_is_said() -> None:
    with pytest.raises(ArgumentError, match="expected a process group, got none: start with torchrun"):
        sl.DistributedProblem(network(), data())


def test_a_weight_that_is_elsewhere_is_met_in_a_forward_pass_only() -> None:
    """Kills: an empty tensor in place of a weight."""
    away = Fetched.of(torch.Size([2]), torch.float32, torch.device("cpu"), lambda: torch.ones(2))
    assert (away.shape, away.dtype) == ((2,), torch.float32)
    with pytest.raises(
        ModelError, match=r"expected weights of a sharded model .* but aten.add.Tensor met one elsewhere"
    ):
        away + 1


def test_owners_keep_blocks_together_and_balance() -> None:
    """Kills: the two sides of a pair on different ranks, everything on the first rank."""
    model = network()
    sizes, blocks = {n: p.numel() for n, p in model.named_parameters()}, sl.find_symmetries(model)
    owners = assigned(sizes, blocks, 3)
    for block in blocks:
        assert len({owners[n] for n in block.parameters}) == 1
    load = [sum(s for n, s in sizes.items() if owners[n] == r) for r in range(3)]
    assert max(load) < 1.35 * sum(load) / 3


def test_parameters_on_two_devices_are_refused() -> None:
    with pytest.raises(ModelError, match="expected all parameters on one device, got cpu, meta"):
        same_device({"a": torch.zeros(1), "b": torch.zeros(1, device="meta")})


def test_outside_of_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launched() == 1
    with process_group(torch.device("cpu"), 1.0) as found:
        assert not found


def test_a_process_whose_partners_never_come_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(RanksError, match="expected 2 processes to meet within 1 s"),
        process_group(torch.device("cpu"), 1.0),
    ):
        pass
