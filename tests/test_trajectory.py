"""SAF and MESA: the losses against their formulas, and the store that other processes share."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

from sam_oracles import build
from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.optim import EMATeacherLoss, TrajectoryLoss

F = nn.functional


def divergence(past: np.ndarray, now: np.ndarray, tau: float) -> float:
    """tau^2 KL(past || now), mean over rows, from the definition."""
    p, q = softmax(past / tau, axis=1), softmax(now / tau, axis=1)
    return float(tau**2 * np.mean(np.sum(p * np.log(p / q), axis=1)))


def logits(epoch: int, rows: Tensor, grad: bool = False) -> Tensor:
    g = torch.Generator().manual_seed(epoch)
    return torch.randn(10, 4, generator=g, dtype=torch.float64)[rows].requires_grad_(grad)


def test_the_trajectory_loss_is_its_formula() -> None:
    # Kills: the divergence the other way round, no tau^2, past of another epoch or example, gradients into the past.
    extra = TrajectoryLoss(10, 4, lag=2, tau=3.0, lam=0.5, start=3, dtype=torch.float64)
    for epoch in range(6):
        extra.set_epoch(epoch)
        order = torch.randperm(10, generator=torch.Generator().manual_seed(100 + epoch))
        for rows in order.split(4):
            now = logits(epoch, rows, grad=True)
            loss = extra(now, rows)
            if epoch < 3:
                assert loss.item() == 0
                continue
            past = logits(epoch - 2, rows)
            assert loss.item() == pytest.approx(0.5 * divergence(past.numpy(), now.detach().numpy(), 3.0), rel=1e-9)
            (got,) = torch.autograd.grad(loss, now)
            p, q = (softmax(v.detach().numpy() / 3.0, axis=1) for v in (past, now))
            np.testing.assert_allclose(got.numpy(), 0.5 * 3.0 * (q - p) / len(rows), atol=1e-12)


def test_rows_that_were_not_there_are_left_out() -> None:
    # Kills: zeros taken for logits (a pull towards the uniform distribution), an older epoch taken for the right one.
    extra = TrajectoryLoss(10, 4, lag=1, start=0, lam=1.0, dtype=torch.float64)
    for epoch, rows in enumerate([[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5], [9, 8]]):
        extra.set_epoch(epoch)
        indices = torch.tensor(rows)
        loss = extra(logits(epoch, indices), indices).item()
        there = torch.tensor([r for r in rows if r in {1: (0, 1), 2: (4, 5)}.get(epoch, ())])
        wanted = 0.0
        if len(there):
            wanted = divergence(logits(epoch - 1, there).numpy(), logits(epoch, there).numpy(), 5.0)
        assert loss == pytest.approx(wanted, rel=1e-9)
    extra.set_epoch(4)
    twice = torch.tensor([9, 9])  # as padding of a distributed sampler gives
    assert extra(logits(4, twice), twice).item() > 0


def test_half_precision_in_a_shared_file(tmp_path: Path) -> None:
    # Kills: a private buffer for each process, full precision, a stale file of another run.
    path = tmp_path / "logits"
    one = TrajectoryLoss(10, 4, lag=1, start=0, path=path)
    other = TrajectoryLoss(10, 4, lag=1, start=0, path=path, resume=True)
    memory = TrajectoryLoss(10, 4, lag=1, start=0, dtype=torch.float32)
    assert one.store.nbytes == 2 * 10 * (2 * 4 + 4) == path.stat().st_size + Path(f"{path}.epochs").stat().st_size
    rows = torch.arange(10)
    for extra in (one, other, memory):
        extra.set_epoch(0)
    one(logits(0, rows[:5]).float(), rows[:5])
    other(logits(0, rows[5:]).float(), rows[5:])
    memory(logits(0, rows).float(), rows)
    for extra in (one, other, memory):
        extra.set_epoch(1)
    found = [extra(logits(1, rows).float(), rows).item() for extra in (one, other, memory)]
    assert found[0] == found[1] == pytest.approx(found[2], rel=2e-3)
    with pytest.raises(DataError, match="expected no file at"):
        TrajectoryLoss(10, 4, lag=1, path=path)
    with pytest.raises(DataError, match="expected no file at"):
        TrajectoryLoss(11, 4, lag=1, path=path, resume=True)


def test_saved_and_loaded_it_goes_on() -> None:
    rows = torch.arange(10)
    one, other = (TrajectoryLoss(10, 4, lag=1, start=0) for _ in range(2))
    one.set_epoch(0)
    one(logits(0, rows), rows)
    other.load_state_dict(one.state_dict())
    values = []
    for extra in (one, other):
        extra.set_epoch(1)
        values.append(extra(logits(1, rows), rows).item())
    assert values[0] == values[1] > 0
    with pytest.raises(DataError, match="expected stored logits of shape"):
        TrajectoryLoss(9, 4, lag=1).load_state_dict(one.state_dict())


def test_evaluation_stores_nothing() -> None:
    extra = TrajectoryLoss(10, 4, lag=1, start=0).eval()
    assert extra(logits(0, torch.arange(10)), torch.arange(10)).item() == 0
    assert int(extra.store._epochs.max()) == 0


def test_wrong_use_of_the_losses() -> None:
    extra = TrajectoryLoss(10, 4)
    with pytest.raises(ArgumentError, match="expected set_epoch"):
        extra(logits(0, torch.arange(4)), torch.arange(4))
    with pytest.raises(ArgumentError, match="expected epochs from 0 on"):
        extra.set_epoch(-1)
    extra.set_epoch(0)
    for wrong in (torch.tensor([0, 1]), torch.tensor([0, 1, 2, 10]), torch.tensor([-1, 1, 2, 3])):
        with pytest.raises(DataError, match="expected the index of each of 4 examples"):
            extra(logits(0, torch.arange(4)), wrong)
    with pytest.raises(ArgumentError, match="expected tau to be finite and above 0"):
        TrajectoryLoss(10, 4, tau=0.0)
    model, *_ = build()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="expected beta between 0 and 1"):
        EMATeacherLoss(model, base, beta=1.0)
    with pytest.raises(ArgumentError, match="expected the optimizer that trains the model"):
        EMATeacherLoss(model, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    with pytest.raises(ArgumentError, match="expected the inputs of the model after the logits"):
        EMATeacherLoss(model, base)(torch.ones(1, 3))


def test_the_teacher_is_the_running_mean() -> None:
    # Kills: 1 - beta and beta exchanged, a teacher that is the student, that trains, or never moves; dropout in it.
    model, x, y = build()
    base = torch.optim.SGD(model.parameters(), lr=0.5)
    extra = EMATeacherLoss(model, base, beta=0.7, tau=2.0, lam=0.8)
    assert not [p for p in extra.parameters() if p.requires_grad]
    mean = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(5):
        now = model(x)
        loss = extra(now, x)
        past = torch.func.functional_call(model, mean, (x,)).detach()
        wanted = 0.8 * divergence(past.numpy(), now.detach().numpy(), 2.0)
        assert loss.item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        base.zero_grad()
        (F.cross_entropy(now, y) + loss).backward()
        base.step()
        mean = {n: 0.7 * v + 0.3 * p.detach() for (n, v), p in zip(mean.items(), model.parameters(), strict=True)}
    assert extra.train().teacher.training is False
    assert extra.eval()(model(x), x).item() == 0
    again = EMATeacherLoss(model, base, start=100)
    again.load_state_dict(extra.state_dict())
    for a, b in zip(again.teacher.parameters(), mean.values(), strict=True):
        torch.testing.assert_close(a.data, b)
    assert int(again.steps) == 5
    assert again(model(x), x).item() == 0  # before its start


def test_the_teacher_has_statistics_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    extra = EMATeacherLoss(model, base, beta=0.5)
    before = copy.deepcopy(model[1].running_mean)
    model(torch.randn(8, 4)).sum().backward()
    base.step()
    torch.testing.assert_close(extra.teacher[1].running_mean, (before + model[1].running_mean) / 2)
    assert int(extra.teacher[1].num_batches_tracked) == 1
