"""From files to problems, and from the tables of studies to statistics."""

from spiritlevel.study.checkpoints import load_checkpoint
from spiritlevel.study.data import load_data
from spiritlevel.study.exchange import read_table, write_table
from spiritlevel.study.references import load_function
from spiritlevel.study.statistics import analyse
from spiritlevel.study.table import StudyTable

__all__ = ["StudyTable", "analyse", "load_checkpoint", "load_data", "load_function", "read_table", "write_table"]
