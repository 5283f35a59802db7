"""Changes of variables under which sharpness, evidence and optimisation paths stay what they are."""

from spiritlevel.reparam.connection import (
    christoffel,
    riemannian_hessian,
    riemannian_hessian_product,
    transported_field,
)
from spiritlevel.reparam.flat import Layout
from spiritlevel.reparam.kfac import KFAC
from spiritlevel.reparam.maps import (
    Bijection,
    Composition,
    Linear,
    Log,
    MapCheck,
    Monotone,
    OrbitAction,
    Polar,
    Reparametrisation,
    Scaling,
    Softplus,
    Unit,
    WeightNorm,
    carried,
)
from spiritlevel.reparam.metrics import (
    CurvatureMetric,
    Metric,
    Transforms,
    TransportedMetric,
    empirical_fisher,
    fisher,
    gauss_newton,
)
from spiritlevel.reparam.problem import Reparametrised, ReparametrisedProblem, reparametrise, reparametrised
from spiritlevel.reparam.sharpness import sharpness
from spiritlevel.reparam.transport import Transport

__all__ = [
    "KFAC",
    "Bijection",
    "Composition",
    "CurvatureMetric",
    "Layout",
    "Linear",
    "Log",
    "MapCheck",
    "Metric",
    "Monotone",
    "OrbitAction",
    "Polar",
    "Reparametrisation",
    "Reparametrised",
    "ReparametrisedProblem",
    "Scaling",
    "Softplus",
    "Transforms",
    "Transport",
    "TransportedMetric",
    "Unit",
    "WeightNorm",
    "carried",
    "christoffel",
    "empirical_fisher",
    "fisher",
    "gauss_newton",
    "reparametrise",
    "reparametrised",
    "riemannian_hessian",
    "riemannian_hessian_product",
    "sharpness",
    "transported_field",
]
