"""Adam's own sharpness on diagonal linear networks with label noise (Li, Wen and Lyu 2025).

The network is ``f(z) = <z, u*u - v*v>`` on inputs of signs, the truth is sparse, and every label gets fresh noise at
every step. Near zero loss the diagonal of the Hessian is ``4 (u^2, v^2)``, so the trace is the l1 norm of the
interpolator and ``sum sqrt(H_jj)`` its l1/2 norm: whoever reduces the second finds sparser solutions.

All runs advance together as rows of one tensor, and every optimizer is `AdamE` with its own power.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spiritlevel.core.drawing import COLOURS, GREY, panels
from spiritlevel.core.progress import Advance, progress
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.intervals import mean_interval, verdict
from spiritlevel.geometry import Euclidean
from spiritlevel.measures import root_diagonal_trace
from spiritlevel.optim import AdamE, root_diagonal_from_state
from spiritlevel.problem import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DiagonalNet", "Setting", "adam_sparse"]

POWERS = {"SGD": 0.0, "AdamE-1/4": 0.25, "Adam": 0.5}


@dataclass(frozen=True)
class Setting:
    """Everything that fixes a run; the paper's text states none of these numbers, so all are chosen here.

    Attributes:
        width: d.
        sparsity: entries of the truth that are 1.
        noise: of the labels, plus or minus.
        start: every weight at first.
        lr: the same for all optimizers: the slow time ``steps lr^2`` is then matched.
        steps: in all.
        anneal: share of them at the end in which the rate falls to 0, before anything is read.
        examples: n, in turn.
        seeds: of data and noise.
    """

    width: int = 100
    sparsity: int = 4
    noise: float = 1.0
    start: float = 0.3
    lr: float = 5e-3
    steps: int = 600_000
    anneal: float = 0.2
    examples: tuple[int, ...] = (12, 15, 18, 22)
    seeds: int = 8

    @property
    def beta2(self) -> float:
        """``1 - 10 lr^2``: the second moment forgets in slow time (the paper's 2-scheme)."""
        return 1 - 10 * self.lr**2


QUICK = Setting(lr=1e-2, steps=30_000, examples=(15, 22), seeds=6)


class DiagonalNet(nn.Module):
    """One network, for the measures of the library."""

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        u, v = theta.chunk(2)
        self.u, self.v = nn.Parameter(u.clone()), nn.Parameter(v.clone())

    def forward(self, z: Tensor) -> Tensor:
        """``<z, u^2 - v^2>``."""
        return z @ (self.u.square() - self.v.square())


@dataclass
class _Runs:
    """What was found with one optimizer, run by run (n first, then seed)."""

    test: Tensor
    sums: dict[str, Tensor]
    times: list[float]
    history: dict[str, list[float]]
    theta: Tensor
    from_state: float
    noise_free: float


def _data(setting: Setting, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (runs, most n, d), how many of them each run has, and the truth."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([n for n in setting.examples for _ in range(setting.seeds)])
    signs = torch.randint(2, (setting.seeds, max(setting.examples), setting.width), generator=generator) * 2.0 - 1
    truth = torch.zeros(setting.width)
    truth[: setting.sparsity] = 1.0
    return signs.repeat(len(setting.examples), 1, 1), counts, truth


def _train(setting: Setting, power: float, seed: int, advance: Advance) -> _Runs:
    z, counts, truth = _data(setting, seed)
    runs, d = len(counts), setting.width
    theta = nn.Parameter(torch.full((runs, 2 * d), setting.start))
    theta.grad = torch.zeros_like(theta)
    optimizer = AdamE([theta], lr=setting.lr, betas=(0.9, setting.beta2), power=power)
    generator, rows = torch.Generator().manual_seed(seed + 1), torch.arange(runs)
    found = _Runs(torch.empty(0), {}, [], {name: [] for name in POWERS}, theta.data, 0.0, 0.0)
    falls, free = int(setting.steps * (1 - setting.anneal)), torch.zeros_like(theta)
    for step in range(setting.steps):
        if step % 1000 == 0:
            picks = (torch.rand(1000, runs, generator=generator) * counts).long()
            noises = (torch.randint(2, (1000, runs), generator=generator) * 2.0 - 1) * setting.noise
            _note(found, theta.data, step * setting.lr**2)
            advance(steps=min(1000, setting.steps - step))
        _gradient(theta, z[rows, picks[step % 1000]], truth, noises[step % 1000])
        if step == falls:  # v is read while the noise still drives the weights at full rate
            free, found.from_state = theta.data.clone(), 0.0
            if power:
                found.from_state = root_diagonal_from_state(optimizer, noise=setting.noise**2).value
        if step > falls:
            optimizer.param_groups[0]["lr"] = setting.lr * (setting.steps - step) / (setting.steps - falls)
        optimizer.step()
    found.noise_free = float(2 * free.abs().sum())
    found.theta, w = theta.data, theta.data[:, :d] ** 2 - theta.data[:, d:] ** 2
    found.test = 0.5 * (w - truth).square().sum(1)
    found.sums = {name: _sum(theta.data, 1 - p) for name, p in POWERS.items()}
    return found


def _gradient(theta: nn.Parameter, z: Tensor, truth: Tensor, noise: Tensor) -> None:
    """Of ``(f - y - noise)^2 / 2`` at one example for each run, by hand: autograd would take most of the time."""
    u, v = theta.data.chunk(2, dim=1)
    residual = ((u.square() - v.square() - truth) * z).sum(1) - noise
    both = (2 * residual).unsqueeze(1) * z
    assert theta.grad is not None
    torch.mul(both, u, out=theta.grad[:, : u.shape[1]])
    torch.mul(both, v, out=theta.grad[:, u.shape[1] :]).neg_()


def _sum(theta: Tensor, power: float) -> Tensor:
    """``sum_j H_jj^power`` with ``H_jj = 4 theta_j^2``, for every run."""
    return (4 * theta.square()).pow(power).sum(1)


def _note(found: _Runs, theta: Tensor, time: float) -> None:
    found.times.append(time)
    for name, p in POWERS.items():
        found.history[name].append(float(_sum(theta, 1 - p).mean()))


def adam_sparse(quick: bool, seed: int) -> Report:
    """Run it: which optimizer ends lowest in which measure, at the same slow time?"""
    setting = QUICK if quick else Setting()
    with progress("diagonal networks", len(POWERS) * setting.steps) as advance:
        found = {name: _train(setting, power, seed, advance) for name, power in POWERS.items()}
    claims = (
        *_sharpness_claims(setting, found),
        *_sample_claims(setting, found),
        *_measure_claims(setting, found, seed),
    )
    data = {
        "test loss": {name: r.test.view(len(setting.examples), -1) for name, r in found.items()},
        "sums": {name: {f"sum H^{1 - p:g}": r.sums[m] for m, p in POWERS.items()} for name, r in found.items()},
        "slow time": found["SGD"].times,
        "history": {name: r.history for name, r in found.items()},
    }
    settings = {**asdict(setting), "beta2": setting.beta2, "slow time": setting.steps * setting.lr**2, "seed": seed}
    return Report(
        "adam-sparse",
        "Adam and the l1/2 norm: diagonal networks with label noise",
        claims,
        {**settings, "stated in the paper": "none of these numbers: all chosen here"},
        data,
        {"adam-sparse": _draw(setting, found)},
        _reading(claims),
    )


def _by_seed(setting: Setting, values: Tensor) -> list[float]:
    """One number for each seed: the mean over n."""
    return [float(x) for x in values.view(len(setting.examples), setting.seeds).mean(0)]


def _compared(setting: Setting, low: Tensor, high: Tensor) -> tuple[float, tuple[float, float]]:
    """Mean of ``high - low`` over seeds; both saw the same data and noise."""
    pairs = zip(_by_seed(setting, high), _by_seed(setting, low), strict=True)
    return mean_interval([b - a for b, a in pairs])


def _sharpness_claims(setting: Setting, found: Mapping[str, _Runs]) -> list[Claim]:
    claims = []
    for mine, other, words in (("Adam", "SGD", "sum sqrt(H_jj)"), ("SGD", "Adam", "tr(H)")):
        low, high = found[mine].sums[mine], found[other].sums[mine]
        gap, interval = _compared(setting, low, high)
        ends = ", ".join(f"{name} {float(runs.sums[mine].mean()):.4g}" for name, runs in found.items())
        note = f"{ends}; the number is {other} - {mine}"
        what = f"at matched slow time {mine} ends lower than {other} in {words} (abstract)"
        claims.append(Claim(what, "above 0", gap, verdict(interval), interval, note))
    return claims


def _sample_claims(setting: Setting, found: Mapping[str, _Runs]) -> list[Claim]:
    claims = []
    for name in ("Adam", "AdamE-1/4"):
        gap, interval = _compared(setting, found[name].test, found["SGD"].test)
        ends = {n: found[n].test.view(len(setting.examples), -1).mean(1) for n in (name, "SGD")}
        pairs = (f"n={n}: {a:.3g} and {b:.3g}" for n, a, b in zip(setting.examples, *ends.values(), strict=True))
        what = f"{name} finds the sparse truth better than SGD: test loss of SGD - {name} (Sec. on diagonal networks)"
        note = f"{name} and SGD, " + ", ".join(pairs)
        claims.append(Claim(what, "above 0", gap, verdict(interval), interval, note))
    return claims


def _measure_claims(setting: Setting, found: Mapping[str, _Runs], seed: int) -> list[Claim]:
    """What the library's measures say of the networks, against the formula ``H_jj = 4 theta_j^2``."""
    z, counts, _ = _data(setting, seed)
    theta, adam = found["Adam"].theta[-1].double(), found["Adam"]
    inputs = z[-1, : int(counts[-1])].double()
    net = DiagonalNet(theta)
    labels = net(inputs).detach()  # at the interpolating point that the formula is about
    problem = Problem(net, [(inputs, labels)], loss=lambda output, batch: 0.5 * (output - batch[1]).square().mean())
    measured = root_diagonal_trace(problem, Euclidean(), method="exact").value
    error = abs(measured / float(_sum(theta.unsqueeze(0), 0.5)) - 1)
    ratio = adam.from_state / adam.noise_free
    return [
        Claim("root_diagonal_trace is 2 sum |theta| where the labels are fitted: relative error", "0", error,
              error < 1e-6),
        Claim("Adam's state gives sum sqrt(H_jj) while it trains: sum sqrt(v) / noise over the true sum", "1", ratio,
              abs(ratio - 1) < 0.1, note="above 1 while the loss itself moves v too; 10 % off counts as yes"),
    ]  # fmt: skip


def _draw(setting: Setting, found: Mapping[str, _Runs]) -> Figure:
    figure, axes = panels(1, 3, 11, 3.6)
    for measure, words, at in (("Adam", r"$\sum_j \sqrt{H_{jj}}$", 0), ("SGD", r"tr $H$", 1)):
        for (name, runs), colour in zip(found.items(), COLOURS, strict=False):
            axes[0, at].plot(runs.times, runs.history[measure], color=colour, label=name, lw=1.4)
        best = 2 * setting.sparsity if measure == "Adam" else 4 * setting.sparsity
        axes[0, at].axhline(best, color=GREY, lw=0.8, ls="--", label="the truth")
        axes[0, at].set(xlabel="slow time, steps x lr$^2$", title=f"{words}, mean over runs", yscale="log")
    for k, ((name, runs), colour) in enumerate(zip(found.items(), COLOURS, strict=False)):
        rows = runs.test.view(len(setting.examples), -1)
        ends = [mean_interval([float(x) for x in row]) for row in rows]
        means = [m for m, _ in ends]
        errors = [[m - max(low, 0.0) for m, (low, _) in ends], [high - m for m, (_, high) in ends]]
        places = [n + 0.25 * (k - 1) for n in setting.examples]
        axes[0, 2].errorbar(places, means, errors, color=colour, marker="o", ms=4, lw=1.2, capsize=2, label=name)
    axes[0, 2].set(xlabel="examples n", title="test loss, 95 % over seeds", xticks=setting.examples)
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


def _reading(claims: Sequence[Claim]) -> str:
    words = {True: "holds", False: "does not hold", None: "cannot be told"}
    return (
        f"That Adam ends lower in its own measure {words[claims[0].holds]} here, that SGD does in the trace "
        f"{words[claims[1].holds]}. That Adam needs fewer examples {words[claims[2].holds]} at this size, for "
        f"AdamE-1/4 it {words[claims[3].holds]}: test losses depend on horizon, rate and second-moment decay, which "
        "the paper's text does not state, so this is a test of the measures and not of the paper's threshold."
    )


EXPERIMENTS.register("adam-sparse")(
    Experiment("which sharpness Adam, SGD and AdamE reduce, on sparse regression with label noise", adam_sparse)
)
