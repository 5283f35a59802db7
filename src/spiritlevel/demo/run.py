"""The whole way on an embedded example: train a zoo, measure it, ask what flatness tells, and write the report."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spiritlevel.demo.cache import cache_folder, prepared
from spiritlevel.demo.data import CLEAN, SHIFTS, plain
from spiritlevel.demo.invariance import MEASURES, Invariance, check_invariance
from spiritlevel.demo.optional import optional
from spiritlevel.demo.recipes import RECIPES, Recipe
from spiritlevel.demo.training import Settings
from spiritlevel.demo.zoo import Member, cores, make_zoo
from spiritlevel.errors import ModelError
from spiritlevel.study import Store, load_checkpoint, run_study
from spiritlevel.study.report import StudyReport, report
from spiritlevel.study.statistics.resamples import Interval
from spiritlevel.symmetry import find_symmetries

__all__ = ["run_demo"]

MEASURED = 256  # ours: two batches of the clean digits, so that all of it takes minutes
FEWEST = 8  # ours: below, a tau says nothing at all
_NEEDED = ("sklearn.datasets", "transformers", "yaml", "matplotlib")
_EVERY = 20.0  # seconds between lines where there is no terminal for a bar
_ORBIT = "orbit_check"  # where the report looks for it


def study_of(seed: int) -> dict[str, Any]:
    """The settings of the study, as they are written into its file.

    Radii: where the loss rises on average by about 0.05, 0.2 and 1 on three networks of the zoo.
    """
    return {
        "name": "digits",
        "store": "study.db",
        "zoo": {"checkpoints": "zoo/*", "hyperparameters": "zoo.csv"},
        "data": {
            "train": "spiritlevel.demo.data:clean",
            "subset": MEASURED,
            "subset_seed": None,
            "tests": {name: f"spiritlevel.demo.data:{function.__name__}" for name, function in SHIFTS.items()},
        },
        "measures": [
            {"measure": "geodesic", "rho": [0.05, 0.1, 0.2]},
            {"measure": "adaptive", "rho": [0.25, 0.5, 1.0]},
            {"measure": "worst-case", "name": "euclidean", "geometry": "euclidean", "rho": [0.05]},
        ],
        "batches": {"size": 128},
        "seed": seed,
        "engine": "processes",
        "threads": 1,
    }


def run_demo(
    console: Console,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    fresh: bool = False,
    workers: int | None = None,
    recipes: Sequence[Recipe] = RECIPES,
    settings: Settings | None = None,
    show_progress: bool | None = None,
) -> dict[str, Any]:
    """Train, measure, judge and report, in words on the console; what was done before comes from the cache.

    Args:
        console: where it is told.
        seed: added to the seeds of the recipes; also fixes the orbit move.
        out: folder of the report; by default beside the networks, in the cache.
        fresh: forget what earlier runs made.
        workers: processes; by default one for each core.
        recipes: the networks.
        settings: of the training.
        show_progress: force progress bars on or off.

    Returns:
        Everything that was found, as plain data.
    """
    for package in _NEEDED:
        optional(package)
    settings = Settings() if settings is None else settings
    recipes = [replace(r, seed=r.seed + seed) for r in recipes]
    study = study_of(seed)
    folder = prepared(cache_folder(recipes, settings), fresh)
    members = _train(console, folder, recipes, settings, workers, show_progress)
    _measure(console, folder, study, members, workers, show_progress)
    orbit = _orbit(console, folder, members, seed)
    result, written = _report(console, folder, Path(out) if out is not None else folder / "report", settings)
    return {
        "folder": str(folder),
        "seed": seed,
        "settings": settings.to_dict(),
        "networks": [m.__dict__ for m in members],
        _ORBIT: list(orbit.rows),
        "report": result.to_dict(),
        "files": [str(p) for p in written],
    }


def _train(
    console: Console,
    folder: Path,
    recipes: Sequence[Recipe],
    settings: Settings,
    workers: int | None,
    show: bool | None,
) -> list[Member]:
    shared = workers or cores()
    _head(
        console,
        "1. A zoo",
        f"{len(recipes)} small vision transformers on scikit-learn's digits. Optimiser, learning rate, weight decay, "
        f"augmentation, label noise and seed differ; each is trained until its loss on {CLEAN} clean training digits "
        f"is {settings.level:g} ({shared} {'process' if shared == 1 else 'processes'}).",
    )
    say, done = _Lines(console), 0

    def told(member: Member) -> None:
        nonlocal done
        done += 1
        say(f"{done} trained; the last, {member.name}, in {member.steps} steps")

    found = make_zoo(folder, recipes, settings, workers=workers, show_progress=show, on_done=told)
    zoo, out = [m for m in found if m.reached], [m for m in found if not m.reached]
    _text(console, f"{len(zoo)} networks are in the zoo: {folder / 'zoo'}")
    if out:
        names = ", ".join(f"{m.name} ({m.loss:.3f})" for m in out)
        rule = f"their loss was still above {settings.level:g} after {settings.limit} steps"
        _text(console, f"{len(out)} are left out, because {rule}: {names}.")
    if len(zoo) < FEWEST:
        raise ModelError(
            f"expected at least {FEWEST} networks that reach a training loss of {settings.level:g}, got {len(zoo)} of "
            f"{len(found)}: allow more steps"
        )
    return found


def _measure(
    console: Console, folder: Path, study: dict[str, Any], members: Sequence[Member], workers: int | None, show: Any
) -> None:
    shifts = ", ".join(n for n in SHIFTS if n != "test")
    _head(
        console,
        "2. Flatness",
        f"Geodesic, adaptive and Euclidean sharpness of each on {MEASURED} of these digits, and its errors on "
        f"{len(plain()[1])} test digits: as they are, {shifts}.",
    )
    config, content = folder / "study.yaml", {**study, "workers": workers} if workers else study
    config.write_text(optional("yaml").safe_dump(content, sort_keys=False), encoding="utf-8")
    say, engine = _Lines(console), "serial" if workers == 1 else None
    table = run_study(config, engine=engine, show_progress=show, on_done=lambda pace: say(str(pace)))
    for name, column, error in table.failures[:5]:
        console.print(f"   {name}, {column}: {error}", style="red", highlight=False, markup=False)
    with Store(folder / "study.db", write=True) as store:
        rule = "trained until the clean training loss is at the level; left out where that takes too many steps"
        store.set_fact("training", {"rule": rule, "left out": [m.__dict__ for m in members if not m.reached]})


def _orbit(console: Console, folder: Path, members: Sequence[Member], seed: int) -> Invariance:
    """The invariance check on the first network, kept in the store for the report."""
    first = next(m.name for m in members if m.reached)
    model = load_checkpoint(folder / "zoo" / first)
    with Store(folder / "study.db", write=True) as store:
        known = store.facts().get("_orbit")
        if known is None:
            found = check_invariance(model, first, seed)
            store.set_fact("_orbit", {"checkpoint": first, "drift": found.drift, "rows": list(found.rows)})
            store.set_fact(_ORBIT, list(found.rows))
            known = store.facts()["_orbit"]
    invariance = Invariance(known["checkpoint"], known["drift"], tuple(known["rows"]))
    blocks = find_symmetries(model)
    _head(
        console,
        "3. Why geodesic?",
        "A network uses queries and keys, values and outputs only through their products: of the "
        f"{blocks.total:,} weights of {first}, {blocks.dimension:,} directions change nothing. Here every head is "
        "multiplied by a random invertible matrix (condition number 100) that leaves the function as it is: outputs "
        f"change by at most {invariance.drift:.0e}. Only geodesic sharpness says the same before and after.",
    )
    console.print(invariance)
    return invariance


def _report(console: Console, folder: Path, out: Path, settings: Settings) -> tuple[StudyReport, list[Path]]:
    with Store(folder / "study.db") as store:
        table = store.table()
    title = f"{len(table)} vision transformers on digits, all with training loss {settings.level:g}"
    result = report(table, title=title)
    _head(
        console,
        "4. Does flatness tell which networks generalise?",
        "Kendall's tau-b of each measure with the gap between test and training error, on each test set: 1 where both "
        "put the networks in the same order, -1 where in the opposite one. Bold: its 95 % bootstrap interval does not "
        "include 0. The last two rows are no measures of flatness, but what such a measure must beat.",
    )
    console.print(_taus(result))
    _text(
        console,
        "And among networks that differ in one hyperparameter only, with the gap on the plain test set:",
    )
    console.print(_matched(result))
    for finding in result.findings:
        if finding.target in ("", "test_gap") and finding.kind in ("result", "warning"):
            _text(console, f"{finding.kind}: {finding.text}")
    written = _written(result, out)
    kept = folder / "study.db"
    _head(console, "5. The report", "with figures, all test sets and all warnings, and how to go on:")
    for what, line in {
        "the page": next(p for p in written if p.suffix == ".html"),
        "these statistics again, from the store": f"spiritlevel report {kept}",
        "every number of the store as a table": f"spiritlevel study export {kept} table.csv",
        "everything again": "spiritlevel demo --fresh",
        "a study of your own checkpoints": "spiritlevel study init",
    }.items():
        console.print(f"   {what}: [bold]{escape(str(line))}[/bold]", highlight=False, soft_wrap=True)
    return result, written


def _written(result: StudyReport, out: Path) -> list[Path]:
    """The report's files; drawn anew only where the same report is not there already."""
    mark, key = out / ".of", hashlib.sha256(result.page().encode("utf-8", "backslashreplace")).hexdigest()
    if mark.is_file() and mark.read_text(encoding="utf-8") == key and (out / "report.html").is_file():
        return sorted(p for p in out.iterdir() if p != mark)
    written = result.write(out)
    mark.write_text(key, encoding="utf-8")
    return sorted(written)


