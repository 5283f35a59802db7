"""What the zoo of vision transformers says about section 5.3.1 of Hide & Seek: taus, leads, claims, and words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from spiritlevel.demo.optional import optional
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.fashion import SHIFTS
from spiritlevel.experiments.intervals import verdict
from spiritlevel.experiments.vit_training import END, LEVEL
from spiritlevel.experiments.vit_zoo import MEASURES, VARIATIONS, prepare_vit_zoo, varied_study
from spiritlevel.experiments.zoo_figures import scatter, taus
from spiritlevel.experiments.zoo_folder import ZooFolder
from spiritlevel.experiments.zoo_judging import Judged, judged, of_design, with_loss_gaps
from spiritlevel.experiments.zoo_words import (
    ADAPTIVE,
    GEODESIC,
    NAMES,
    Grid,
    Lines,
    edge_words,
    edges,
    listed,
    quartiles,
    spread,
    training_seconds,
)
from spiritlevel.study import StudyConfig, StudyTable, run_study

__all__ = ["report_of_zoo", "vit_zoo"]

DESIGNS = {END: "where training ends", LEVEL: "at equal training loss"}
SETS = ("test", *SHIFTS)
TARGETS = tuple(f"{s}_{kind}" for kind in ("gap", "loss_gap", "error") for s in SETS)
PAPER = {"geodesic": -0.71, "geodesic-cross": -0.70, "adaptive": -0.41}  # Table 1, final version
GRID = Grid(MEASURES, judged=1)  # ours, fixed before any tau was seen: the middle one of three radii


def vit_zoo(quick: bool, seed: int) -> Report:
    """Run it: make the zoo, measure it, judge it. Stopped at any moment and run again, it goes on where it was."""
    say = Lines()
    zoo = prepare_vit_zoo(quick, seed, on_done=lambda name: say(f"{name} is trained"))
    table = run_study(zoo.study, on_done=lambda pace: say(str(pace)))
    varied = {name: run_study(_varied(zoo, name), on_done=lambda pace: say(str(pace))) for name in VARIATIONS}
    return report_of_zoo(zoo, table, varied, 500 if quick else 2000)


def _varied(zoo: ZooFolder, name: str) -> StudyConfig:
    """The study with a setting changed."""
    content = optional("yaml").safe_load(zoo.study.read_text(encoding="utf-8"))
    return StudyConfig.model_validate(varied_study(content, name)).placed(zoo.path, {})


def report_of_zoo(zoo: ZooFolder, table: StudyTable, varied: Mapping[str, StudyTable], resamples: int = 2000) -> Report:
    """The report of a zoo that is measured, as far as it is.

    Args:
        zoo: the networks.
        table: their numbers.
        varied: the numbers with a setting changed.
        resamples: of the networks, and permutations.
    """
    table = with_loss_gaps(table)
    found = {name: judged(of_design(table, name), TARGETS, GRID.pairs, resamples) for name in DESIGNS}
    middle = [(GRID.column(g), GRID.column(a)) for g in GEODESIC for a in ADAPTIVE]
    changed = {name: judged(one, ("test_gap",), middle, resamples) for name, one in varied.items()}
    beyond = edges(zoo, table.names, GRID)
    claims = [c for name, one in found.items() for c in _claims(DESIGNS[name], one)]
    gaps = {f"{s}_gap": s for s in SETS}
    return Report(
        "vit-zoo",
        f"{len(found[END].table)} fine-tuned vision transformers: sharpness and generalisation (Hide & Seek, 5.3.1)",
        tuple(claims),
        _settings(zoo),
        {
            "zoo": _zoo_facts(zoo, found),
            "taus": {name: one.rows() for name, one in found.items()},
            "leads": {name: one.lead_rows() for name, one in found.items()},
            "varied": {name: {"taus": one.rows(), "leads": one.lead_rows()} for name, one in changed.items()},
            "quartiles": {name: quartiles(one, GRID.columns) for name, one in found.items()},
            "beyond the edge": beyond,
        },
        {
            **{f"vit-zoo-{name}": scatter(one, GRID.shown(), gaps) for name, one in found.items()},
            "vit-zoo-taus": taus({DESIGNS[n]: one for n, one in found.items()}, GRID.columns, gaps),
        },
        f"{_reading(found)} {edge_words(beyond)}{_varied_words(changed)}",
    )


def _varied_words(varied: Mapping[str, Judged]) -> str:
    """The taus of the first design with a setting changed."""
    parts = []
    for name, found in varied.items():
        words = [f"{NAMES[m]} {found.tau(GRID.column(m), 'test_gap')}" for m in NAMES]
        parts.append(f"with {name} ({len(found.table)} networks) tau is {listed(words)}")
    return f" Varied, {DESIGNS[END]}: {'; '.join(parts)}." if parts else ""


def _claims(design: str, found: Judged) -> Iterator[Claim]:
    n = len(found.table)
    for measure, words in NAMES.items():
        tau = found.tau(GRID.column(measure), "test_gap")
        number = PAPER.get(measure)
        paper = "none" if number is None else f"{number:.2f}, negative"
        holds = None if number is None else verdict((tau.low, tau.high), positive=False)
        yield Claim(f"{design}: tau of {words}, with the test gap (Table 1)", paper, tau.value, holds,
                    (tau.low, tau.high), _tau_note(found, measure, number, n))  # fmt: skip
    for geodesic in GEODESIC:
        for adaptive in ADAPTIVE:
            lead = found.leads[GRID.column(geodesic), GRID.column(adaptive), "test_gap"]
            known = geodesic in PAPER and adaptive in PAPER
            paper = f"above 0 ({abs(PAPER[geodesic]) - abs(PAPER[adaptive]):.2f})" if known else "above 0"
            ends = (lead.difference.low, lead.difference.high)
            words = f"|tau| of {NAMES[geodesic]} minus |tau| of {NAMES[adaptive]} (5.3.1)"
            yield Claim(f"{design}: {words}", paper, lead.difference.value, verdict(ends), ends,
                        f"paired over networks, p {lead.p:.2g}; at the other radii "
                        + listed(_other_leads(found, geodesic, adaptive)))  # fmt: skip
    for geodesic in GEODESIC:
        below, above = _signs(found, geodesic)
        holds = True if below == len(SHIFTS) else False if above else None
        yield Claim(f"{design}: {NAMES[geodesic]}: negative with the gap on every shift (5.3.1, Fig. 4)",
                    "consistently negative", f"{below} of {len(SHIFTS)} beyond chance, {above} positive", holds,
                    None, listed([f"{s} {found.tau(GRID.column(geodesic), f'{s}_gap')}" for s in SHIFTS]))  # fmt: skip


def _tau_note(found: Judged, measure: str, number: float | None, count: int) -> str:
    r = found.relations[GRID.column(measure), "test_gap"]
    others = [f"{found.tau(GRID.column(measure, i), 'test_gap').value:.2f}" for i in GRID.others]
    known = "" if number is None else (
        f"; the paper's number is {'inside' if r.tau.low <= number <= r.tau.high else 'outside'} the interval"
    )  # fmt: skip
    partial = f"; given training loss and norm {r.partial}"
    return f"{count} networks, p {r.p:.2g}; at the other radii {listed(others)}{partial}{known}"


def _other_leads(found: Judged, geodesic: str, adaptive: str) -> list[str]:
    leads = [
        found.leads[GRID.column(geodesic, i), GRID.column(adaptive, i), "test_gap"].difference for i in GRID.others
    ]
    return [str(x) for x in leads]


def _signs(found: Judged, measure: str) -> tuple[int, int]:
    """On how many shifts tau with the gap is below 0, and on how many above, with its whole interval."""
    intervals = [found.tau(GRID.column(measure), f"{s}_gap") for s in SHIFTS]
    return sum(t.high < 0 for t in intervals), sum(t.low > 0 for t in intervals)


def _settings(zoo: ZooFolder) -> dict[str, Any]:
    facts = zoo.facts
    rises = "the loss rises by about 0.04, 0.1 and 0.3, with cross_gram by less than half of it"
    chosen = {
        f"radii (not stated in the paper; {rises})": {NAMES[m]: rho for m, rho in GRID.radii.items()},
        "judged at": "the middle radius; the others are in the notes and the data",
        "curves": "exact for inverse_gram, second order for cross_gram, as in the paper",
        "shifts (ours)": {n: words for n, (words, _) in SHIFTS.items()},
        "the paper's": "72 fine-tunings of CLIP ViT-B/32, 2,048 training images in batches of 256, ImageNet-R, -Sketch "
        "and -A",
    }
    return {**facts["settings"], "pretraining": facts["pretraining"], **chosen, "seed": facts["seed"]}


def _zoo_facts(zoo: ZooFolder, found: Mapping[str, Judged]) -> dict[str, Any]:
    """How the networks came out: counts, and the spread of every error and gap."""
    columns = ("train_loss", "train_error", *(f"{s}_{kind}" for s in SETS for kind in ("error", "gap")))
    return {
        "trained": len(zoo.networks),
        "in the design": {name: len(one.table) for name, one in found.items()},
        "CPU seconds of fine-tuning": training_seconds(zoo),
        "failed measurements": sum(len(one.table.failures) for one in found.values()),
        "least, quartiles, most": {name: spread(one, columns) for name, one in found.items()},
    }


def _reading(found: Mapping[str, Judged]) -> str:
    return " ".join(s for name, one in found.items() for s in _sentences(name, one)) + " " + _close(found)


def _sentences(design: str, found: Judged) -> Iterator[str]:
    gaps = found.table.gen["test_gap"]
    low, middle, high = (100 * float(np.quantile(gaps, q)) for q in (0, 0.5, 1))
    words = DESIGNS[design].capitalize()
    yield f"{words} ({len(gaps)} networks, test gaps from {low:.1f} to {high:.1f} %, the middle one {middle:.1f} %),"
    yield (
        "tau with the test gap is "
        + listed([f"{found.tau(GRID.column(m), 'test_gap')} for {NAMES[m]}" for m in NAMES])
        + "."
    )
    yield (
        "Geodesic against adaptive l2: "
        + listed([GRID.compared(found, g, "adaptive", "test_gap") for g in GEODESIC])
        + "."
    )
    yield GRID.without_training(found)
    yield "On the shifts, " + listed([_consistent(found, m) for m in GEODESIC]) + "."
    loss = found.relations["train_loss", "test_gap"].tau
    yield f"The training loss alone has tau {loss} with the gap;"
    parts = [f"{NAMES[m]} {found.relations[GRID.column(m), 'test_gap'].partial}" for m in NAMES]
    yield f"given it and the norm of the weights, what is left is {listed(parts)}."


def _consistent(found: Judged, measure: str) -> str:
    below, above = _signs(found, measure)
    return (
        f"{NAMES[measure]} has a negative tau beyond chance on {below} of {len(SHIFTS)} and a positive one on {above}"
    )


def _close(found: Mapping[str, Judged]) -> str:
    """What of the paper's claims is left, counted from the claims themselves."""
    parts = []
    for name, one in found.items():
        negative = [m for m in GEODESIC if one.tau(GRID.column(m), "test_gap").high < 0]
        better = [m for m in GEODESIC
                  if one.leads[GRID.column(m), GRID.column("adaptive"), "test_gap"].difference.low > 0]  # fmt: skip
        parts.append(
            f"{DESIGNS[name]} the claim of a negative correlation holds for {listed([NAMES[m] for m in negative])}, "
            f"that of being stronger than adaptive l2 for {listed([NAMES[m] for m in better])}"
        )
    return (
        "Of the paper's two claims about geodesic sharpness, " + ", and ".join(parts) + ". These are small networks on "
        "small images, all from one pretrained network, with one training set and one set of images to measure on: the "
        "intervals are over the choice of networks only."
    )


EXPERIMENTS.register("vit-zoo")(
    Experiment("Hide & Seek, 5.3.1: does sharpness tell which fine-tuned vision transformers generalise?", vit_zoo)
)
