"""Diagonal linear networks on sparse regression, trained together: the data of section 5.1 of Hide & Seek.

The paper states the width, the sparsity, the number of networks and the training loss at which they stop. Everything
else in `Setting` is chosen here and varied; the ranges were narrowed once, after a pilot,
so that training ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.errors import ArgumentError

__all__ = ["Setting", "Zoo", "train"]

F64 = torch.float64


@dataclass(frozen=True)
class Setting:
    """What fixes a zoo, but for the seed.

    Attributes:
        width: d (paper: 200).
        nonzero: entries of the truth that are not 0 (paper: 10 % of d).
        networks: how many (paper: 50).
        loss: training loss at which a network stops (paper: 1e-5).
        examples: n. Chosen: with n >= d all networks would find the same regressor, and there were nothing to predict.
        noise: standard deviation of the noise of labels, for a truth whose entries have standard deviation 1. Chosen.
        ones: entries of the truth are +-1 and not standard normal. Chosen.
        init: standard deviation of every first weight; log-uniform between these ends, network by network. Chosen.
        rates: of plain gradient descent on all data; log-uniform between these ends. Chosen.
        steps: a network that is not done by then is left out. Chosen.
    """

    width: int = 200
    nonzero: int = 20
    networks: int = 50
    loss: float = 1e-5
    examples: int = 100
    noise: float = 0.0
    ones: bool = False
    init: tuple[float, float] = (0.05, 1.0)
    rates: tuple[float, float] = (0.01, 0.05)
    steps: int = 60_000

    def __post_init__(self) -> None:
        """Check what could not be trained."""
        if not 0 < self.nonzero <= self.width or self.examples < 1 or self.networks < 2:
            raise ArgumentError(
                f"expected 0 < nonzero <= width, at least one example and two networks; got {self.nonzero} of "
                f"{self.width}, {self.examples} and {self.networks}"
            )
        for name, (low, high) in (("init", self.init), ("rates", self.rates)):
            if not 0 < low <= high:
                raise ArgumentError(f"expected {name} to be two numbers above 0 in order, got {low} and {high}")


@dataclass(frozen=True)
class Zoo:
    """Networks that reached the loss, on one draw of data.

    Attributes:
        x: inputs (n, d), standard normal over ``sqrt(n)``: ``E X^T X = I``, and the loss is a mean square.
        y: labels, over ``sqrt(n)`` too.
        truth: ``beta*``.
        u: first weights (networks, d).
        v: second weights.
        init: scale of the first weights of each network.
        steps: gradient steps each took.
        lost: how many did not get there.
    """

    x: Tensor
    y: Tensor
    truth: Tensor
    u: Tensor
    v: Tensor
    init: Tensor
    steps: Tensor
    lost: int

    @property
    def beta(self) -> Tensor:
        """``u v`` of each network."""
        return self.u * self.v

    @property
    def train_loss(self) -> Tensor:
        """``|X beta - y|^2`` of each network."""
        return (self.beta @ self.x.T - self.y).square().sum(1)

    @property
    def test_loss(self) -> Tensor:
        """The expected square on new noiseless data, exactly: ``|beta - beta*|^2`` for standard normal inputs."""
        return (self.beta - self.truth).square().sum(1)


def train(setting: Setting, seed: int) -> Zoo:
    """Draw data and first weights, and train every network to the stated loss."""
    generator = torch.Generator().manual_seed(seed)
    x, y, truth = _data(setting, generator)
    init = _log_uniform(setting.init, setting.networks, generator)
    rates = _log_uniform(setting.rates, setting.networks, generator)
    shape = (2, setting.networks, setting.width)
    u, v = init * torch.randn(shape, generator=generator, dtype=F64)
    done_u, done_v = u.clone(), v.clone()
    taken = torch.full((setting.networks,), -1)
    rows, transposed = torch.arange(setting.networks), x.T.contiguous()
    for step in range(setting.steps + 1):
        residual = (u * v) @ transposed - y
        going = residual.square().sum(1) > setting.loss
        if not bool(going.all()):
            there = ~going
            done_u[rows[there]], done_v[rows[there]], taken[rows[there]] = u[there], v[there], step
            rows, u, v, rates, residual = (t[going] for t in (rows, u, v, rates, residual))
            if not len(rows):
                break
        gradient = (2 * rates) * (residual @ x)
        u, v = u - gradient * v, v - gradient * u
    good = taken >= 0
    lost = int((~good).sum())
    if lost > setting.networks - 2:
        raise ArgumentError(
            f"expected networks to reach a loss of {setting.loss:g} in {setting.steps} steps, got {setting.networks} - "
            f"{lost}: allow more steps, or smaller rates where they diverge"
        )
    return Zoo(x, y, truth, done_u[good], done_v[good], init[good, 0], taken[good], lost)


def _data(setting: Setting, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    n, d, k = setting.examples, setting.width, setting.nonzero
    x = torch.randn(n, d, generator=generator, dtype=F64) / math.sqrt(n)
    truth = torch.zeros(d, dtype=F64)
    values = torch.randn(k, generator=generator, dtype=F64)
    truth[torch.randperm(d, generator=generator)[:k]] = values.sign() if setting.ones else values
    noise = torch.randn(n, generator=generator, dtype=F64) / math.sqrt(n)
    return x, x @ truth + setting.noise * noise, truth


def _log_uniform(ends: tuple[float, float], count: int, generator: torch.Generator) -> Tensor:
    low, high = (math.log(e) for e in ends)
    return torch.exp(low + (high - low) * torch.rand(count, 1, generator=generator, dtype=F64))
