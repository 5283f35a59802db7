"""Sharpness-aware methods side by side on scikit-learn's digits: accuracy and cost, on two small networks.

Radii are those of the methods' papers for small networks, or a plain choice where there is none; nothing is tuned, so
the table says that every method trains and what it costs, and which gains stand out of the noise of seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.core.drawing import COLOURS, panels
from spiritlevel.core.progress import Advance, progress
from spiritlevel.errors import MissingDependencyError
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.intervals import mean_interval, verdict
from spiritlevel.geometry import Elementwise, Euclidean, Quotient
from spiritlevel.optim import SAM, EMATeacherLoss, TrajectoryLoss, rules
from spiritlevel.symmetry import find_symmetries

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SmallNet", "SmallViT", "sam_digits"]


@dataclass(frozen=True)
class Setting:
    """Everything that fixes a run.

    Attributes:
        examples: to train on; 1,297 others to test on.
        wrong: share of training labels that are random, so that there is something to over-fit.
        epochs: of training.
        batch: examples of a step.
        lr: of the base optimizers, SGD with momentum and AdamW, with a cosine to 0.
        seeds: of weights, order of examples, and wrong labels.
    """

    examples: int = 500
    wrong: float = 0.2
    epochs: int = 30
    batch: int = 25
    lr: tuple[float, float] = (0.05, 3e-3)
    seeds: int = 5


QUICK = Setting(epochs=6, seeds=3)


class SmallNet(nn.Module):
    """Two convolutions with batch norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.two, self.norm_two = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = torch.relu(self.norm_one(self.one(x)))
        x = torch.relu(self.norm_two(self.two(x)))
        out: Tensor = self.head(x.flatten(1))
        return out


class SmallViT(nn.Module):
    """Sixteen patches, two layers of four heads."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.layers(self.patches(x).flatten(2).mT + self.places)
        out: Tensor = self.head(self.norm(x.mean(1)))
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {"small net": SmallNet, "small ViT": SmallViT}


@dataclass
class _Run:
    """A model that trains, and what a method needs."""

    model: nn.Module
    base: torch.optim.Optimizer
    data: tuple[Tensor, Tensor]
    setting: Setting


Step = Callable[[Tensor, int], Any]
"""One step on the examples with these indices, in this epoch."""


def _loss(run: _Run, rows: Tensor) -> Tensor:
    x, y = run.data
    return F.cross_entropy(run.model(x[rows]), y[rows])


def _plain(run: _Run) -> Step:
    def step(rows: Tensor, epoch: int) -> None:
        run.base.zero_grad()
        _loss(run, rows).backward()
        run.base.step()

    return step


def _with(make: Callable[[_Run], rules.Rule], warmup: bool = False) -> Callable[[_Run], Step]:
    def build(run: _Run) -> Step:
        first = run.setting.epochs // 10 * (run.setting.examples // run.setting.batch) if warmup else 0
        sam = SAM(run.base, make(run), model=run.model, warmup=first)
        return lambda rows, epoch: sam.step(lambda: _loss(run, rows))

    return build


def _ssam(run: _Run) -> Step:
    sam, seen = SAM(run.base, rules.SSAMF(0.1, sparsity=0.5), model=run.model), [-1]
    x, y = run.data

    def one(i: int) -> Tensor:
        return F.cross_entropy(run.model(x[i : i + 1]), y[i : i + 1])

    def step(rows: Tensor, epoch: int) -> None:
        if epoch > seen[0]:
            with _evaluating(run.model):  # one example has no batch statistics
                sam.update_mask(lambda i=int(i): one(i) for i in rows[:16])  # type: ignore[misc]
            seen[0] = epoch
        sam.step(lambda: _loss(run, rows))

    return step


class _evaluating:
    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._model.eval()

    def __exit__(self, *_: object) -> None:
        self._model.train()


def _saf(run: _Run) -> Step:
    extra = TrajectoryLoss(run.setting.examples, 10, lag=2, start=max(2, run.setting.epochs // 10))

    def step(rows: Tensor, epoch: int) -> None:
        extra.set_epoch(epoch)
        x, y = run.data
        logits = run.model(x[rows])
        run.base.zero_grad()
        (F.cross_entropy(logits, y[rows]) + extra(logits, rows)).backward()
        run.base.step()

    return step


def _mesa(run: _Run) -> Step:
    steps = run.setting.examples // run.setting.batch
    extra = EMATeacherLoss(run.model, run.base, beta=0.98, start=max(2, run.setting.epochs // 10) * steps)

    def step(rows: Tensor, epoch: int) -> None:
        x, y = run.data
        logits = run.model(x[rows])
        run.base.zero_grad()
        (F.cross_entropy(logits, y[rows]) + extra(logits, x[rows])).backward()
        run.base.step()

    return step


def _geodesic(run: _Run) -> rules.Rule:
    """The heads of the ViT are quotiented; without attention it is the geodesic of the elementwise metric."""
    if not isinstance(run.model, SmallViT):
        return rules.GeodesicSAM(0.3, Elementwise("geodesic"))
    with _evaluating(run.model):
        blocks = find_symmetries(run.model, batch=(run.data[0][:4], run.data[1][:4]))
    return rules.GeodesicSAM(0.1, Quotient(blocks=blocks, rest=Euclidean()))


BASE = "base"
METHODS: dict[str, tuple[str, Callable[[_Run], Step]]] = {
    BASE: ("SGD with momentum; AdamW for the ViT", _plain),
    "SAM": ("rho 0.1", _with(lambda run: rules.Plain(0.1))),
    "ASAM": ("rho 0.5, eta 0.01", _with(lambda run: rules.ASAM(0.5))),
    "SAM-ON": ("ASAM on norms, rho 1", _with(lambda run: rules.NormOnly(rules.ASAM(1.0)))),
    "SSAM": ("Fisher mask of half, rho 0.1, 16 examples an epoch", _ssam),
    "RSAM": ("rho 0.65, alpha 1.2, a tenth of the epochs without", _with(lambda run: rules.RSAM(), warmup=True)),
    "SAF": ("lag 2, tau 5, lambda 0.3", _saf),
    "MESA": ("beta 0.98, tau 5, lambda 0.8", _mesa),
    "geodesic SAM": ("ViT: heads quotiented, rho 0.1; else elementwise, rho 0.3", _with(_geodesic)),
}


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
    steps: dict[str, tuple[_Run, Step, Any]] = {}
    for name, (_, make) in METHODS.items():
        torch.manual_seed(seed)
        model = NETWORKS[network]()
        base = _base(model, setting)
        total = setting.epochs * -(-setting.examples // setting.batch)
        run = _Run(model, base, train, setting)
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
        with torch.no_grad(), _evaluating(run.model):
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

    unclear = sum(c.holds is None for c in claims) - len(results)
    return (
        f"Better than the base optimizer beyond the noise of seeds: {named(True)}. Worse: {named(False)}. For {unclear} "
        f"of {len(claims) - len(results)} the interval holds 0. Radii are not tuned, and the networks are so small that "
        "what a step costs beside its passes shows more than in a real one (see the benchmark for those)."
    )


EXPERIMENTS.register("sam-digits")(
    Experiment("SAM, ASAM, SAM-ON, SSAM, RSAM, SAF, MESA, geodesic SAM: accuracy and cost on digits", sam_digits)
)
