"""Curvature of the loss in any geometry: one operator, all measures."""

from spiritlevel.measures.hessian.diagonal import HessianDiagonal, hessian_diagonal, root_diagonal_trace
from spiritlevel.measures.hessian.eigenvalues import Eigenvalues, hessian_eigenvalues
from spiritlevel.measures.hessian.operator import HessianOperator, PerLayer, by_block, hessian_operator
from spiritlevel.measures.hessian.options import CurvatureOptions
from spiritlevel.measures.hessian.renyi import RenyiSharpness, renyi_sharpness
from spiritlevel.measures.hessian.run import Layer, LayeredMeasurement
from spiritlevel.measures.hessian.spectrum import Density, effective_dimension, hessian_density, hessian_logdet
from spiritlevel.measures.hessian.trace import hessian_norm, hessian_trace

__all__ = [
    "CurvatureOptions",
    "Density",
    "Eigenvalues",
    "HessianDiagonal",
    "HessianOperator",
    "Layer",
    "LayeredMeasurement",
    "PerLayer",
    "RenyiSharpness",
    "by_block",
    "effective_dimension",
    "hessian_density",
    "hessian_diagonal",
    "hessian_eigenvalues",
    "hessian_logdet",
    "hessian_norm",
    "hessian_operator",
    "hessian_trace",
    "renyi_sharpness",
    "root_diagonal_trace",
]
