"""What a straight line and a unit length are: charts of orthonormal coordinates at a set of weights."""

from spiritlevel.geometry.base import Chart, Geometry, Kept
from spiritlevel.geometry.dense import Dense
from spiritlevel.geometry.entrywise import GEOMETRIES, Diagonal, Elementwise, Euclidean
from spiritlevel.geometry.metrics import METRICS
from spiritlevel.geometry.quotient import Quotient

__all__ = [
    "GEOMETRIES",
    "METRICS",
    "Chart",
    "Dense",
    "Diagonal",
    "Elementwise",
    "Euclidean",
    "Geometry",
    "Kept",
    "Quotient",
]
