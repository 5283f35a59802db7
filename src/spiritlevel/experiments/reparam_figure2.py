"""Figure 2 of the reparametrisation paper: paths, modes, and the spectrum of the Hessian."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.core.drawing import BLUE, GREY, ORANGE, panels
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.geometry import Euclidean
from spiritlevel.problem import Problem
from spiritlevel.reparam import (
    Density,
    Flow,
    Log,
    Monotone,
    Reparametrisation,
    loss_gradient,
    mode,
    posterior,
    reparametrised,
    sharpness,
)

__all__ = ["density", "flow", "spectrum"]

F64 = torch.float64
_SINH = "psi = sinh(theta), entry by entry (chosen)"


def _sinh() -> Reparametrisation:
    return Monotone(torch.sinh, torch.asinh, label="sinh")


def _network(width: int, seed: int, examples: int = 60) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A regression of a noisy sine."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)).double()
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(examples, 1, generator=g, dtype=F64) * 8
    return model, (x, torch.sin(x) + 0.3 * torch.randn(examples, 1, generator=g, dtype=F64))


# ------------------------------------------------------------------------------------------------------------ 2a: paths


class _Two(nn.Module):
    """Two weights, for a picture: ``tanh(a x) b``."""

    def __init__(self, start: tuple[float, float]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(start, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.theta[0] * x) * self.theta[1]


def flow(quick: bool, seed: int) -> Report:
    """Gradient descent in theta, in psi, and in psi with the transported metric; the error's slope in the step size."""
    model, batch = _network(4 if quick else 16, seed)
    old = Problem(model, [batch], nn.MSELoss())
    change = _sinh()
    new, time = reparametrised(old, change), 2.0
    sizes = [0.1 / 2**i for i in range(4 if quick else 7)]
    errors: dict[str, list[float]] = {"transported": [], "image of each step": [], "autodiff alone": []}
    for h in sizes:
        steps = round(time / h)
        there = Flow().path(old.weights, loss_gradient(old), h, steps)[-1]
        moved = Flow(change).path(new.weights, loss_gradient(new), h, steps)[-1]
        naive = Flow().path(new.weights, loss_gradient(new), h, steps)[-1]
        image = new.weights
        for _ in range(steps):
            image = Flow(change).image(image, loss_gradient(new), h)
        ends = zip(errors, (moved, image, naive), strict=True)
        for name, end in ends:
            errors[name].append(_distance(change.inverse(end), there))
    # the large steps may be past the stability of gradient descent itself
    slope = float(np.polyfit(np.log(sizes[-3:]), np.log(errors["transported"][-3:]), 1)[0])
    claims = (
        Claim("the transported flow keeps the path (Sec. 3.2)", "same path", errors["transported"][-1],
              errors["transported"][-1] < 0.1 * errors["autodiff alone"][-1],
              note=f"largest weight difference after time {time:g}, step {sizes[-1]:g}"),
        Claim("gradient descent in psi leaves it (Fig. 2a, top)", "another path", errors["autodiff alone"][-1],
              errors["autodiff alone"][-1] > 10 * errors["transported"][-1]),
        Claim("a discrete step keeps it to first order (Remark 4)", "first order", slope, abs(slope - 1) < 0.2,
              note="slope of the error in the step size, over the three smallest"),
        Claim("ours: the image of each step keeps it", "-", max(errors["image of each step"]),
              max(errors["image of each step"]) < 1e-8),
    )  # fmt: skip
    paths = _paths()
    return Report(
        "reparam-flow", "Figure 2a: gradient descent under a change of parameters", claims,
        {"map": _SINH, "network": f"1-{4 if quick else 16}-1 tanh (chosen)", "time": time, "step sizes": sizes,
         "seed": seed},
        {"step sizes": sizes, "errors": errors, "paths in theta": {n: p.tolist() for n, p in paths.items()}},
        {"reparam-flow": _flow_figure(paths, sizes, errors)},
        "Gradient descent in psi is gradient descent of theta in another metric. With the metric of theta carried "
        "along the path is the same, to first order in the step size for plain steps; taking the image of the step "
        "leaves no error.",
    )  # fmt: skip


