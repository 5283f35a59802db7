"""Measure how flat a trained network's loss is, without being fooled by the symmetries of its weights.

>>> import torch, spiritlevel as sl
>>> model = torch.nn.Linear(3, 2)
>>> data = [(torch.eye(3), torch.tensor([0, 1, 1]))]
>>> sharpness = sl.adaptive_sharpness(sl.Problem(model, data), rho=0.5)
>>> sharpness.value > 0
True
"""

from spiritlevel import integrations, optim, reparam, solvers
from spiritlevel.core.blocks import (
    BatchNorm,
    Block,
    Gain,
    Leftover,
    Pair,
    Reader,
    Rotation,
    Scale,
    Symmetries,
    Translation,
)
from spiritlevel.core.losses import CrossEntropy
from spiritlevel.core.ranks import Ranks
from spiritlevel.core.results import Curve, Measurement, Status
from spiritlevel.core.views import Factor, Piece
from spiritlevel.errors import SpiritlevelError
from spiritlevel.geometry import Dense, Diagonal, Elementwise, Euclidean, Quotient
from spiritlevel.measures import (
    adaptive_sharpness,
    average_case,
    by_block,
    effective_dimension,
    geodesic_sharpness,
    gradient_norm,
    hessian_density,
    hessian_diagonal,
    hessian_eigenvalues,
    hessian_logdet,
    hessian_norm,
    hessian_operator,
    hessian_trace,
    renyi_sharpness,
    root_diagonal_trace,
    worst_case,
)
from spiritlevel.monitor import Monitor
from spiritlevel.problem import DistributedProblem, Problem
from spiritlevel.symmetry import find_symmetries, move_along_orbit, verify_symmetries

__version__ = "0.1.0"

__all__ = [
    "BatchNorm",
    "Block",
    "CrossEntropy",
    "Curve",
    "Dense",
    "Diagonal",
    "DistributedProblem",
    "Elementwise",
    "Euclidean",
    "Factor",
    "Gain",
    "Leftover",
    "Measurement",
    "Monitor",
    "Pair",
    "Piece",
    "Problem",
    "Quotient",
    "Ranks",
    "Reader",
    "Rotation",
    "Scale",
    "SpiritlevelError",
    "Status",
    "Symmetries",
    "Translation",
    "adaptive_sharpness",
    "average_case",
    "by_block",
    "effective_dimension",
    "find_symmetries",
    "geodesic_sharpness",
    "gradient_norm",
    "hessian_density",
    "hessian_diagonal",
    "hessian_eigenvalues",
    "hessian_logdet",
    "hessian_norm",
    "hessian_operator",
    "hessian_trace",
    "integrations",
    "move_along_orbit",
    "optim",
    "renyi_sharpness",
    "reparam",
    "root_diagonal_trace",
    "solvers",
    "verify_symmetries",
    "worst_case",
]
