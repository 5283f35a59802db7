"""A study from its configuration to its table."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import spiritlevel
from spiritlevel.core.launched import device_of_rank, launched, process_group
from spiritlevel.core.progress import progress
from spiritlevel.core.ranks import Crew
from spiritlevel.measures import MEASURES
from spiritlevel.study.config import RadiusRule, StudyConfig, config_of
from spiritlevel.study.engines import ENGINES, checked
from spiritlevel.study.lock import only_writer
from spiritlevel.study.members import Checkpoint, find_checkpoints
from spiritlevel.study.pace import Pace
from spiritlevel.study.plan import Plan
from spiritlevel.study.radii import chosen_radii
from spiritlevel.study.session import Session, importable
from spiritlevel.study.settings_file import read_config
from spiritlevel.study.store import Store
from spiritlevel.study.table import StudyTable
from spiritlevel.study.together import PATIENCE, follow
from spiritlevel.study.units import Task

__all__ = ["run_study"]


def run_study(
    config: StudyConfig | Mapping[str, Any] | str | Path,
    store: str | Path | None = None,
    *,
    engine: str | None = None,
    retry_failed: bool = False,
    show_progress: bool | None = None,
    on_done: Callable[[Pace], None] | None = None,
) -> StudyTable:
    """Measure what is not measured yet, store it unit by unit, and return the table.

    Stopped at any moment, by whatever means, and run again, it goes on where it was and ends with the same table.

    Args:
        config: a YAML file, or settings made in Python (`StudyConfig` or a dict like it).
        store: the file for the results; by default the configuration's.
        engine: ``serial``, ``processes``, ``ray`` or ``ranks``; by default the configuration's, and ``ranks`` under
            torchrun, where all processes run the same call, the first of them writes, and all return the table.
        retry_failed: try again what failed before. What failed because of a file is tried again by itself when the
            file has changed.
        show_progress: force the progress bar on or off.
        on_done: called whenever units ended, with the counts and the time that is left.
    """
    settings = read_config(config) if isinstance(config, str | Path) else config_of(config)
    name = engine or ("ranks" if launched() > 1 else settings.engine)
    device = checked(settings, name)
    path = Path(store) if store is not None else settings.folder / settings.store
    with importable(settings.folder), _crew(settings, name) as crew, _own_randomness(settings):
        if crew is not None and crew.rank:
            return follow(crew)
        try:
            table = _run(settings, name, device, path, crew, retry_failed, show_progress, on_done)
        except BaseException:
            if crew is not None:
                crew.tell_failure()
            raise
        return table if crew is None else crew.from_one("the table of a study", table)


def _run(
    settings: StudyConfig,
    engine: str,
    device: str | None,
    path: Path,
    crew: Crew | None,
    retry_failed: bool,
    show_progress: bool | None,
    on_done: Callable[[Pace], None] | None,
) -> StudyTable:
    """All of it by the one process that writes."""
    zoo = find_checkpoints(settings)
    with only_writer(path), Store(path, write=True) as results:
        results.use_versions(_versions())
        session = Session(settings, device)
        session.crew = crew
        plan = _planned(session, results, zoo, show_progress)
        columns = [c for job in plan.jobs(session) for c in job.columns]
        results.plan([(c.name, c.hyperparameters) for c in zoo], columns)
        stamps = {c.name: c.stamp() for c in zoo}
        tasks = _left(results, zoo, stamps, frozenset(c.key for c in columns), retry_failed)
        pace = Pace(sum(len(t.keys) for t in tasks))
        with progress(settings.name, pace.total, show_progress) as advance:
            for done in ENGINES[engine](plan, session, tasks):
                results.write(done, stamps[done.checkpoint])
                pace.done += len(done.outcomes)
                pace.failed += sum(o.error is not None for o in done.outcomes.values())
                advance(f"{done.checkpoint}, {pace.failed} failed", len(done.outcomes))
                if on_done is not None:
                    on_done(pace)
        return results.table()


@contextmanager
def _crew(settings: StudyConfig, engine: str) -> Iterator[Crew | None]:
    """The ranks of torchrun, for the engine that needs them."""
    if engine != "ranks" or (launched() == 1 and not dist.is_initialized()):
        yield None
        return
    with process_group(torch.device(device_of_rank(settings.device)), 300.0):
        yield Crew.of(PATIENCE)


def _planned(session: Session, results: Store, zoo: Sequence[Checkpoint], show: bool | None) -> Plan:
    """Fix what the units depend on: radii chosen by rule, and the architecture."""
    radii: dict[str, tuple[float, ...]] = {}
    rules: list[dict[str, Any]] = []
    for m in session.config.measures:
        if isinstance(m.rho, RadiusRule):
            with progress(f"choosing radii of {m.name}", None, show) as advance:
                chosen = chosen_radii(session, results, m, zoo, advance)
            rules += chosen
            radii[m.name] = tuple(sorted({float(c["rho"]) for c in chosen}))  # type: ignore[arg-type]
        else:
            radii[m.name] = tuple(m.rho or MEASURES[m.measure].radii)  # type: ignore[arg-type]  # checked: numbers
    results.set_fact("study", session.config.name)
    results.set_fact("settings", session.config.summary())
    results.set_fact("radii", rules)
    return Plan(session.config, {c.name: c for c in zoo}, radii, _architecture(session, results, zoo))


def _architecture(session: Session, results: Store, zoo: Sequence[Checkpoint]) -> tuple[str, str] | None:
    """That of the first checkpoint that loads, found once."""
    if not session.config.zoo.same_architecture:
        return None
    known = results.facts().get("_architecture")
    by_name = {c.name: c for c in zoo}
    if known and known["of"] in by_name and by_name[known["of"]].digest() == known["digest"]:
        return known["hash"], known["of"]
    for checkpoint in zoo:
        try:
            found = session.load(checkpoint).architecture
        except Exception:  # its own row will say what is wrong
            continue
        fact = {"hash": found, "of": checkpoint.name, "digest": checkpoint.digest()}
        results.set_fact("_architecture", fact)
        return found, checkpoint.name
    return None


def _left(
    results: Store, zoo: Sequence[Checkpoint], stamps: Mapping[str, str], keys: frozenset[str], retry_failed: bool
) -> list[Task]:
    """What has no row yet, or one of other weights."""
    finished, states = results.finished(failures=not retry_failed), results.states()
    tasks = []
    for checkpoint in zoo:
        name = checkpoint.name
        stamp, digest = states[name]
        if name in finished and stamp != stamps[name]:
            now = checkpoint.digest()
            if now == digest:
                results.restamp(name, stamps[name])
            digest = now
        there = {key for key, of in finished.get(name, {}).items() if of == digest}
        if keys - there:
            tasks.append(Task(name, keys - there))
    return tasks


@contextmanager
def _own_randomness(config: StudyConfig) -> Iterator[None]:
    """The caller's random numbers go on as if there had been no study."""
    kind, _, number = config.device.partition(":")
    devices = [int(number or 0)] if kind == "cuda" and torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        yield


def _versions() -> dict[str, str]:
    packages = {p: version(p) for p in ("numpy", "safetensors")}
    return {
        "spiritlevel": spiritlevel.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **packages,
    }
