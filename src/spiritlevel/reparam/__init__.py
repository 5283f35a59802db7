"""Changes of variables under which sharpness, evidence and optimisation paths stay what they are."""

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
from spiritlevel.reparam.problem import (
    Reparametrised,
    ReparametrisedProblem,
    reparametrise,
    reparametrised,
)

__all__ = [
    "Bijection",
    "Composition",
    "Linear",
    "Log",
    "MapCheck",
    "Monotone",
    "OrbitAction",
    "Polar",
    "Reparametrisation",
    "Reparametrised",
    "ReparametrisedProblem",
    "Scaling",
    "Softplus",
    "Unit",
    "WeightNorm",
    "carried",
    "reparametrise",
    "reparametrised",
]
