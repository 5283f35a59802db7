"""Changes of variables: ready-made ones, and those a model carries."""

from spiritlevel.reparam.maps.base import Bijection, Composition, Reparametrisation
from spiritlevel.reparam.maps.carried import carried
from spiritlevel.reparam.maps.check import MapCheck
from spiritlevel.reparam.maps.entrywise import Log, Monotone, Scaling, Softplus
from spiritlevel.reparam.maps.linear import Linear, OrbitAction
from spiritlevel.reparam.maps.weight_norm import Polar, Unit, WeightNorm

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
    "Scaling",
    "Softplus",
    "Unit",
    "WeightNorm",
    "carried",
]