def _distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in b)


def _picture_problem() -> Problem:
    x = torch.linspace(-2, 2, 21, dtype=F64)[:, None]
    return Problem(_Two((0.15, 0.5)), [(x, torch.tanh(1.4 * x) * 1.2)], nn.MSELoss())


def _paths() -> dict[str, Tensor]:
    change = Monotone(lambda w: torch.sinh(2 * w), lambda w: torch.asinh(w) / 2)  # stronger, to be seen
    old = _picture_problem()
    new = reparametrised(old, change)
    kinds = {"theta": (old, Flow()), "psi, autodiff": (new, Flow()), "psi, transported": (new, Flow(change))}
    found = {}
    for name, (problem, rule) in kinds.items():
        points = rule.path(problem.weights, loss_gradient(problem), 0.05, 300)
        plain = points if problem is old else [change.inverse(p) for p in points]
        found[name] = torch.stack([p["theta"] for p in plain])
    return found


def _flow_figure(paths: dict[str, Tensor], sizes: list[float], errors: dict[str, list[float]]) -> Any:
    figure, axes = panels(1, 2, 9, 3.8)
    left, right = axes[0]
    a, b = np.meshgrid(np.linspace(0.0, 1.8, 60), np.linspace(0.3, 1.7, 60))
    problem = _picture_problem()
    (batch,) = problem.batches()
    grid = torch.tensor(np.stack([a.ravel(), b.ravel()], 1))
    heights = [problem.value({"theta": p}, batch) for p in grid]
    logs = np.log(np.array(heights).reshape(a.shape) + 1e-3)
    left.contour(a, b, logs, levels=14, colors="#dddddd", linestyles="solid", linewidths=0.8)
    styles = {"theta": (GREY, "-", 5.0), "psi, autodiff": (ORANGE, "-", 2.0), "psi, transported": (BLUE, "--", 1.8)}
    for name, (colour, line, width) in styles.items():
        left.plot(paths[name][:, 0], paths[name][:, 1], line, color=colour, lw=width, label=name)
    left.plot(*paths["theta"][0], "ko", ms=4)
    left.set_xlabel(r"$\theta_1$")
    left.set_ylabel(r"$\theta_2$")
    left.set_title(r"two weights, $\psi = \sinh 2\theta$", fontsize=10)
    left.legend(frameon=False, title="gradient descent in")
    for (name, values), colour in zip(errors.items(), (BLUE, GREY, ORANGE), strict=True):
        right.loglog(sizes, [max(v, 1e-17) for v in values], "o-", color=colour, label=name)
    right.set_xticks(sizes[::2], [f"{h:.2g}" for h in sizes[::2]])
    right.minorticks_off()
    right.set_xlabel("step size")
    right.set_ylabel(r"largest difference from the path of $\theta$")
    right.legend(frameon=False)
    return figure


# ------------------------------------------------------------------------------------------------------------ 2b: modes


