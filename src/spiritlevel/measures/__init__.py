"""How flat is it? Every measure is the ordinary one of the loss pulled back to a chart."""

from spiritlevel.measures.average_case import average_case
from spiritlevel.measures.catalogue import MEASURES, NamedMeasure, Options
from spiritlevel.measures.curvature_catalogue import CURVATURE
from spiritlevel.measures.gradient_norm import gradient_norm
from spiritlevel.measures.hessian import (
    CurvatureOptions,
    Density,
    Eigenvalues,
    HessianDiagonal,
    HessianOperator,
    LayeredMeasurement,
    PerLayer,
    RenyiSharpness,
    by_block,
    effective_dimension,
    hessian_density,
    hessian_diagonal,
    hessian_eigenvalues,
    hessian_logdet,
    hessian_norm,
    hessian_operator,
    hessian_trace,
    renyi_sharpness,
    root_diagonal_trace,
)
from spiritlevel.measures.shortcuts import adaptive_sharpness, geodesic_sharpness
from spiritlevel.measures.worst_case import worst_case

__all__ = [
    "CURVATURE",
    "MEASURES",
    "CurvatureOptions",
    "Density",
    "Eigenvalues",
    "HessianDiagonal",
    "HessianOperator",
    "LayeredMeasurement",
    "NamedMeasure",
    "Options",
    "PerLayer",
    "RenyiSharpness",
    "adaptive_sharpness",
    "average_case",
    "by_block",
    "effective_dimension",
    "geodesic_sharpness",
    "gradient_norm",
    "hessian_density",
    "hessian_diagonal",
    "hessian_eigenvalues",
    "hessian_logdet",
    "hessian_norm",
    "hessian_operator",
    "hessian_trace",
    "renyi_sharpness",
    "root_diagonal_trace",
    "worst_case",
]
