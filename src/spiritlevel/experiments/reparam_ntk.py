"""Figure 4 and appendix E.1 of the reparametrisation paper: the NTK parametrisation is no reparametrisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.core.drawing import BLUE, GREY, ORANGE, panels
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.reparam_common import interval, mean
from spiritlevel.geometry import Euclidean
from spiritlevel.problem import Problem
from spiritlevel.reparam import Scaling, empirical_ntk, reparametrised

__all__ = ["run"]

_SIGMA, _WIDTH = 1.0, 4  # Fig. 4


class _Network(nn.Module):
    """One hidden layer; with ``inside`` the factor is part of the function, as in the NTK parametrisation."""

    def __init__(self, width: int, inside: bool, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        factor = _SIGMA / math.sqrt(width)
        self.first = nn.Parameter(torch.randn(width, 2, generator=g, dtype=torch.float64))
        self.last = nn.Parameter(torch.randn(width, generator=g, dtype=torch.float64) * (1 if inside else factor))
        self.factor = factor if inside else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(x @ self.first.mT) @ self.last)[:, None] * self.factor


def _problem(width: int, inside: bool, seed: int) -> Problem:
    x = torch.tensor([[0.5, -1.0], [1.0, 2.0]], dtype=torch.float64)
    return Problem(_Network(width, inside, seed), [(x, torch.zeros(2, 1, dtype=torch.float64))], nn.MSELoss(), ["last"])


def _slopes(widths: list[int], kernels: dict[int, list[float]]) -> list[float]:
    """Of log kernel against log width, seed by seed."""
    seeds = range(len(kernels[widths[0]]))
    return [float(np.polyfit(np.log(widths), np.log([kernels[w][s] for w in widths]), 1)[0]) for s in seeds]


def run(quick: bool, seed: int) -> Report:
    """Last-layer kernels against the width, and the two priors in the coordinates of psi."""
    widths = [4, 16, 64, 256] if quick else [4, 16, 64, 256, 1024, 4096]
    seeds = range(seed, seed + (5 if quick else 20))
    kernels: dict[str, dict[int, list[float]]] = {}
    for name, inside in (("standard", False), ("NTK", True)):
        each = {w: [float(empirical_ntk(_problem(w, inside, s), Euclidean())[0, 0]) for s in seeds] for w in widths}
        kernels[name] = each
    slopes = {n: _slopes(widths, k) for n, k in kernels.items()}
    old = _problem(_WIDTH, False, seed)
    change = Scaling(_SIGMA / math.sqrt(_WIDTH))
    new = reparametrised(old, change)
    wanted = empirical_ntk(old, Euclidean())
    kept, naive = (empirical_ntk(new, g) for g in (Euclidean().transported(change), Euclidean()))
    off = float((kept - wanted).abs().max() / wanted.abs().max())
    deviations = {"standard, seen in psi": _SIGMA**2 / _WIDTH, "NTK": _SIGMA / math.sqrt(_WIDTH)}
    names = ["standard prior,\nseen in psi", "NTK prior"]
    claims = (
        Claim("the two priors differ in psi (Fig. 4)", "different priors",
              f"standard deviations {deviations['standard, seen in psi']:g} and {deviations['NTK']:g}",
              not math.isclose(*deviations.values()), note="sigma = 1, h = 4; psi = sigma theta / sqrt h"),
        Claim("the standard kernel diverges with the width", "slope 1", mean(slopes["standard"]),
              abs(mean(slopes["standard"]) - 1) < 0.1, interval(slopes["standard"])),
        Claim("that of the NTK parametrisation converges", "slope 0", mean(slopes["NTK"]),
              abs(mean(slopes["NTK"])) < 0.1, interval(slopes["NTK"])),
        Claim("a true reparametrisation leaves the kernel (E.1)", "same kernel", off, off < 1e-8,
              note="metric transported; largest relative difference"),
        Claim("without the metric it would not", "-", float((naive / wanted).mean()),
              abs(float((naive / wanted).mean()) - 1) > 0.1, note="ratio; h / sigma^2 = 4"),
    )  # fmt: skip
    return Report(
        "reparam-ntk", "Figure 4 and App. E.1: standard and NTK parametrisation", claims,
        {"sigma": _SIGMA, "h of the priors": _WIDTH, "network": "2-h-1 tanh, last layer's kernel (chosen)",
         "widths": widths, "seeds": list(seeds)},
        {"kernels": kernels, "slopes": slopes, "priors": deviations},
        {"reparam-ntk": _figure(deviations, names, kernels)},
        "Written as a change of variables, the factor of the NTK parametrisation would have to be undone inside "
        "the function; then kernel and prior stay, and the kernel diverges as before. So the two are different "
        "functions with different priors.",
    )  # fmt: skip


def _figure(deviations: dict[str, float], names: list[str], kernels: dict[str, dict[int, list[float]]]) -> Any:
    figure, axes = panels(1, 2, 9, 3.6)
    at = np.linspace(-1.6, 1.6, 400)
    for name, deviation, colour in zip(names, deviations.values(), (BLUE, ORANGE), strict=True):
        density = np.exp(-0.5 * (at / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
        axes[0, 0].plot(at, density, color=colour, label=name)
    axes[0, 0].set(xlabel=r"$\psi$", ylabel="density", title=r"$\sigma = 1$, $h = 4$")
    axes[0, 0].legend(frameon=False, loc="upper left")
    for (name, each), colour in zip(kernels.items(), (BLUE, ORANGE), strict=True):
        axes[0, 1].loglog(list(each), [mean(v) for v in each.values()], "o-", color=colour, label=name)
        for width, values in each.items():
            axes[0, 1].plot([width] * len(values), values, ".", color=GREY, ms=3, alpha=0.6)
    axes[0, 1].set(xlabel="width", ylabel="last-layer kernel k(x, x)")
    axes[0, 1].legend(frameon=False)
    return figure


EXPERIMENTS.register("reparam-ntk")(Experiment("Kristiadi et al. 2023, Fig. 4, App. E.1: standard and NTK", run))