def density(quick: bool, seed: int) -> Report:
    """A density in theta and in psi: its mode moves; under the volume of the metric it stays."""
    variance = Density(lambda w: (2 * torch.log(w["v"]) - 2 * w["v"]).sum())  # Gamma(3, 2) of a variance
    logs = Log()
    start = {"v": torch.ones(1, dtype=F64)}
    moved = variance.transported(logs)
    stays = float(logs.inverse(mode(moved, logs.forward(start)).weights)["v"])
    moves = float(logs.inverse(mode(moved, logs.forward(start), "lebesgue").weights)["v"])
    model, batch = _network(2 if quick else 6, seed, 30)
    problem = Problem(model, [batch], nn.MSELoss())
    map_density, change = posterior(problem, 1.0, len(batch[0]) / (2 * 0.3**2)), _sinh()
    best = mode(map_density, problem.weights)
    image = change.forward(best.weights)
    near = {n: w + 1e-2 * torch.cos(torch.arange(w.numel(), dtype=F64)).view_as(w) for n, w in image.items()}
    offs = {u: _distance(change.inverse(mode(map_density.transported(change), near, u).weights), dict(best.weights))
            for u in ("volume", "lebesgue")}  # fmt: skip
    claims = (
        Claim("the mode of a pdf moves (Sec. 3.3, Fig. 2b top)", "another point", moves, abs(moves - 1.0) > 1e-3,
              note="Gamma(3, 2) of a variance, mode 1; here that of its logarithm's density, as a variance: 3/2"),
        Claim("the mode under the volume stays (Eq. 4)", "same point", stays, abs(stays - 1.0) < 1e-8),
        Claim("a network's MAP estimate moves", "another point", offs["lebesgue"], offs["lebesgue"] > 1e-4,
              note="largest weight difference"),
        Claim("and stays under the volume", "same point", offs["volume"], offs["volume"] < 1e-8),
    )  # fmt: skip
    return Report(
        "reparam-density", "Figure 2b: modes of densities under a change of parameters", claims,
        {"density": "Gamma(3, 2) of a variance, psi = log (chosen)",
         "network": f"1-{2 if quick else 6}-1 tanh, {_SINH}", "seed": seed},
        {"MAP distance": offs, "modes": {"theta": 1.0, "psi": moves, "volume": stays}},
        {"reparam-density": _density_figure(variance, moved)},
        "A probability density takes a determinant when parameters change, so its highest point is no property of "
        "the distribution. Divided by the volume of the metric it moves as a function, and its modes stay.",
    )  # fmt: skip


def _density_figure(variance: Density, moved: Density) -> Any:
    figure, axes = panels(1, 3, 10, 3.2)
    v = torch.linspace(0.02, 5, 400, dtype=F64)
    psi = torch.linspace(-3, 2.2, 400, dtype=F64)

    def curve(log: Any, at: Tensor) -> Tensor:
        return torch.stack([log({"v": x[None]}).exp() for x in at]).detach()

    ordinary = curve(variance.log, v)
    axes[0, 0].plot(v, ordinary / torch.trapezoid(ordinary, v), color=GREY)
    axes[0, 0].axvline(1.0, color=BLUE, lw=1)
    axes[0, 0].set(xlabel=r"$\theta$ (variance)", ylabel=r"density under $d\theta$")
    there = curve(moved.log, psi)
    axes[0, 1].plot(psi, there / torch.trapezoid(there, psi), color=ORANGE)
    axes[0, 1].axvline(0.0, color=BLUE, lw=1)
    axes[0, 1].axvline(math.log(1.5), color=ORANGE, ls="--", lw=1)
    axes[0, 1].set(xlabel=r"$\psi = \log\theta$", ylabel=r"density under $d\psi$")
    volume = curve(moved.under_volume, psi)
    axes[0, 2].plot(psi, volume / torch.trapezoid(ordinary, v), color=BLUE)
    axes[0, 2].axvline(0.0, color=BLUE, lw=1)
    axes[0, 2].set(xlabel=r"$\psi = \log\theta$", ylabel=r"density under the volume $dV_G$")
    for axis, title in zip(axes[0], ("in theta", "in psi: the mode moves", "in psi, under the volume"), strict=True):
        axis.set_title(title, fontsize=10)
    return figure


# --------------------------------------------------------------------------------------------------------- 2c: spectrum