def _taus(result: StudyReport) -> Table:
    """Measures in rows, test sets in columns."""
    table, targets = _wide("measure"), result.analysis.targets
    cells: dict[str, list[Text]] = {}
    for target in targets:
        table.add_column(target.removesuffix("_gap"), justify="right")
        for r in sorted(result.analysis.of(target), key=lambda r: (r.baseline, r.measure)):
            cells.setdefault(r.measure, []).append(_cell(r.tau))
    for measure, row in cells.items():
        table.add_row(measure, *row)
    return table


def _matched(result: StudyReport) -> Table:
    """Granulated tau: measures in rows, hyperparameters in columns."""
    found = {m: g for (m, t), g in result.analysis.granulated.items() if t == "test_gap" and m in MEASURES}
    axes = list(dict.fromkeys(g.axis for row in found.values() for g in row if g.groups))
    table = _wide("measure")
    for axis in axes:
        table.add_column(axis.replace("_", " "), justify="right", overflow="fold")
    for measure, row in found.items():
        taus = {g.axis: g.tau for g in row}
        cells = [
            (f"{taus[a].value:.2f}", "bold" if taus[a].excludes_zero else "") if a in taus else ("", "") for a in axes
        ]
        table.add_row(measure, *(Text(words, style=style, justify="right") for words, style in cells))
    return table


def _wide(first: str) -> Table:
    """A table whose first column is never cut: its radii tell the measures apart."""
    table = Table()
    table.add_column(first, no_wrap=True, min_width=max(map(len, MEASURES)))
    return table


def _cell(tau: Interval) -> Text:
    return Text(f"{tau.value:.2f}", style="bold" if tau.excludes_zero else "")


def _head(console: Console, title: str, text: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    _text(console, text)


def _text(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 3)))


class _Lines:
    """A line now and then where there is no terminal to draw a bar on."""

    def __init__(self, console: Console) -> None:
        self._console, self._said = console, time.monotonic()

    def __call__(self, words: str) -> None:
        if not sys.stderr.isatty() and time.monotonic() - self._said > _EVERY:
            self._said = time.monotonic()
            self._console.print(f"   {words}", style="dim", highlight=False, markup=False)
