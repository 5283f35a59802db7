"""Each table and figure of the papers as a function that returns data, and draws it."""

from spiritlevel.experiments import (
    adam_sparse,
    bert_report,
    reparam_figure2,
    reparam_laplace,
    reparam_ntk,
    reparam_optimisers,
    reparam_toy,
    sam_digits,
    vit_report,
)
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Experiment",
    "Report",
    "adam_sparse",
    "bert_report",
    "reparam_figure2",
    "reparam_laplace",
    "reparam_ntk",
    "reparam_optimisers",
    "reparam_toy",
    "sam_digits",
    "vit_report",
]
