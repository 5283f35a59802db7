"""Each table and figure of the papers as a function that returns data, and draws it."""

from spiritlevel.experiments import (
    ablations,
    adam_sparse,
    adaptive_optimisers,
    bert_report,
    diagonal_networks,
    orbit,
    reparam_figure2,
    reparam_laplace,
    reparam_ntk,
    reparam_optimisers,
    reparam_toy,
    sam_digits,
    scalar_toy,
    vit_report,
)
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Experiment",
    "Report",
    "ablations",
    "adam_sparse",
    "adaptive_optimisers",
    "bert_report",
    "diagonal_networks",
    "orbit",
    "reparam_figure2",
    "reparam_laplace",
    "reparam_ntk",
    "reparam_optimisers",
    "reparam_toy",
    "sam_digits",
    "scalar_toy",
    "vit_report",
]
