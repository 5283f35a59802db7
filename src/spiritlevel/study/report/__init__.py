"""From a study's table to statistics, figures, words and one HTML page; needs neither torch nor a model.

The report of a training run (`spiritlevel.study.report.training`) does: it is not imported here.
"""

from spiritlevel.study.report.figures import draw, write_figures
from spiritlevel.study.report.page import study_page
from spiritlevel.study.report.report import StudyReport, report

__all__ = ["StudyReport", "draw", "report", "study_page", "write_figures"]
