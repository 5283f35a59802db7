"""Changes of variables under which sharpness, evidence and optimisation paths stay what they are."""

from spiritlevel.reparam.connection import (
    christoffel,
    riemannian_hessian,
    riemannian_hessian_product,
    transported_field,
)
from spiritlevel.reparam.densities import Density, Mode, jeffreys, mode, posterior
from spiritlevel.reparam.flat import Layout
from spiritlevel.reparam.flows import SCHEMES, Flow, Scheme, loss_gradient
from spiritlevel.reparam.kfac import KFAC
from spiritlevel.reparam.laplace import Evidence, laplace_evidence
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
from spiritlevel.reparam.ntk import empirical_ntk
from spiritlevel.reparam.optimiser import TransportedOptimizer
from spiritlevel.reparam.problem import Reparametrised, ReparametrisedProblem, reparametrise, reparametrised
from spiritlevel.reparam.sharpness import sharpness
from spiritlevel.reparam.transport import Transport

__all__ = [
    "KFAC",
    "SCHEMES",
    "Bijection",
    "Composition",
    "CurvatureMetric",
    "Density",
    "Evidence",
    "Flow",
    "Layout",
    "Linear",
    "Log",
    "MapCheck",
    "Metric",
    "Mode",
    "Monotone",
    "OrbitAction",
    "Polar",
    "Reparametrisation",
    "Reparametrised",
    "ReparametrisedProblem",
    "Scaling",
    "Scheme",
    "Softplus",
    "Transforms",
    "Transport",
    "TransportedMetric",
    "TransportedOptimizer",
    "Unit",
    "WeightNorm",
    "carried",
    "christoffel",
    "empirical_fisher",
    "empirical_ntk",
    "fisher",
    "gauss_newton",
    "jeffreys",
    "laplace_evidence",
    "loss_gradient",
    "mode",
    "posterior",
    "reparametrise",
    "reparametrised",
    "riemannian_hessian",
    "riemannian_hessian_product",
    "sharpness",
    "transported_field",
]
