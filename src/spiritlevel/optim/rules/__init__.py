"""The rules of sharpness-aware training, for `spiritlevel.optim.SAM`."""

from spiritlevel.optim.rules.ascent import ASAM, RSAM, FisherSAM, Plain
from spiritlevel.optim.rules.base import RULES, Perturbation, Rule
from spiritlevel.optim.rules.combine import GSAM, LookSAM
from spiritlevel.optim.rules.geodesic import GeodesicSAM
from spiritlevel.optim.rules.masks import ESAM, SSAMD, SSAMF, NormOnly

__all__ = [
    "ASAM",
    "ESAM",
    "GSAM",
    "RSAM",
    "RULES",
    "SSAMD",
    "SSAMF",
    "FisherSAM",
    "GeodesicSAM",
    "LookSAM",
    "NormOnly",
    "Perturbation",
    "Plain",
    "Rule",
]
