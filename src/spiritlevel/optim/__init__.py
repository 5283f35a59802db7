"""Sharpness-aware training in any geometry, trajectory losses, and Adam's own sharpness."""

from spiritlevel.optim import rules
from spiritlevel.optim.rules import RULES
from spiritlevel.optim.sam import SAM

__all__ = ["RULES", "SAM", "rules"]
