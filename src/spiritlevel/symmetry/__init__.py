"""Which weights compute the same function? Find the groups, verify them on data, move along their orbits."""

from spiritlevel.symmetry.adapters import ADAPTERS, Adapter, Refusal
from spiritlevel.symmetry.find import find_symmetries
from spiritlevel.symmetry.orbit import move_along_orbit
from spiritlevel.symmetry.verify import check_blocks, verify_symmetries

__all__ = [
    "ADAPTERS",
    "Adapter",
    "Refusal",
    "check_blocks",
    "find_symmetries",
    "move_along_orbit",
    "verify_symmetries",
]
