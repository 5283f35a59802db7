"""From files to problems: checkpoints and data as they lie on disk."""

from spiritlevel.study.checkpoints import load_checkpoint
from spiritlevel.study.data import load_data
from spiritlevel.study.references import load_function

__all__ = ["load_checkpoint", "load_data", "load_function"]
