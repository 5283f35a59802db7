"""A model, a loss and data: the function whose flatness is measured."""

from spiritlevel.problem.curvature import MATRICES, Curvature, Matrix
from spiritlevel.problem.distributed import DistributedProblem
from spiritlevel.problem.launched import problem_of_command
from spiritlevel.problem.objective import Objective
from spiritlevel.problem.problem import Problem
from spiritlevel.problem.self_check import check_second_derivatives

__all__ = [
    "MATRICES",
    "Curvature",
    "DistributedProblem",
    "Matrix",
    "Objective",
    "Problem",
    "check_second_derivatives",
    "problem_of_command",
]
