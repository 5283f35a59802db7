"""From a study's table to statistics, figures, words and one HTML page."""

from spiritlevel.study.report.page import study_page

__all__ = ["study_page"]