def spectrum(quick: bool, seed: int) -> Report:
    """Eigenvalues of the Hessian at a minimum: of the bilinear form and of the operator."""
    model, batch = _network(5 if quick else 12, seed)
    problem = Problem(model, [batch], nn.MSELoss())
    best = mode(posterior(problem, 1e-2, 1.0), problem.weights)  # a strict minimum of loss plus weight decay
    model.load_state_dict(best.weights)
    loss = nn.MSELoss()

    def regularised(output: Tensor, batch: Any) -> Tensor:
        value: Tensor = loss(output, batch[1])
        return value

    problem = Problem(_Regularised(model), [batch], lambda o, b: regularised(o[0], b) + 0.005 * o[1])
    change, k = _sinh(), sum(w.numel() for w in problem.weights.values())
    new = reparametrised(problem, change)
    cases = {
        "theta": (problem, Euclidean()),
        "psi, autodiff": (new, Euclidean()),
        "psi, transported": (new, Euclidean().transported(change)),
    }
    values = {n: sharpness(p, g, "eigenvalues", dense=True, k=k).stats["eigenvalues"] for n, (p, g) in cases.items()}
    logs = {n: math.fsum(math.log(v) for v in found) for n, found in values.items()}
    off = {n: max(abs(a - b) / b for a, b in zip(found, values["theta"], strict=True)) for n, found in values.items()}
    claims = (
        Claim("log det of H by autodiff changes (Fig. 2c top)", "other value", logs["psi, autodiff"] - logs["theta"],
              abs(logs["psi, autodiff"] - logs["theta"]) > 1e-3,
              note="difference to theta; the law is -2 log |det J|"),
        Claim("log det of E = G^-1 H stays (Fig. 2c bottom)", "0", logs["psi, transported"] - logs["theta"],
              abs(logs["psi, transported"] - logs["theta"]) < 1e-8 * abs(logs["theta"])),
        Claim("all eigenvalues of E stay (App. B.3)", "0", off["psi, transported"], off["psi, transported"] < 1e-8,
              note="largest relative difference"),
        Claim("those of H do not", "other values", off["psi, autodiff"], off["psi, autodiff"] > 1e-2),
        Claim("the determinant follows det J (Sec. 3.1)", "-2 log |det J|",
              -2 * float(change.log_abs_det(problem.weights)),
              abs(-2 * float(change.log_abs_det(problem.weights)) - logs["psi, autodiff"] + logs["theta"]) < 1e-6),
    )  # fmt: skip
    figure, axes = panels(1, 1, 6, 3.8)
    axis = axes[0, 0]
    styles = {"theta": (GREY, "o", 9), "psi, autodiff": (ORANGE, "s", 4), "psi, transported": (BLUE, ".", 6)}
    for name, (colour, marker, size) in styles.items():
        axis.semilogy(range(1, k + 1), values[name], marker, ms=size, color=colour, label=name)
    axis.set(xlabel="rank", ylabel="eigenvalue at the minimum")
    axis.legend(frameon=False)
    return Report(
        "reparam-spectrum", "Figure 2c: the Hessian as a bilinear form and as an operator", claims,
        {"map": _SINH, "network": f"1-{5 if quick else 12}-1 tanh, at a minimum with weight decay 0.01 (chosen)",
         "seed": seed},
        {"eigenvalues": values, "log det": logs, "gradient norm at the minimum": best.gradient_norm},
        {"reparam-spectrum": figure},
        "Autodiff gives the right bilinear form in psi, whose determinant and eigenvalues are no invariants. Those "
        "of the operator are, once the metric is written down and moved along.",
    )  # fmt: skip


class _Regularised(nn.Module):
    """The outputs, and the squared length of all weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(x), torch.stack([p.square().sum() for p in self.parameters()]).sum()


EXPERIMENTS.register("reparam-flow")(Experiment("Kristiadi et al. 2023, Fig. 2a: paths of gradient descent", flow))
EXPERIMENTS.register("reparam-density")(Experiment("Kristiadi et al. 2023, Fig. 2b: modes of densities", density))
EXPERIMENTS.register("reparam-spectrum")(Experiment("Kristiadi et al. 2023, Fig. 2c: Hessian spectra", spectrum))
