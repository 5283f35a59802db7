"""Pieces of the page's markup: sections, tables that sort, and cells that know their number."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from spiritlevel.study.statistics.resamples import Interval

__all__ = ["cell", "chance", "ends", "section", "sortable"]

# columns that are read from the left
_WORDS = ("target", "along", "worst change", "why", "measurement", "which checkpoint")


def section(name: str, title: str, body: str) -> str:
    """A part of the page with a heading of its own; ``body`` is markup already."""
    head = f'<h2 id="{name}-title">{escape(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{body}</section>\n'


def sortable(heads: Sequence[str], rows: Sequence[str], caption: str) -> str:
    """A table in a region that scrolls; ``rows`` are markup already."""
    titles = "".join(f'<th scope="col"{" class=words" if h in _WORDS else ""}>{escape(h)}</th>' for h in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="sortable">'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def cell(value: float, form: str = ".2f", weak: bool = False) -> str:
    """A number; the exact one is what is sorted by."""
    if value != value:
        return '<td data-v="">–</td>'
    mark = ' class="weak" title="its interval includes 0"' if weak else ""
    return f'<td data-v="{value:.6g}"{mark}>{escape(format(value, form).replace("-", "−"))}</td>'


def chance(p: float) -> str:
    """A p-value, without the digits nobody believes."""
    return cell(p, ".2g") if not p < 1e-4 else f'<td data-v="{p:.6g}">&lt; 0.0001</td>'


def ends(tau: Interval) -> str:
    """The two ends of an interval."""
    if tau.low != tau.low:
        return '<td data-v="">–</td>'
    words = f"{tau.low:.2f} to {tau.high:.2f}".replace("-", "−")
    return f'<td data-v="{tau.low:.6g}">{words}</td>'
