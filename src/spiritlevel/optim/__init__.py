"""Sharpness-aware training in any geometry, trajectory losses, and Adam's own sharpness."""

from spiritlevel.optim import rules
from spiritlevel.optim.adam_e import AdamE
from spiritlevel.optim.adam_state import root_diagonal_from_state
from spiritlevel.optim.rules import RULES
from spiritlevel.optim.sam import SAM
from spiritlevel.optim.teacher import EMATeacherLoss
from spiritlevel.optim.trainers import SharpnessAware
from spiritlevel.optim.trajectory import TrajectoryLoss

__all__ = [
    "RULES",
    "SAM",
    "AdamE",
    "EMATeacherLoss",
    "SharpnessAware",
    "TrajectoryLoss",
    "root_diagonal_from_state",
    "rules",
]
