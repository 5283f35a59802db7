"""Sharpness-aware methods side by side on scikit-learn's digits: accuracy and cost, on two small networks.

Radii are those of the methods' papers for small networks, or a plain choice where there is none; nothing is tuned, so
the table says that every method trains and what it costs, and which gains stand out of the noise of seeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spiritlevel.core.drawing import COLOURS, panels
from spiritlevel.core.progress import Advance, progress
from spiritlevel.errors import MissingDependencyError
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.intervals import mean_interval, verdict
from spiritlevel.experiments.sam_methods import BASE, METHODS, NETWORKS, Evaluating, Run, Setting, SmallViT, Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sam_digits"]


QUICK = Setting(epochs=6, seeds=3)


def _digits(setting: Setting, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError("expected scikit-learn for the digits: pip install scikit-learn") from error
    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1, torch.tensor(data.target).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y, n = x[order], y[order], setting.examples
    generator = torch.Generator().manual_seed(seed)
    noisy = torch.where(
        torch.rand(n, generator=generator) < setting.wrong, torch.randint(10, (n,), generator=generator), y[:n]
    )
    return (x[:n], noisy), (x[-1297:], y[-1297:])


@dataclass
class _Result:
    accuracy: list[float]
    seconds: list[float]


def _base(model: nn.Module, setting: Setting) -> torch.optim.Optimizer:
    if isinstance(model, SmallViT):
        return torch.optim.AdamW(model.parameters(), lr=setting.lr[1], weight_decay=0.01)
    return torch.optim.SGD(model.parameters(), lr=setting.lr[0], momentum=0.9, weight_decay=5e-4)


def _batches(setting: Setting, seed: int) -> Iterator[tuple[int, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(setting.epochs):
        for rows in torch.randperm(setting.examples, generator=generator).split(setting.batch):
            yield epoch, rows


def _compete(setting: Setting, network: str, seed: int, advance: Advance) -> dict[str, tuple[float, float]]:
    """Accuracy and CPU seconds of every method with one seed; their steps take turns, so that load is shared."""
    train, (x, y) = _digits(setting, seed)
    steps: dict[str, tuple[Run, Step, Any]] = {}
    for name, (_, make) in METHODS.items():
        torch.manual_seed(seed)
        model = NETWORKS[network]()
        base = _base(model, setting)
        total = setting.epochs * -(-setting.examples // setting.batch)
        run = Run(model, base, train, setting)
        steps[name] = (run, make(run), torch.optim.lr_scheduler.CosineAnnealingLR(base, total))
    spent = dict.fromkeys(METHODS, 0.0)
    for epoch, rows in _batches(setting, seed):
        for name, (_, step, schedule) in steps.items():
            began = time.process_time()
            step(rows, epoch)
            spent[name] += time.process_time() - began
            schedule.step()
        advance()
    found = {}
    for name, (run, _, _) in steps.items():
        with torch.no_grad(), Evaluating(run.model):
            found[name] = (float((run.model(x).argmax(1) == y).float().mean()), spent[name])
    return found


def sam_digits(quick: bool, seed: int) -> Report:
    """Run it: all methods on both networks, seed by seed."""
    setting = QUICK if quick else Setting()
    results = {net: {name: _Result([], []) for name in METHODS} for net in NETWORKS}
    total = len(NETWORKS) * setting.seeds * setting.epochs * -(-setting.examples // setting.batch)
    with torch.random.fork_rng(devices=[]), progress("digits", total) as advance:
        for net in NETWORKS:
            for k in range(setting.seeds):
                for name, (accuracy, seconds) in _compete(setting, net, seed + k, advance).items():
                    results[net][name].accuracy.append(accuracy)
                    results[net][name].seconds.append(seconds)
    claims = [c for net in NETWORKS for c in _claims(net, results[net])]
    data = {net: {name: asdict(r) for name, r in found.items()} for net, found in results.items()}
    settings = {**asdict(setting), **{name: words for name, (words, _) in METHODS.items()}, "seed": seed}
    return Report(
        "sam-digits",
        "Sharpness-aware methods on the digits, with a fifth of the training labels wrong",
        tuple(claims),
        settings,
        data,
        {"sam-digits": _draw(results)},
        _reading(results, claims),
    )


def _ratios(found: Mapping[str, _Result], name: str) -> list[float]:
    return [a / b for a, b in zip(found[name].seconds, found[BASE].seconds, strict=True)]


def _claims(net: str, found: Mapping[str, _Result]) -> Iterator[Claim]:
    plain = found[BASE].accuracy
    mean, interval = mean_interval(plain)
    yield Claim(f"{net}, base: test accuracy", "", mean, None, interval, "the yardstick: no claim")
    for name in METHODS:
        if name != BASE:
            gains = [a - b for a, b in zip(found[name].accuracy, plain, strict=True)]
            gain, interval = mean_interval(gains)
            accuracy, _ = mean_interval(found[name].accuracy)
            cost, _ = mean_interval(_ratios(found, name))
            note = f"accuracy {accuracy:.4f}; {cost:.2f} times the base step"
            yield Claim(f"{net}, {name}: accuracy over the base", "above 0", gain, verdict(interval), interval, note)


def _draw(results: Mapping[str, Mapping[str, _Result]]) -> Figure:
    figure, axes = panels(1, 2, 10, 4)
    for net, colour, shift in zip(results, COLOURS, (-0.12, 0.12), strict=False):
        found = results[net]
        places = [i + shift for i in range(len(METHODS))]
        ends = [mean_interval(found[name].accuracy) for name in METHODS]
        means = [100 * m for m, _ in ends]
        errors = [
            [100 * (m - max(low, 0.0)) for m, (low, _) in ends],
            [100 * (min(up, 1.0) - m) for m, (_, up) in ends],
        ]
        axes[0, 0].errorbar(means, places, xerr=errors, fmt="o", color=colour, ms=4, capsize=2, label=net)
        axes[0, 1].plot([mean_interval(_ratios(found, name))[0] for name in METHODS], places, "o", color=colour, ms=5)
    for axis in axes[0]:
        axis.set(yticks=range(len(METHODS)), yticklabels=list(METHODS))
        axis.invert_yaxis()
        axis.grid(axis="x", lw=0.4, alpha=0.6)
    axes[0, 0].set(xlabel="test accuracy, %, with 95 % intervals over seeds")
    axes[0, 1].set(xlabel="CPU time of a step over the base step", xlim=(0, None))
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


def _reading(results: Mapping[str, Mapping[str, _Result]], claims: Sequence[Claim]) -> str:
    def named(holds: bool) -> str:
        return ", ".join(c.what.removesuffix(": accuracy over the base") for c in claims if c.holds is holds) or "none"

    early = [net for net, found in results.items() if mean_interval(found[BASE].accuracy)[0] < 0.8]
    short = f" Training is too short to judge by for the {' and the '.join(early)}." if early else ""
    unclear = sum(c.holds is None for c in claims) - len(results)
    return (
        f"Better than the base optimizer beyond the noise of seeds: {named(True)}. Worse: {named(False)}. "
        f"For {unclear} of {len(claims) - len(results)} the interval holds 0. Radii are not tuned, and the networks "
        "are so small that what a step costs beside its passes shows more than in a real one (see the benchmark)."
        + short
    )


EXPERIMENTS.register("sam-digits")(
    Experiment("SAM, ASAM, SAM-ON, SSAM, RSAM, SAF, MESA, geodesic SAM: accuracy and cost on digits", sam_digits)
)
