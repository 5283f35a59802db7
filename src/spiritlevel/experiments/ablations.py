"""Hide & Seek, App. G and H: what of geodesic sharpness matters? Component by component, on a zoo of networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spiritlevel.core.drawing import BLUE, COLOURS, GREY, ORANGE, panels
from spiritlevel.experiments.ablation_findings import Effect, Effects, effects_of
from spiritlevel.experiments.ablation_plan import (
    BASES,
    EXACT,
    RELAXATIONS,
    Ablation,
    measured_ablations,
    measured_batches,
)
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.vit_training import END, LEVEL
from spiritlevel.experiments.vit_zoo import prepare_vit_zoo
from spiritlevel.experiments.zoo_folder import ZooFolder
from spiritlevel.study import StudyTable
from spiritlevel.study.statistics.resamples import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FULL", "QUICK", "ablations", "report_ablations"]

QUICK = Ablation(8, (END,), examples=64, many=128, judges=2)
FULL = Ablation(48, (END, LEVEL), examples=256, many=512)
SMALL = 0.1
"""Ours: a change of tau whose whole interval is below this in size is called small."""


def ablations(quick: bool, seed: int) -> Report:
    """Run it on the zoo of vision transformers, which is made first where it is missing."""
    return report_ablations(prepare_vit_zoo(quick, seed), QUICK if quick else FULL, seed)


def report_ablations(
    zoo: ZooFolder, ablation: Ablation, seed: int = 0, store: Path | None = None, target: str = "test_gap"
) -> Report:
    """Measure what is missing, and judge."""
    table = measured_ablations(zoo, ablation, store)
    radii = {c.rpartition("@")[0]: float(c.rpartition("@")[2]) for c in table.complexity if "@" in c}
    batches = table if ablation.many is None else measured_batches(zoo, ablation, radii, store)

    def of(design: str, target: str) -> Effects:
        rows = [i for i, name in enumerate(table.names) if name.endswith(f"-{design}")]
        return effects_of(table, batches, ablation.variants, rows, target, seed)

    found = {d: of(d, target) for d in ablation.designs}
    claims = [c for design, effects in found.items() for c in _claims(design, effects)]
    shifts = {
        d: {t: _plain(of(d, t)) for t in table.gen if t.endswith("_gap") and t != target} for d in ablation.designs
    }
    settings = {
        **asdict(ablation),
        "target": target,
        "networks measured": {d: e.count for d, e in found.items()},
        "radii": radii,
        "small": SMALL,
        "seed": seed,
        "chosen": "norms that take the place of the one that is off, radii, relaxations, networks: all unstated",
    }
    data = {"designs": {d: _plain(e) for d, e in found.items()}, "other targets": shifts, "values": _values(table)}
    title = "Ablations of geodesic sharpness (Hide & Seek, App. G and H)"
    return Report(
        "ablations", title, tuple(claims), settings, data, {"ablations": _draw(found)}, _reading(found, table)
    )


def _values(table: StudyTable) -> dict[str, Any]:
    """The numbers behind everything, to six digits: a column for each measure."""
    kept = {**table.complexity, **{n: v for n, v in table.gen.items() if n.endswith(("gap", "train_loss"))}}
    return {"checkpoint": list(table.names), **{n: [float(f"{x:.6g}") for x in v] for n, v in kept.items()}}


def _plain(effects: Effects) -> dict[str, Any]:
    rows = {}
    for name, row in effects.rows.items():
        rows[name] = {
            "rho": row.rho,
            **{k: _ends(getattr(row, k)) for k in ("tau", "change", "ratio")},
            "p": row.p,
            "order": row.order,
            "failed": row.failed,
        }
    batches = {
        name: [{"batches": k, "tau": _ends(tau), "change": _ends(change)} for k, tau, change in steps]
        for name, steps in effects.batches.items()
    }
    return {"networks": effects.count, "target": effects.target, "variants": rows, "batches": batches}


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(x, 5) for x in (interval.value, interval.low, interval.high)]


# -------------------------------------------------------------------------------------------------------------- claims


def _claims(design: str, effects: Effects) -> Iterator[Claim]:
    at = f"{design}: "
    yield from _papers(at, effects)
    for name, steps in effects.batches.items():
        for k, tau, change in steps[:-1]:
            what = f"{at}{effects.rows[name].variant.words}: change of tau with {k} of {steps[-1][0]} batches"
            yield Claim(what, "not stated", change.value, None, (change.low, change.high), f"tau {tau}")
    for row in effects.rows.values():
        notes = [f"rho {row.rho:g}"]
        if row.ratio is not None:
            notes.append(f"values times {row.ratio.value:.3g} ({row.ratio.low:.3g} to {row.ratio.high:.3g})")
            notes.append(f"orders networks as the {row.variant.base} one with tau {row.order:.2f}")
        if row.failed:
            notes.append(f"{row.failed} networks without a number")
        if row.change is None:
            what, ends = f"{at}{row.variant.words}: tau with the gap", row.tau
        else:
            what, ends = f"{at}{row.variant.words}: change of tau", row.change
            notes.insert(0, f"tau {row.tau}, p {row.p:.2g} corrected")
        yield Claim(what, "not stated", ends.value, None, (ends.low, ends.high), "; ".join(notes))


def _papers(at: str, effects: Effects) -> Iterator[Claim]:
    """The paper's own sentences."""
    rows = effects.rows
    for metric, norm, curve in (("(15)", "norm-off", "first-order"), ("(34)", "cross-norm-off", "cross-first-order")):
        more = effects.larger_loss(norm, curve)
        if more is not None:
            what = f"{at}metric {metric}: norm off costs more than second order off (App. G)"
            note = f"how much more of tau is lost; change with the norm off: {rows[norm].change}"
            yield Claim(what, "much more", more.value, _above(more), (more.low, more.high), note)
    if (row := rows.get("first-order")) is not None and row.change is not None:
        what = f"{at}metric (15): second order off costs little (App. G)"
        yield _judged(what, "small drop only", row, _within(row.change, SMALL))
    if (row := rows.get("cross-first-order")) is not None and row.change is not None:
        what = f"{at}metric (34): second order off costs much (App. G)"
        holds = True if row.change.high < 0 else False if _within(row.change, SMALL) else None
        yield _judged(what, "essential", row, holds)
    relaxed = [rows[n] for n in (f"relaxed-{e:g}" for e in RELAXATIONS) if n in rows]
    if relaxed:
        worst = max(relaxed, key=lambda r: max(abs(r.change.low), abs(r.change.high)) if r.change else 0.0)
        kept = [_within(r.change, SMALL) for r in relaxed if r.change is not None]
        holds = True if all(kept) else False if any(k is False for k in kept) else None
        yield _judged(f"{at}relaxation makes no significant difference (App. H)", "none", worst, holds)
    if (row := rows.get("cross")) is not None and row.change is not None:
        yield _judged(f"{at}metric (34) tells more than (15) (App. F.2)", "0.34 over 0.25", row, _above(row.change))


