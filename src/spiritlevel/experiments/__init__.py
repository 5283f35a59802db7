"""Each table and figure of the papers as a function that returns data, and draws it."""

from spiritlevel.experiments import adam_sparse, sam_digits  # noqa: F401  # they register themselves
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Report"]
