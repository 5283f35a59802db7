"""A model, a loss and data: the function whose flatness is measured."""

from spiritlevel.problem.objective import Objective
from spiritlevel.problem.problem import Problem

__all__ = ["Objective", "Problem"]
