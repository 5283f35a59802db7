"""Figures by matplotlib, which is asked for only when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spiritlevel.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "COLOURS", "GREY", "ORANGE", "panel", "panels"]

# Okabe and Ito: told apart by colour-blind readers
BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK)
GREY = "#777777"


def panels(rows: int = 1, columns: int = 1, width: float = 7, height: float = 4) -> tuple[Figure, Any]:
    """A figure that is not attached to any window, and its axes as a two-dimensional array."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "expected matplotlib to be installed for figures, got none: pip install 'spiritlevel[figures]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panel(width: float = 7, height: float = 4) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    figure, axes = panels(1, 1, width, height)
    return figure, axes[0, 0]
