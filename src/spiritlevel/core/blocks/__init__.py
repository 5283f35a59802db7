"""Symmetry blocks: which weights a group acts on, how, and what a quotient by it does with them."""

from spiritlevel.core.blocks.base import Block, group_power
from spiritlevel.core.blocks.batch_norm import BatchNorm
from spiritlevel.core.blocks.gain import Gain
from spiritlevel.core.blocks.pair import Pair
from spiritlevel.core.blocks.rotation import Rotation
from spiritlevel.core.blocks.scale import Scale
from spiritlevel.core.blocks.symmetries import Leftover, Symmetries
from spiritlevel.core.blocks.translation import Reader, Translation

__all__ = [
    "BatchNorm",
    "Block",
    "Gain",
    "Leftover",
    "Pair",
    "Reader",
    "Rotation",
    "Scale",
    "Symmetries",
    "Translation",
    "group_power",
]
