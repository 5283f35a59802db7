"""How flat is it? Every measure is the ordinary one of the loss pulled back to a chart."""

from spiritlevel.measures.average_case import average_case
from spiritlevel.measures.catalogue import MEASURES, NamedMeasure, Options
from spiritlevel.measures.gradient_norm import gradient_norm
from spiritlevel.measures.shortcuts import adaptive_sharpness, geodesic_sharpness
from spiritlevel.measures.worst_case import worst_case

__all__ = [
    "MEASURES",
    "NamedMeasure",
    "Options",
    "adaptive_sharpness",
    "average_case",
    "geodesic_sharpness",
    "gradient_norm",
    "worst_case",
]