def _judged(what: str, paper: str, row: Effect, holds: bool | None) -> Claim:
    assert row.change is not None
    note = f"{row.variant.words}: tau {row.tau}, change of tau here"
    return Claim(what, paper, row.change.value, holds, (row.change.low, row.change.high), note)


def _above(interval: Interval) -> bool | None:
    return True if interval.low > 0 else False if interval.high < 0 else None


def _within(interval: Interval | None, bound: float) -> bool | None:
    """Whether all of the interval is that small, or all of it larger."""
    if interval is None:
        return None
    if max(abs(interval.low), abs(interval.high)) <= bound:
        return True
    return False if interval.low > bound or interval.high < -bound else None


# -------------------------------------------------------------------------------------------------------------- figure


def _draw(found: Mapping[str, Effects]) -> Figure:
    """Changes of tau with intervals; ratios of values; tau by number of batches."""
    figure, axes = panels(1, 3, 13.5, 6)
    for shift, colour, (design, effects) in zip((-0.17, 0.17), (BLUE, ORANGE), found.items(), strict=False):
        _forest(axes[0, 0], effects, shift, colour, design, ratio=False)
        _forest(axes[0, 1], effects, shift, colour, design, ratio=True)
    rows = [r for r in next(iter(found.values())).rows.values() if r.change is not None]
    for axis in axes[0, :2]:
        axis.set(yticks=range(len(rows)))
        axis.invert_yaxis()
        axis.grid(axis="x", lw=0.4, alpha=0.5)
    axes[0, 0].set(yticklabels=[r.variant.words for r in rows], xlabel="change of tau (below 0: tells less)")
    axes[0, 1].set(yticklabels=[], xlabel="values / those it is compared with", xscale="log")
    axes[0, 1].set(xticks=_FACTORS, xticklabels=[f"{x:g}" for x in _FACTORS])
    axes[0, 1].minorticks_off()
    axes[0, 0].axvline(0, color=GREY, lw=0.8)
    axes[0, 1].axvline(1, color=GREY, lw=0.8)
    axes[0, 0].legend(frameon=False, fontsize=8)
    _batches(axes[0, 2], found)
    return figure


