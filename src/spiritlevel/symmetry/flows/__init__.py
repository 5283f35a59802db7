"""Symmetries beyond attention, proposed from what flows where and certified on data afterwards.

Each file holds one kind. A proposer sees one traced forward pass and names groups that may act; what does not hold on
data is left out, with the number. So a proposer may be generous, but never has to know a model by name.
"""

from spiritlevel.symmetry.flows import batch_norm as batch_norm_flow
from spiritlevel.symmetry.flows import gated, layer_scale, linear, norms, relu, residual, softmax
from spiritlevel.symmetry.flows.registry import FLOWS, Proposer

__all__ = [
    "FLOWS",
    "Proposer",
    "batch_norm_flow",
    "gated",
    "layer_scale",
    "linear",
    "norms",
    "relu",
    "residual",
    "softmax",
]
