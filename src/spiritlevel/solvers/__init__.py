"""Maximise a function on a ball. Solvers know neither models nor metrics."""

from spiritlevel.solvers.autopgd import AutoPGD
from spiritlevel.solvers.ball import Ball, L2Ball, LinfBall
from spiritlevel.solvers.base import SOLVERS, Centre, Function, Solution, Solver
from spiritlevel.solvers.sphere_ascent import SphereAscent

__all__ = [
    "SOLVERS",
    "AutoPGD",
    "Ball",
    "Centre",
    "Function",
    "L2Ball",
    "LinfBall",
    "Solution",
    "Solver",
    "SphereAscent",
]
