"""From a study's table to statistics, figures, words and one HTML page."""

from spiritlevel.study.report.figures import draw, write_figures
from spiritlevel.study.report.page import study_page
from spiritlevel.study.report.report import StudyReport, report
from spiritlevel.study.report.training import TrainingReport, training_report

__all__ = ["StudyReport", "TrainingReport", "draw", "report", "study_page", "training_report", "write_figures"]
