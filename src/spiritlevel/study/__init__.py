"""A study of many checkpoints: from files to a table, its statistics and a report."""

from spiritlevel.study.checkpoints import load_checkpoint
from spiritlevel.study.config import Batches, Data, GeometrySettings, Loss, Measure, RadiusRule, StudyConfig, Zoo
from spiritlevel.study.data import load_data
from spiritlevel.study.engines import ENGINES
from spiritlevel.study.exchange import read_table, write_table
from spiritlevel.study.references import load_function
from spiritlevel.study.runner import run_study
from spiritlevel.study.settings_file import read_config
from spiritlevel.study.statistics import analyse
from spiritlevel.study.store import Store
from spiritlevel.study.table import StudyTable

__all__ = [
    "ENGINES",
    "Batches",
    "Data",
    "GeometrySettings",
    "Loss",
    "Measure",
    "RadiusRule",
    "Store",
    "StudyConfig",
    "StudyTable",
    "Zoo",
    "analyse",
    "load_checkpoint",
    "load_data",
    "load_function",
    "read_config",
    "read_table",
    "run_study",
    "write_table",
]
