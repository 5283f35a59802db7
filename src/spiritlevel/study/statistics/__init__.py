"""Statistics of a study's table: which measure tells, how surely, and what could fool the reader."""

from spiritlevel.study.statistics.analysis import Analysis, Settings, analyse
from spiritlevel.study.statistics.findings import Finding, findings

__all__ = ["Analysis", "Finding", "Settings", "analyse", "findings"]
