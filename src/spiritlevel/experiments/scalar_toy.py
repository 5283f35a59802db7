"""Figures 1 and 7 and appendix D of Hide & Seek: two scalar weights, everything in closed form, everything measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spiritlevel.core.drawing import BLUE, COLOURS, GREY, ORANGE, panels
from spiritlevel.core.progress import progress
from spiritlevel.experiments.base import EXPERIMENTS, Experiment, Report
from spiritlevel.experiments.scalar_claims import all_claims
from spiritlevel.experiments.scalar_forms import FIELDS, eq26, eq26_as_printed, sharpness
from spiritlevel.experiments.scalar_measured import QUICK, SIX, Grid, Setting, along_orbits, sharpnesses, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["scalar_toy"]

F64 = torch.float64


def scalar_toy(quick: bool, seed: int) -> Report:
    """Measure on a grid, compare with the closed forms, and go through the appendix claim by claim."""
    setting = QUICK if quick else Setting()
    with progress("scalar toy", setting.grid**2 + len(SIX)) as advance:
        grid = Grid.measured(setting, advance)
        orbit = along_orbits(setting, seed, advance)
    claims = all_claims(setting, grid, orbit)
    settings = {
        "training point (x, y) (chosen)": setting.example, "training points of Eq. 25 (chosen)": setting.more,
        "weights (chosen)": f"{setting.box[0]} to {setting.box[1]}, a grid of {setting.grid} x {setting.grid}",
        "|B| (chosen)": setting.radii, "orbit moves": f"{setting.orbits} at each of {len(SIX)} points",
        "precision": "float64", "seed": seed,
    }  # fmt: skip
    data = {"axis": grid.axis, "measured": {n: f.tolist() for n, f in grid.fields.items()}, "along orbits": orbit}
    figures = {"scalar-toy-fields": _fields_figure(setting, grid), "scalar-toy-radius": _radius_figure(setting)}
    title = "Figures 1 and 7 and appendix D: two scalar weights"
    return Report("scalar-toy", title, claims, settings, data, figures, _READING)


_READING = (
    "Loss, Riemannian gradient norm and Riemannian trace are functions of GH alone, and the machinery measures them to "
    "rounding; Eq. 24 and 25 hold exactly. The text around them has slips: two different balls under one rho, a "
    "residual lost from the second order of Eq. 26, a factor 2 x^2 in the Euclidean Hessian. What is said of Figure 7 "
    "holds for invariance only: the Riemannian trace is not 0 at the minimum but 4 y^2, as it must be for a minimum to "
    "be one, and the Euclidean trace is not highest there."
)


def _fields_figure(setting: Setting, grid: Grid) -> Figure:
    figure, axes = panels(1, 5, 15, 3.4)
    axis = torch.linspace(*setting.box, 160, dtype=F64)
    g, h = torch.meshgrid(axis, axis, indexing="ij")
    six_g, six_h = torch.tensor(SIX, dtype=F64).unbind(1)
    ticks = axis.numpy()
    for panel, (name, form) in zip(axes[0], FIELDS.items(), strict=True):
        field = form(g, h, setting.point)
        levels = sorted(set(form(six_g, six_h, setting.point).tolist()))
        panel.imshow(unit(grid.fields[name]).T.numpy(), origin="lower", extent=(*setting.box, *setting.box),
                     cmap="Blues", interpolation="bilinear", alpha=0.7)  # fmt: skip
        panel.contour(ticks, ticks, field.T.numpy(), levels=levels, colors=GREY, linewidths=0.9)
        panel.plot(ticks, setting.example[1] / setting.example[0] / ticks, "--", color=ORANGE, lw=1.2)
        panel.plot(*zip(*SIX, strict=True), "o", color=BLUE, ms=3)
        panel.set(xlim=setting.box, ylim=setting.box, title=name, xlabel="G", aspect="equal")
    axes[0, 0].set_ylabel("H")
    axes[0, 0].plot([], [], "--", color=ORANGE, label="minima")
    axes[0, 0].legend(frameon=True, fontsize=7, loc="upper right")
    return figure


def _radius_figure(setting: Setting) -> Figure:
    figure, axes = panels(1, 2, 9, 3.6)
    rho = torch.logspace(-3, 0, 40, dtype=F64).tolist()
    g, h = (torch.tensor(w, dtype=F64) for w in SIX[3])
    data = setting.points
    exact = [float(sharpness(g, h, data, r)) for r in rho]
    left, right = axes[0]
    left.loglog(rho, exact, color=GREY, lw=3, label="Eq. 25, exact")
    left.loglog(rho, sharpnesses(g, h, data, rho)[0].tolist(), "o", color=BLUE, ms=3, label="measured")
    forms = {"Eq. 26 as printed": (eq26_as_printed, ORANGE), "second order, right": (eq26, COLOURS[2])}
    for name, (form, colour) in forms.items():
        values = [float(form(g, h, data, r)) for r in rho]
        left.loglog(rho, values, color=colour, lw=1, label=name)
        errors = [max(abs(v - e) / e, 1e-16) for v, e in zip(values, exact, strict=True)]
        right.loglog(rho, errors, color=colour, label=name)
    left.set(xlabel="rho, Riemannian", ylabel="worst-case sharpness")
    right.set(xlabel="rho, Riemannian", ylabel="relative error against the maximum")
    left.legend(frameon=False, fontsize=8)
    right.legend(frameon=False, fontsize=8)
    return figure


EXPERIMENTS.register("scalar-toy")(
    Experiment("da Silva et al. 2025, Fig. 1 and 7, App. D: two scalar weights", scalar_toy)
)
