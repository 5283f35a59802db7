"""Many small networks of one architecture, evaluated together: where one network does not fill a processor."""

from spiritlevel.study.ensemble.measures import average_cases, gradient_norms, worst_cases
from spiritlevel.study.ensemble.stack import Ensemble

__all__ = ["Ensemble", "average_cases", "gradient_norms", "worst_cases"]
