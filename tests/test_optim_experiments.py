"""The experiments adam-sparse and sam-digits, small: their parts against oracles, their reports whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.experiments import EXPERIMENTS, adam_sparse, sam_digits, sam_methods
from spiritlevel.experiments.intervals import mean_interval, verdict


def test_the_gradient_by_hand_is_that_of_autograd() -> None:
    # Kills: a factor 2, the sign of v.
    g = torch.Generator().manual_seed(0)
    theta = nn.Parameter(torch.randn(3, 10, generator=g))
    z, truth, noise = torch.randn(3, 5, generator=g), torch.randn(5, generator=g), torch.randn(3, generator=g)
    u, v = theta.chunk(2, dim=1)
    labels = (z * truth).sum(1) + noise
    (0.5 * ((z * (u**2 - v**2)).sum(1) - labels) ** 2).sum().backward()
    wanted = theta.grad.clone()
    adam_sparse._gradient(theta, z, truth, noise)
    torch.testing.assert_close(theta.grad, wanted)


@pytest.mark.parametrize("power", [0.5, 0.75, 1.0])
def test_the_diagonal_of_the_network_is_four_theta_squared(power: float) -> None:
    g = torch.Generator().manual_seed(0)
    net = adam_sparse.DiagonalNet(torch.randn(12, generator=g, dtype=torch.float64))
    z = torch.randint(2, (9, 6), generator=g).double() * 2 - 1
    problem = sl.Problem(net, [(z, net(z).detach())], loss=lambda out, batch: 0.5 * (out - batch[1]).square().mean())
    measured = sl.root_diagonal_trace(problem, power=power, method="exact").value
    theta = torch.cat([net.u, net.v]).detach().unsqueeze(0)
    assert measured == pytest.approx(float(adam_sparse._sum(theta, power)), rel=1e-10)


def test_adam_sparse_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = replace(adam_sparse.QUICK, width=30, sparsity=2, steps=3000, lr=2e-2, seeds=3)
    monkeypatch.setattr(adam_sparse, "QUICK", small)
    report = EXPERIMENTS["adam-sparse"].run(True, 0)
    assert len(report.claims) == 6
    sums = report.data["sums"]
    gap = (sums["SGD"]["sum H^0.5"] - sums["Adam"]["sum H^0.5"]).mean()
    assert report.claims[0].here == pytest.approx(float(gap), rel=1e-5)
    assert report.claims[0].here > 0  # the robust statement: even this small
    assert report.claims[4].holds is True
    assert {p.suffix for p in report.write(tmp_path)} == {".json", ".csv", ".md", ".png", ".svg"}
    assert json.loads((tmp_path / "adam-sparse.json").read_text())["settings"]["slow time"] == pytest.approx(1.2)


def test_sam_digits_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sam_digits, "QUICK", replace(sam_digits.QUICK, examples=50, epochs=4, seeds=2))
    report = EXPERIMENTS["sam-digits"].run(True, 0)
    assert len(report.claims) == 2 * len(sam_digits.METHODS)
    assert all(c.interval is not None for c in report.claims)
    accuracies = report.data["small net"]
    assert len({tuple(r["accuracy"]) for r in accuracies.values()}) > 4  # the methods differ
    assert accuracies["base"]["accuracy"][0] > 0.3
    assert {p.suffix for p in report.write(tmp_path)} == {".json", ".csv", ".md", ".png", ".svg"}


def test_a_method_does_not_see_the_others() -> None:
    # Kills: methods that share the random state, so that the table depends on its order.
    setting = sam_methods.Setting(examples=50, epochs=2, seeds=1)
    both = sam_digits._compete(setting, "small net", 0, lambda *_, **__: None)
    only = dict(sam_digits.METHODS)
    try:
        for name in [n for n in only if n not in ("SAM", "base")]:
            del sam_digits.METHODS[name]
        alone = sam_digits._compete(setting, "small net", 0, lambda *_, **__: None)
    finally:
        sam_digits.METHODS.clear()
        sam_digits.METHODS.update(only)
    assert alone["SAM"][0] == both["SAM"][0]


def test_intervals() -> None:
    mean, (low, high) = mean_interval([2.0])
    assert (mean, low, high) == (2.0, -float("inf"), float("inf"))
    assert verdict((-2.0, -1.0)) is False
    assert verdict((-2.0, -1.0), positive=False) is True
