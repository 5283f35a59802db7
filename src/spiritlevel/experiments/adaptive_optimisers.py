"""Adam's minima against SGD's in the measures of several papers, at equal training loss.

Three papers speak of it. Kristiadi et al. 2023: the trace of the Hessian is larger at minima of Adam (Table 3), and far
larger as an operator in the metric Adam steps in (Fig. 5). Li, Wen and Lyu 2025: gradient descent reduces the trace,
Adam the sum of roots of the Hessian's diagonal, on long runs with label noise. Zhang et al. 2025: the Rényi entropy of
each layer's spectrum tells generalisation; of Adam against SGD it says nothing, so there is no claim to judge.

Here every network stops at the same training loss: near interpolation all of these fall with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spiritlevel.core.drawing import BLUE, GREEN, GREY, ORANGE, panels
from spiritlevel.core.progress import Advance, progress
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.intervals import mean_interval, verdict
from spiritlevel.experiments.optimiser_minima import (
    OPTIMISERS,
    RATES,
    Design,
    Minimum,
    Setting,
    chosen_rate,
    minimum,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["adaptive_optimisers"]

QUICK = Setting(examples=512, networks=("LeNet",), seeds=4, limit=600)
DESIGNS = (Design("main", 0.05), Design("a third of the rates", 0.05, 3.0), Design("loss 0.2", 0.2))
QUICK_DESIGNS = (Design("main", 0.1), Design("a third of the rates", 0.1, 3.0), Design("loss 0.3", 0.3))

Pairs = list[tuple[Minimum, Minimum]]


@dataclass(frozen=True)
class _Zoo:
    """What one network became in one design: Adam's and SGD's minimum for each seed; and the rates they had."""

    pairs: Pairs
    lost: int
    rates: Mapping[str, float]

    def logs(self, measure: str) -> list[float]:
        """Logarithms of the ratio Adam over SGD, seed by seed."""
        return [math.log(a.values[measure] / s.values[measure]) for a, s in self.pairs]

    def differences(self, measure: str) -> list[float]:
        """Adam minus SGD, seed by seed."""
        return [a.values[measure] - s.values[measure] for a, s in self.pairs]


Zoos = Mapping[tuple[str, str], _Zoo]
"""By network and design."""


def adaptive_optimisers(quick: bool, seed: int) -> Report:
    """Run it: choose rates on pilot seeds, train both optimisers from the same seeds, measure, compare in pairs."""
    setting, designs = (QUICK, QUICK_DESIGNS) if quick else (Setting(), DESIGNS)
    zoos: dict[tuple[str, str], _Zoo] = {}
    pilots: dict[str, Any] = {}
    total = len(setting.networks) * (sum(map(len, RATES.values())) + 2 * len(designs) * setting.seeds)
    with progress("networks", total) as advance:
        for network in setting.networks:
            found = {o: chosen_rate(setting, network, o, designs[0].level, seed, advance) for o in OPTIMISERS}
            pilots[network] = {o: {f"{r:g}": s for r, s in steps.items()} for o, (_, steps) in found.items()}
            rates = {o: rate for o, (rate, _) in found.items()}
            for design in designs:
                zoos[network, design.name] = _zoo(setting, network, rates, design, seed, advance)
    claims = tuple(c for network in setting.networks for c in _claims(network, zoos))
    data = {f"{network}, {design}": _plain(zoo) for (network, design), zoo in zoos.items()}
    return Report(
        "adaptive-optimisers",
        "Adam's against SGD's minima at equal training loss, in the measures of three papers",
        claims,
        _settings(setting, designs, zoos, seed),
        {"steps of the pilots": pilots, "zoos": data},
        {"adaptive-optimisers": _draw(setting, zoos)},
        _reading(setting, zoos),
    )


def _zoo(
    setting: Setting, network: str, rates: Mapping[str, float], design: Design, seed: int, advance: Advance
) -> _Zoo:
    pairs: Pairs = []
    slowed = {o: r / design.slowed for o, r in rates.items()}
    for one in range(seed, seed + setting.seeds):
        found = {}
        for o in OPTIMISERS:
            found[o] = minimum(setting, network, o, slowed[o], design.level, one)
            advance(f"{network}, {design.name}, {o}, seed {one}")
        if found["Adam"] is not None and found["SGD"] is not None:
            pairs.append((found["Adam"], found["SGD"]))
    return _Zoo(pairs, setting.seeds - len(pairs), slowed)


def _settings(setting: Setting, designs: Sequence[Design], zoos: Zoos, seed: int) -> dict[str, Any]:
    rates = {", ".join(key): {o: f"{r:.3g}" for o, r in zoo.rates.items()} for key, zoo in zoos.items()}
    return {
        "data": "scikit-learn's digits (chosen)", **asdict(setting),
        "training": "batches of 32, 20 steps of warm-up, then a constant rate; SGD with momentum 0.9, Adam with its "
        "defaults; no weight decay (chosen)",
        "rule for the rates": f"fewest steps to a loss of {designs[0].level:g} on the pilot seeds, out of "
        + " and ".join(f"{', '.join(f'{r:g}' for r in grid)} ({o})" for o, grid in RATES.items()),
        "rates": rates, "designs": {d.name: asdict(d) for d in designs},
        "stop": "at the training loss of the design, by bisection on the last ten steps",
        "own metric": "Adam: root of the second moment plus eps, at the last step; SGD: the identity", "seed": seed,
    }  # fmt: skip


_RATIOS = {
    "trace": ("tr H: Adam above SGD (Kristiadi et al., Table 3)", "1929.8 / 1531.8 = 1.26", True),
    "own metric": ("tr(G^-1 H) in each optimiser's own metric: Adam above SGD (Fig. 5)", "well above", True),
    "own metric, det 1": ("ours, nothing claimed: the same with metrics of determinant 1", "-", None),
    "root-diagonal": ("sum sqrt(H_jj): Adam below SGD (Li, Wen and Lyu, abstract)", "below 1", False),
    "adaptive": ("ours, nothing claimed: the trace in units of the weights' own size", "-", None),
    "geodesic": ("ours, nothing claimed: the trace on the quotient by the symmetries of attention", "-", None),
}


def _claims(network: str, zoos: Zoos) -> Iterator[Claim]:
    main = zoos[network, "main"]
    if len(main.pairs) < 2:
        yield Claim(f"{network}: both optimisers reach the level", "-", f"{len(main.pairs)} of the seeds", None)
        return
    for measure, (what, paper, above) in _RATIOS.items():
        if measure in main.pairs[0][0].values:
            mean, interval = mean_interval(main.logs(measure))
            holds = None if above is None else verdict(interval, positive=above)
            yield Claim(
                f"{network}, {what}", paper, math.exp(mean), holds, _raised(interval), _note(network, measure, zoos)
            )
    mean, interval = mean_interval(main.differences("Rényi"))
    varied = _varied(network, zoos, lambda z: z.differences("Rényi"), lambda x: x)
    note = f"by layer: {_by_layer(main)}; {varied}".rstrip("; ")
    yield Claim(
        f"{network}, nothing claimed: Rényi sharpness, mean over layers, Adam - SGD", "-", mean, None, interval, note
    )
    gaps = [100 * (a.test - s.test) for a, s in main.pairs]
    mean, interval = mean_interval(gaps)
    yield Claim(
        f"{network}, test error in %: Adam - SGD (Table 2)", "0.1 to 4.9", mean, verdict(interval), interval,
        _varied(network, zoos, lambda z: [100 * (a.test - s.test) for a, s in z.pairs], lambda x: x),
    )  # fmt: skip


def _raised(interval: tuple[float, float]) -> tuple[float, float]:
    return math.exp(interval[0]), math.exp(interval[1])


def _note(network: str, measure: str, zoos: Zoos) -> str:
    means = {
        o: math.exp(math.fsum(math.log(pair[k].values[measure]) for pair in zoos[network, "main"].pairs)
                    / len(zoos[network, "main"].pairs))
        for k, o in enumerate(("Adam", "SGD"))
    }  # fmt: skip
    ends = " and ".join(f"{v:.4g} ({o})" for o, v in means.items())
    return f"geometric mean of ratios; {ends}; {_varied(network, zoos, lambda z: z.logs(measure), math.exp)}".rstrip(
        "; "
    )


def _varied(network: str, zoos: Zoos, values: Any, read: Any) -> str:
    """What the other designs say."""
    words = []
    for (net, name), zoo in zoos.items():
        if net == network and name != "main" and len(zoo.pairs) > 1:
            mean, (low, high) = mean_interval(values(zoo))
            words.append(f"{name}: {read(mean):.3g} ({read(low):.3g} to {read(high):.3g})")
    return "; ".join(words)


def _by_layer(zoo: _Zoo) -> str:
    words = []
    for layer in zoo.pairs[0][0].layers:
        both = [(a.layers[layer], s.layers[layer]) for a, s in zoo.pairs if layer in a.layers and layer in s.layers]
        if len(both) > 1:
            mean, (low, high) = mean_interval([a - s for a, s in both])
            words.append(f"{layer} {mean:+.2f} ({low:+.2f} to {high:+.2f})")
    return ", ".join(words)


def _plain(zoo: _Zoo) -> dict[str, Any]:
    own = {o: [asdict(pair[k]) for pair in zoo.pairs] for k, o in enumerate(("Adam", "SGD"))}
    return {"rates": dict(zoo.rates), "seeds left out": zoo.lost, **own}


def _draw(setting: Setting, zoos: Zoos) -> Figure:
    figure, axes = panels(1, len(setting.networks), 5.2 * len(setting.networks) + 1.5, 3.8)
    colours = (BLUE, ORANGE, GREEN)
    for axis, network in zip(axes[0], setting.networks, strict=True):
        own = {name: zoo for (net, name), zoo in zoos.items() if net == network and len(zoo.pairs) > 1}
        shown = [m for m in _RATIOS if any(m in z.pairs[0][0].values for z in own.values())]
        for k, (name, zoo) in enumerate(own.items()):
            for i, measure in enumerate(shown):
                at, logs = i + 0.22 * (k - (len(own) - 1) / 2), zoo.logs(measure)
                mean, (low, high) = mean_interval(logs)
                axis.plot([math.exp(x) for x in logs], [at] * len(logs), ".", color=colours[k], alpha=0.35, ms=4)
                axis.plot([math.exp(low), math.exp(high)], [at] * 2, "-", color=colours[k], lw=1.6)
                axis.plot(math.exp(mean), at, "o", color=colours[k], ms=5, label=name if i == 0 else None)
        axis.axvline(1, color=GREY, lw=0.8, ls="--")
        axis.set(xscale="log", title=network, xlabel="Adam over SGD, 95 % over seeds", yticks=range(len(shown)))
        axis.set_yticklabels(shown)
        axis.invert_yaxis()
    if axes[0, 0].get_legend_handles_labels()[0]:
        axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


def _reading(setting: Setting, zoos: Zoos) -> str:
    words = {True: "is above", False: "is below", None: "cannot be told from"}
    parts = []
    for network in setting.networks:
        zoo = zoos[network, "main"]
        if len(zoo.pairs) < 2:
            parts.append(f"On {network} too few networks reached the level.")
            continue
        sides = {m: verdict(mean_interval(zoo.logs(m))[1]) for m in _RATIOS if m in zoo.pairs[0][0].values}
        told = "; ".join(f"in {m} Adam {words[v]} SGD" for m, v in sides.items())
        agree = _steady(network, zoos, sides)
        parts.append(f"{network}: {told}. {agree}")
    parts.append(
        "An optimiser's own metric is no common yardstick: the root of Adam's second moment is as small as its "
        "gradients, which makes the first ratio large by its scale alone; brought to determinant 1 it is small by "
        "construction, because among diagonal metrics of one determinant the trace is least for the Hessian's own "
        "diagonal, which Adam's follows. With the same metric at both minima, the root of the Fisher diagonal, it "
        "becomes the root-diagonal trace. The claim about that one is made for long runs with label noise, which these "
        "are not: what is found here tells for or against it only as a statement about Adam's minima in general (see "
        "adam-sparse for the paper's own setting)."
    )
    return " ".join(parts)


def _steady(network: str, zoos: Zoos, sides: Mapping[str, bool | None]) -> str:
    """Which of the signs the other designs change."""
    changed = []
    for (net, name), zoo in zoos.items():
        if net == network and name != "main" and len(zoo.pairs) > 1:
            changed += [f"{m} ({name})" for m, v in sides.items() if verdict(mean_interval(zoo.logs(m))[1]) is not v]
    if not any(net == network and name != "main" for net, name in zoos):
        return "One design only: how it depends on rate and loss this run does not say."
    return f"Another answer in other designs: {', '.join(changed)}." if changed else "All designs say the same."


EXPERIMENTS.register("adaptive-optimisers")(
    Experiment("Adam's and SGD's minima at equal loss: trace, own metric, root-diagonal, Rényi", adaptive_optimisers)
)