_FACTORS = (0.25, 0.5, 1, 2, 4)


def _steps(effects: Effects) -> Iterator[int]:
    yield from (k for steps in effects.batches.values() for k, *_ in steps)


def _forest(axes: Any, effects: Effects, shift: float, colour: str, label: str, *, ratio: bool) -> None:
    shown = [(r.ratio if ratio else r.change) for r in effects.rows.values() if r.change is not None]
    for i, one in enumerate(shown):
        assert one is not None
        axes.plot([one.low, one.high], [i + shift] * 2, color=colour, lw=1.3)
        axes.plot([one.value], [i + shift], "o", color=colour, ms=4, label=f"design: {label}" if i == 0 else None)


def _batches(axes: Any, found: Mapping[str, Effects]) -> None:
    styles = iter([(c, s) for s in ("o-", "s--") for c in COLOURS[:2]])
    for design, effects in found.items():
        for base in BASES:
            colour, style = next(styles)
            steps = [(k, tau) for k, tau, _ in effects.batches[base.name]]
            label = f"{design}, {base.words.split(',')[0]}"
            axes.plot([k for k, _ in steps], [t.value for _, t in steps], style, color=colour, ms=4, label=label)
            axes.fill_between([k for k, _ in steps], [t.low for _, t in steps], [t.high for _, t in steps],
                              color=colour, alpha=0.12, lw=0)  # fmt: skip
    axes.axhline(0, color=GREY, lw=0.6)
    axes.set(xlabel="batches", ylabel="tau with the gap", xticks=sorted({k for e in found.values() for k in _steps(e)}))
    axes.legend(frameon=False, fontsize=8)


# ------------------------------------------------------------------------------------------------------------- reading


def _reading(found: Mapping[str, Effects], table: StudyTable) -> str:
    parts = []
    for design, effects in found.items():
        base = effects.rows[EXACT]
        varied = [r for r in effects.rows.values() if r.change is not None]
        sure = [r for r in varied if r.p <= 0.05]
        widths = sorted(r.change.high - r.change.low for r in varied if r.change is not None and r.order < 0.95)
        text = (
            f"Design {design}, {effects.count} networks: geodesic sharpness has tau {base.tau} with {effects.target}. "
        )
        if sure:
            text += "After correction for all comparisons tau changes with: " + "; ".join(
                f"{r.variant.words} ({r.change})" for r in sure
            )
        else:
            text += f"None of {len(varied)} variants changes tau beyond chance after correction"
        same = [r for r in varied if r.order >= 0.95]
        text += ". "
        if same:
            text += "Nearly the same order of networks (tau 0.95 and more) with: "
            text += "; ".join(r.variant.words for r in same) + ". "
        if widths:
            text += f"For the others the intervals of changes are {widths[0]:.2f} to {widths[-1]:.2f} wide: no "
            text += "difference much below half of that can be seen with so few networks."
        for name, steps in effects.batches.items():
            taus = ", ".join(f"{tau.value:.2f}" for _, tau, _ in steps)
            words, counts = effects.rows[name].variant.words, ", ".join(str(k) for k, *_ in steps)
            moved = any(change.excludes_zero for *_, change in steps)
            text += f" With {counts} batches tau is {taus} for {words}"
            text += ": which data it is taken on moves it beyond chance." if moved else "."
        parts.append(text)
    relaxed = [r for e in found.values() for r in e.rows.values() if r.variant.name.startswith("relaxed") and r.ratio]
    if relaxed:
        parts.append(
            "Relaxation changes the values themselves: "
            + _spans({f"{r.variant.geometry['relaxation']:g}": r for r in reversed(relaxed)})
            + " times the exact ones for eps = "
            + ", ".join(dict.fromkeys(f"{r.variant.geometry['relaxation']:g}" for r in relaxed))
            + "; and it ends the invariance, while the exact metric needs none of it."
        )
    if table.failures:
        parts.append(f"{len(table.failures)} numbers could not be measured.")
    return " ".join(parts)


def _spans(rows: Mapping[str, Effect]) -> str:
    return ", ".join(f"{r.ratio.value:.3g}" for r in reversed(list(rows.values())) if r.ratio is not None)


EXPERIMENTS.register("ablations")(
    Experiment("Hide & Seek, App. G and H: norm, curve, relaxation and more, off", ablations)
)
