"""The whole way on an embedded example: train a zoo, measure it, ask what flatness tells, and write the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spiritlevel.demo.cache import cache_folder, prepared
from spiritlevel.demo.data import CLEAN, SHIFTS, plain
from spiritlevel.demo.invariance import Invariance, check_invariance
from spiritlevel.demo.optional import optional
from spiritlevel.demo.recipes import RECIPES, Recipe
from spiritlevel.demo.training import Settings
from spiritlevel.demo.zoo import Member, cores, make_zoo
from spiritlevel.errors import ModelError
from spiritlevel.study import Store, load_checkpoint, run_study
from spiritlevel.study.report import StudyReport, report
from spiritlevel.symmetry import find_symmetries

__all__ = ["run_demo"]

FEWEST = 8  # ours: below, a tau says nothing at all
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
    optional("sklearn.datasets"), optional("transformers"), optional("yaml"), optional("matplotlib")
    settings = Settings() if settings is None else settings
    recipes = [replace(r, seed=r.seed + seed) for r in recipes]
    study = study_of(seed)
    folder = prepared(cache_folder(recipes, settings, study), fresh)
    members = _train(console, folder, recipes, settings, workers, show_progress)
    _measure(console, folder, study, members, workers, show_progress)
    orbit = _orbit(console, folder, members, seed)
    result, written = _report(console, folder, Path(out) if out is not None else folder / "report", settings, members)
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
    where = f"{shared} {'process' if shared == 1 else 'processes'}; kept in {folder}"
    console.print(
        f"[bold]1. A zoo.[/bold] {len(recipes)} small vision transformers on scikit-learn's digits; optimiser, "
        "learning rate, weight decay,\n   augmentation, label noise and seed differ. Each is trained until its loss on "
        f"{CLEAN} clean training digits is {settings.level:g}\n   ({where}) ...",
        highlight=False,
        soft_wrap=True,
    )
    say, done = _Lines(console, len(recipes)), 0

    def told(member: Member) -> None:
        nonlocal done
        done += 1
        say(done, f"{member.name}: {member.steps} steps")

    found = make_zoo(folder, recipes, settings, workers=workers, show_progress=show, on_done=told)
    zoo, out = [m for m in found if m.reached], [m for m in found if not m.reached]
    console.print(f"   {len(zoo)} networks are in the zoo.", highlight=False)
    if out:
        console.print(
            f"   {len(out)} are left out: their loss was still above {settings.level:g} after {settings.limit} steps:",
            highlight=False,
        )
        for m in out:
            console.print(f"     {m.name} ({m.loss:.3f})", style="dim", highlight=False)
    if len(zoo) < FEWEST:
        raise ModelError(
            f"expected at least {FEWEST} networks that reach a training loss of {settings.level:g}, got {len(zoo)} of "
            f"{len(found)}: allow more steps"
        )
    return found


def _measure(
    console: Console, folder: Path, study: dict[str, Any], members: Sequence[Member], workers: int | None, show: Any
) -> None:
    console.print(
        f"\n[bold]2. Flatness.[/bold] Geodesic, adaptive and Euclidean sharpness of each on these {CLEAN} digits, and "
        f"errors on\n   {len(plain()[1])} test digits as they are, {', '.join(n for n in SHIFTS if n != 'test')} ...",
        highlight=False,
        soft_wrap=True,
    )
    config, content = folder / "study.yaml", {**study, "workers": workers} if workers else study
    config.write_text(optional("yaml").safe_dump(content, sort_keys=False), encoding="utf-8")
    say = _Lines(console, None)
    table = run_study(config, show_progress=show, on_done=lambda pace: say(pace.done, f"of {pace.total} units; {pace}"))
    for name, column, error in table.failures[:5]:
        console.print(f"   {name}, {column}: {error}", style="red", highlight=False, markup=False)
    with Store(folder / "study.db", write=True) as store:
        rule = (
            "trained until the clean training loss is at the level; left out where it is not after the limit of steps"
        )
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
    console.print(
        "\n[bold]3. Why geodesic?[/bold] A network uses queries and keys, values and outputs only through their "
        f"products: of the {blocks.total:,} weights of\n   {first}, {blocks.dimension:,} directions change nothing. "
        "Here every head is multiplied by a random invertible matrix\n   (condition number 100) that leaves the "
        f"function as it is; outputs change by at most {invariance.drift:.0e}:",
        highlight=False,
        soft_wrap=True,
    )
    console.print(invariance)
    return invariance


def _report(
    console: Console, folder: Path, out: Path, settings: Settings, members: Sequence[Member]
) -> tuple[StudyReport, list[Path]]:
    with Store(folder / "study.db") as store:
        table = store.table()
    result = report(
        table, title=f"{len(table)} vision transformers on digits, all with training loss {settings.level:g}"
    )
    console.print(
        "\n[bold]4. Does flatness tell which networks generalise?[/bold] Kendall's tau-b of each measure with the gap "
        "between test and\n   training error, on each test set: 1 where they put the networks in the same order, -1 in "
        "the opposite one.\n   Bold: the 95 % bootstrap interval does not include 0.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_taus(result))
    for finding in result.findings:
        if finding.target in ("", "test_gap") and finding.kind in ("result", "warning"):
            console.print(Text(f"   {finding.kind}: {finding.text}"), soft_wrap=False)
    written = result.write(out)
    page = next(p for p in written if p.suffix == ".html")
    console.print(
        f"\nThe report, with figures, all test sets and all warnings: {page}", highlight=False, soft_wrap=True
    )
    console.print(
        f"These numbers again, from the stored measurements: spiritlevel report {folder / 'study.db'}\n"
        f"The table behind them: spiritlevel study export {folder / 'study.db'} table.csv\n"
        "A study of your own checkpoints: spiritlevel study init",
        highlight=False,
        soft_wrap=True,
    )
    return result, written


def _taus(result: StudyReport) -> Table:
    """Measures in rows, test sets in columns."""
    table, targets = Table("measure"), result.analysis.targets
    cells: dict[str, list[Text]] = {}
    for target in targets:
        table.add_column(target.removesuffix("_gap"), justify="right")
        for r in sorted(result.analysis.of(target), key=lambda r: (r.baseline, r.measure)):
            style = "bold" if r.tau.excludes_zero else ""
            cells.setdefault(r.measure, []).append(Text(f"{r.tau.value:.2f}", style=style))
    for measure, row in cells.items():
        table.add_row(measure, *row)
    return table


class _Lines:
    """A line now and then where there is no terminal to draw a bar on."""

    def __init__(self, console: Console, total: int | None) -> None:
        self._console, self._total, self._said = console, total, time.monotonic()

    def __call__(self, done: int, words: str) -> None:
        if sys.stderr.isatty() or time.monotonic() - self._said < _EVERY:
            return
        self._said = time.monotonic()
        of = "" if self._total is None else f" of {self._total}"
        self._console.print(f"   {done}{of} {words}", style="dim", highlight=False, markup=False)
