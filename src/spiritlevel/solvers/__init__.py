"""Maximise a function on a ball; eigenvalues and traces from products. Solvers know neither models nor metrics."""

from spiritlevel.solvers.autopgd import AutoPGD
from spiritlevel.solvers.ball import Ball, L2Ball, LinfBall
from spiritlevel.solvers.base import SOLVERS, Centre, Function, Solution, Solver
from spiritlevel.solvers.lanczos import Eigenpairs, Quadrature, Which, extreme_eigenpairs, quadrature
from spiritlevel.solvers.sphere_ascent import SphereAscent
from spiritlevel.solvers.traces import Estimate, hutch_pp, hutchinson, xtrace

__all__ = [
    "SOLVERS",
    "AutoPGD",
    "Ball",
    "Centre",
    "Eigenpairs",
    "Estimate",
    "Function",
    "L2Ball",
    "LinfBall",
    "Quadrature",
    "Solution",
    "Solver",
    "SphereAscent",
    "Which",
    "extreme_eigenpairs",
    "hutch_pp",
    "hutchinson",
    "quadrature",
    "xtrace",
]
