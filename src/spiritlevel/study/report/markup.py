"""The frame of a page, and pieces of its markup: sections, tables that sort, and cells that know their number.

A page needs nothing else: no network, no server, no other file. Its content security policy names its one script by its
hash and allows nothing else, so no name or word of the user can run, load or send anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from spiritlevel.study.report.payload import embedded
from spiritlevel.study.statistics.resamples import Interval

__all__ = ["cell", "chance", "ends", "section", "sortable", "whole_page"]

# columns that are read from the left
_WORDS = ("target", "along", "worst change", "why", "measurement", "which checkpoint")


def whole_page(title: str, top: str, sections: Sequence[str], footer: str, content: Any, scripts: Sequence[str]) -> str:
    """One HTML page.

    Args:
        title: of the page, plain words.
        top: its head, markup.
        sections: its parts, markup.
        footer: plain words.
        content: what the scripts draw, as plain data.
        scripts: files beside this one, run as one with nothing in the page's own scope.
    """
    parts = "\n".join(_asset(name) for name in scripts)
    style, script = _asset("page.css"), f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"style-src 'unsafe-inline'; script-src 'sha256-{mark}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head>\n<body>\n{top}\n<main>\n"
        f"{''.join(sections)}\n<footer>{footer}</footer>\n</main>\n"
        '<div id="tip" hidden></div><div id="say" class="unseen" aria-live="polite"></div>\n'
        f'<script type="application/json" id="data">{embedded(content)}</script>\n<script>{script}</script>\n'
        "</body></html>\n"
    )


def _asset(name: str) -> str:
    return files("spiritlevel.study.report").joinpath(name).read_text(encoding="utf-8")


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
