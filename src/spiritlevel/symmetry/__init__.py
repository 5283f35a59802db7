"""Which weights compute the same function? Find the groups, verify them on data, move along their orbits."""

from spiritlevel.symmetry.adapters import ADAPTERS, Adapter, Refusal
from spiritlevel.symmetry.certificate import Certificate, Finding, Verdict
from spiritlevel.symmetry.find import KINDS, USUAL, find_symmetries
from spiritlevel.symmetry.orbit import move_along_orbit
from spiritlevel.symmetry.picture import LayerMap, page
from spiritlevel.symmetry.verify import certify, check_blocks, verify_symmetries

__all__ = [
    "ADAPTERS",
    "KINDS",
    "USUAL",
    "Adapter",
    "Certificate",
    "Finding",
    "LayerMap",
    "Refusal",
    "Verdict",
    "certify",
    "check_blocks",
    "find_symmetries",
    "move_along_orbit",
    "page",
    "verify_symmetries",
]
