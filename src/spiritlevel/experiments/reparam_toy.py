"""The working example of the paper's appendix A: a sum of squares, tripled."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.drawing import BLUE, GREY, ORANGE, panels
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.geometry import Euclidean, Geometry
from spiritlevel.problem import Problem
from spiritlevel.reparam import Scaling, reparametrised, sharpness

__all__ = ["run"]

_DIMENSIONS = (1, 2, 4, 8)


class _Squares(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((d,), 0.7, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.theta.square().sum()


def run(quick: bool, seed: int) -> Report:
    """``L = sum theta_i^2``, ``psi = 3 theta``: three determinants and three traces."""
    del quick, seed  # exact, at once
    change = Scaling(3.0)
    rows: list[dict[str, Any]] = []
    for d in _DIMENSIONS:
        batch = (torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        old = Problem(_Squares(d), [batch], lambda output, _: output.sum())
        new = reparametrised(old, change)
        cases: dict[str, tuple[Problem, Geometry]] = {
            "theta": (old, Euclidean()),
            "psi, autodiff": (new, Euclidean()),
            "psi, transported": (new, Euclidean().transported(change)),
        }
        for name, (problem, geometry) in cases.items():
            logdet, trace = (sharpness(problem, geometry, by, dense=True).value for by in ("det", "trace"))
            rows.append({"d": d, "case": name, "det": math.exp(logdet), "trace": trace})
    largest = {r["case"]: r for r in rows if r["d"] == _DIMENSIONS[-1]}
    d = _DIMENSIONS[-1]
    expected = {
        "theta": ("2^d", 2.0**d, "2d", 2.0 * d),
        "psi, autodiff": ("(2/9)^d", (2 / 9) ** d, "2d/9", 2 * d / 9),
        "psi, transported": ("2^d", 2.0**d, "2d", 2.0 * d),
    }
    claims = []
    for name, (det_word, det, trace_word, trace) in expected.items():
        row = largest[name]
        for what, word, wanted in (("det", det_word, det), ("trace", trace_word, trace)):
            here = float(row[what])
            near = abs(here - wanted) <= 1e-8 * abs(wanted)
            claims.append(Claim(f"{what} in {name} (App. A), d = {d}", f"{word} = {wanted:.6g}", here, near))
    return Report(
        "reparam-toy", "Appendix A: a sum of squares, psi = 3 theta", tuple(claims),
        {"d": list(_DIMENSIONS), "map": str(change)}, {"rows": rows}, {"reparam-toy": _figure(rows)},
        "The Hessian that autodiff gives in psi has another determinant and another trace, although nothing "
        "happened to the function; those of the operator, with the identity metric transported along, stay.",
    )  # fmt: skip


def _figure(rows: list[dict[str, Any]]) -> Any:
    figure, axes = panels(1, 2, 8, 3.4)
    styles = {"theta": (GREY, "o", 9), "psi, autodiff": (ORANGE, "s", 5), "psi, transported": (BLUE, "D", 4)}
    for axis, what in zip(axes[0], ("det", "trace"), strict=True):
        for case, (colour, marker, size) in styles.items():
            mine = [r for r in rows if r["case"] == case]
            axis.plot([r["d"] for r in mine], [r[what] for r in mine], marker=marker, ms=size, color=colour, label=case)
        axis.set_yscale("log")
        axis.set_xlabel("dimension d")
        axis.set_ylabel(f"{what} of the Hessian" if what == "trace" else "determinant of the Hessian")
    axes[0, 0].legend(frameon=False)
    return figure


EXPERIMENTS.register("reparam-toy")(Experiment("Kristiadi et al. 2023, App. A: determinants under psi = 3 theta", run))
