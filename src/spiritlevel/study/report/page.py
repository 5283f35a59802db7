"""The report of a study as one HTML page that needs nothing else: no network, no server, no other file.

What is in words and numbers is in the markup and can be read without scripts; plots, sorting and filtering are drawn by
one script from one block of data (`whole_page`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape

from spiritlevel.core.results import plain
from spiritlevel.study.report.markup import cell, chance, ends, section, sortable, whole_page
from spiritlevel.study.report.orbit import orbit_checks
from spiritlevel.study.report.payload import payload
from spiritlevel.study.statistics.analysis import Analysis, Relation
from spiritlevel.study.statistics.findings import Finding
from spiritlevel.study.table import StudyTable

__all__ = ["study_page"]

_SCRIPTS = ("tools.js", "plots.js", "tables.js", "theme.js", "start.js")
_SAY = {"result": "Result.", "warning": "Careful.", "note": "Note."}


def study_page(table: StudyTable, analysis: Analysis, found: Sequence[Finding], title: str = "Flatness study") -> str:
    """The page. Equal tables and settings give equal bytes."""
    sections = [s for s in _sections(table, analysis, found) if s]
    content = payload(table, analysis)
    return whole_page(title, _top(table, analysis, title), sections, _footer(analysis), content, _SCRIPTS)


def _top(table: StudyTable, analysis: Analysis, title: str) -> str:
    said = (
        f"{len(table):,} checkpoints, {len(analysis.measures)} measures, {len(analysis.targets)} "
        f"{'target' if len(analysis.targets) == 1 else 'targets'}: {', '.join(analysis.targets)}"
    )
    links = {"said": "What it says", "taus": "All taus", "pairs": "Measure by measure",
             "matched": "Along hyperparameters", "list": "Checkpoints", "how": "How it was computed"}  # fmt: skip
    nav = "".join(f'<a href="#{k}">{escape(v)}</a>' for k, v in links.items())
    return (
        f'<a class="skip" href="#said">Skip to the results</a><header class="top"><div><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(said)}</p><nav aria-label="Sections">{nav}</nav></div>'
        '<button id="theme" class="plain" type="button">Dark</button></header>'
    )


def _sections(table: StudyTable, analysis: Analysis, found: Sequence[Finding]) -> Iterable[str]:
    yield section("said", "What the study says", _findings(found))
    yield section("taus", "All taus", _forest(analysis) + _taus(analysis))
    yield section("pairs", "Measure by measure", _pairs(table, analysis))
    yield section("matched", "Along each hyperparameter", _matched(analysis))
    yield _orbit(table)
    yield section("list", "Checkpoints", _checkpoints())
    yield _failures(table)
    yield section("how", "How it was computed", _how(table, analysis))


def _findings(found: Sequence[Finding]) -> str:
    def items(kinds: Sequence[str]) -> str:
        return "".join(
            f'<li class="{f.kind}"><b>{_SAY[f.kind]}</b>{escape(f.text)}</li>' for f in found if f.kind in kinds
        )

    notes = items(["note"])
    more = f'<details><summary>Notes</summary><ul class="findings">{notes}</ul></details>' if notes else ""
    return f'<ul class="findings">{items(["result", "warning"])}</ul>{more}'


def _forest(analysis: Analysis) -> str:
    given = next((r.given for r in analysis.relations if r.given), ())
    hollow = "; hollow below: what is left given training loss and parameter norm, as far as known" if given else ""
    return (
        '<figure><div id="forest"></div><figcaption id="forest-title">Kendall\'s tau-b of each measure with each '
        f"target, with its {analysis.settings.confidence:.0%} bootstrap interval{hollow}. The upright tick is the "
        "measure's tau with the training loss. Grey: no measure of flatness, but what such a measure must beat. "
        "Choose a measure to see its checkpoints.</figcaption></figure>"
    )


def _taus(analysis: Analysis) -> str:
    heads = ("measure", "target", "tau-b", "interval", "tau-a", "p", "p corrected", "tau with training loss",
             "partial tau", "interval", "comes first", "checkpoints")  # fmt: skip
    rows = []
    for r in (r for t in analysis.targets for r in analysis.of(t)):
        cells = [
            f'<th scope="row">{escape(r.measure)}</th>', f'<td class="words">{escape(r.target)}</td>',
            cell(r.tau.value), ends(r.tau), cell(r.tau_a), chance(r.p), chance(r.p_family),
            cell(r.training), cell(r.partial.value, weak=_fades(r)), ends(r.partial), cell(r.first, ".0%"),
            cell(r.count, "d"),
        ]  # fmt: skip
        rows.append(f"<tr{' class=baseline' if r.baseline else ''}>{''.join(cells)}</tr>")
    numbers = sortable(heads, rows, "Taus of all measures and targets")
    return f"<details open><summary>The numbers</summary>{numbers}</details>"


def _fades(r: Relation) -> bool:
    """Whether a tau that stands does not stand given training loss and norm."""
    return r.tau.excludes_zero and not r.partial.excludes_zero


def _pairs(table: StudyTable, analysis: Analysis) -> str:
    controls = (
        '<div class="controls"><label>measure<select id="measure"></select></label><label>target<select id="target">'
        '</select></label><label>colour by<select id="colour"></select></label><label class="check">'
        '<input type="checkbox" id="log">log scale</label></div>'
    )
    scatter = (
        '<figure><div id="legend" class="legend"></div><div id="scatter"></div>'
        '<figcaption id="scatter-words"></figcaption></figure>'
    )
    curves = (
        '<h3>By radius</h3><div id="curve-legend" class="legend"></div><div class="pair">'
        '<figure><div id="taus-by-radius"></div></figure><figure><div id="values-by-radius"></div></figure></div>'
        '<p class="hint">Left: tau with the chosen target at each radius, with its interval. Right: the chosen measure '
        "itself, a line for each checkpoint.</p>" if any(len(a.radii) > 1 for a in analysis.agreement) else ""
    )  # fmt: skip
    agreement = _agreement(analysis)
    batches = (
        '<h3>Over batches</h3><figure><div id="batches"></div><figcaption>Each checkpoint\'s values on single batches: '
        "thin from smallest to largest, thick the middle half, the dot their mean.</figcaption></figure>"
        if table.per_batch else ""
    )  # fmt: skip
    return controls + scatter + curves + agreement + batches


def _agreement(analysis: Analysis) -> str:
    rows = []
    for a in analysis.agreement:
        tau, low, high = a.least
        radii = ", ".join(f"{r:g}" for r in a.radii)
        rows.append(f'<tr><th scope="row">{escape(a.measure)}</th><td>{radii}</td>{cell(tau)}'
                    f"<td>{low:g} and {high:g}</td></tr>")  # fmt: skip
    heads = ("measure", "radii", "least tau between two radii", "between")
    return sortable(heads, rows, "Agreement between radii") if rows else ""


def _matched(analysis: Analysis) -> str:
    heads = ("measure", "target", "along", "tau", "interval", "groups", "pairs")
    rows = [
        f'<tr><th scope="row">{escape(m)}</th><td class="words">{escape(t)}</td><td class="words">{escape(g.axis)}</td>'
        f"{cell(g.tau.value)}{ends(g.tau)}{cell(g.groups, 'd')}{cell(g.pairs, 'd')}</tr>"
        for (m, t), found in analysis.granulated.items()
        for g in found
        if g.groups
    ]
    words = (
        '<p class="hint">Tau among checkpoints that differ in one hyperparameter only, averaged over groups (Jiang et '
        "al. 2020). A measure that only tells large from small learning rates does well above and badly here.</p>"
    )
    first = words + sortable(heads, rows, "Granulated tau") if rows else (
        "<p>No two checkpoints differ in a single hyperparameter, so nothing can be said here.</p>"
    )  # fmt: skip
    return first + _environments(analysis)


def _environments(analysis: Analysis) -> str:
    heads = ("measure", "target", "worst change", "sign error there", "median over changes", "changes kept", "of")
    rows = []
    for (m, t), found in analysis.environments.items():
        kept = sorted((e for e in found if e.kept), key=lambda e: e.sign_error)
        if found:
            worst = f"{kept[-1].axis}: {kept[-1].change[0]} to {kept[-1].change[1]}" if kept else "–"
            middle = kept[len(kept) // 2].sign_error if kept else float("nan")
            rows.append(
                f'<tr><th scope="row">{escape(m)}</th><td class="words">{escape(t)}</td>'
                f'<td class="words">{escape(worst)}</td>'
                f"{cell(kept[-1].sign_error if kept else float('nan'))}{cell(middle)}{cell(len(kept), 'd')}"
                f"{cell(len(found), 'd')}</tr>"
            )
    if not rows:
        return ""
    words = (
        '<h3>Sign error</h3><p class="hint">How often a measure is wrong about whether a change of one hyperparameter '
        "widens the gap: 0 is never, 0.5 is guessing. Pairs that the test set cannot tell apart do not count, and "
        "changes with fewer than 12 effective pairs are left out (Dziugaite et al. 2020). What counts is the worst "
        "change.</p>"
    )
    return words + sortable(heads, rows, "Sign error by change of one hyperparameter")


def _orbit(table: StudyTable) -> str:
    checks = orbit_checks(table)
    if not checks:
        return ""
    rows = [
        f'<tr><th scope="row">{escape(o.measure)}</th><td class="words">{escape(o.checkpoint)}</td>'
        f"{cell(o.before, '.4g')}{cell(o.after, '.4g')}{cell(o.ratio, '.4g')}</tr>"
        for o in checks
    ]
    heads = ("measure", "which checkpoint", "before", "after", "ratio")
    body = (
        '<p class="hint">The same function written with other weights: a random move along the orbit of the '
        "symmetries. A measure of the function does not change.</p>"
        f'<figure><div id="orbit"></div></figure><details><summary>The numbers</summary>'
        f"{sortable(heads, rows, 'Before and after the orbit move')}</details>"
    )
    return section("invariance", "Invariance check", body)


def _checkpoints() -> str:
    return (
        '<div class="controls"><label>show only<input type="search" id="filter" '
        'placeholder="name, lr=0.001, test_gap&lt;0.1" aria-describedby="filter-help"></label>'
        '<span id="count" aria-live="polite"></span></div>'
        '<p class="hint" id="filter-help">Words in names and hyperparameters, or conditions on columns such as '
        "lr=0.001 or test_gap&lt;0.1; all must hold. The plots above follow. Click a row to mark its point.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Checkpoints"><table id="checkpoints">'
        "<thead></thead><tbody></tbody></table></div>"
    )


def _failures(table: StudyTable) -> str:
    if not table.failures:
        return ""
    rows = [f'<tr><th scope="row">{escape(c)}</th><td class="words">{escape(m)}</td>'
            f'<td class="words">{escape(why)}</td></tr>' for c, m, why in table.failures]  # fmt: skip
    return section(
        "failed", "What could not be measured", sortable(("checkpoint", "measurement", "why"), rows, "Failures")
    )


def _how(table: StudyTable, analysis: Analysis) -> str:
    s = analysis.settings
    words = (
        f"<p>Intervals: {s.confidence:.0%}, percentiles of {s.resamples:,} bootstrap resamples of the checkpoints, the "
        f"same for all measures, so that differences are paired. p-values: {s.permutations:,} permutations (the normal "
        "approximation beyond 200 checkpoints), corrected by Holm over all measures of a target. Partial tau: "
        f"Kendall's, given training loss and parameter norm. Seed {s.seed}.</p>"
    )
    facts = {k: v for k, v in table.facts.items() if k != "orbit_check"}
    shown = json.dumps(plain(facts), indent=1, ensure_ascii=False)
    return words + (
        f"<details><summary>Facts of the study</summary><pre>{escape(shown)}</pre></details>" if facts else ""
    )


def _footer(analysis: Analysis) -> str:
    return (
        f"Written by spiritlevel report from {analysis.checkpoints:,} checkpoints. It loads nothing and sends nothing."
    )
