"""A folder of trained networks: made once, in as many processes as there are cores."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from spiritlevel.core.progress import progress
from spiritlevel.demo.optional import optional
from spiritlevel.demo.recipes import Recipe
from spiritlevel.demo.training import Settings, train_to_level
from spiritlevel.errors import ArgumentError, ModelError

__all__ = ["Member", "cores", "make_zoo", "members", "without_bars"]

_RECORD = "training.json"


@dataclass(frozen=True)
class Member:
    """One network that was trained, in the zoo or left out.

    Attributes:
        name: of the recipe, and of the folder.
        hyperparameters: of the recipe, as plain data.
        steps: that were made.
        loss: on the clean training digits.
        reached: whether the loss came down to the level within the limit; only these are in the zoo.
        seconds: of one processor's time.
    """

    name: str
    hyperparameters: dict[str, Any]
    steps: int
    loss: float
    reached: bool
    seconds: float


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_zoo(
    folder: str | Path,
    recipes: Sequence[Recipe],
    settings: Settings | None = None,
    *,
    workers: int | None = None,
    show_progress: bool | None = None,
    on_done: Callable[[Member], None] | None = None,
) -> list[Member]:
    """Train what is not trained yet, and say what there is.

    ``folder/zoo`` gets a Hugging Face folder for each network at the level, with its hyperparameters in
    ``training.json``; ``folder/left-out`` the same for those that did not get there. ``folder/zoo.csv`` has a row of
    hyperparameters for each network of the zoo. Stopped at any moment and run again, it goes on with what is missing.

    Args:
        folder: where to put it.
        recipes: the networks, no two of one name.
        settings: what they have in common.
        workers: processes, each with one thread; by default one for each core. 1 trains in this process.
        show_progress: force the progress bar on or off.
        on_done: called after each network.
    """
    folder, settings = Path(folder), Settings() if settings is None else settings
    if len({r.name for r in recipes}) != len(recipes):
        raise ArgumentError("expected recipes of different names, got one twice: leave it out")
    if workers is not None and workers < 1:
        raise ArgumentError(f"expected at least one worker, got {workers}")
    for place in ("zoo", "left-out"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    there = {m.name for m in members(folder)}
    # The slowest first, so that no process is left alone with one of them in the end.
    missing = sorted((r for r in recipes if r.name not in there), key=lambda r: -_slow(r))
    with progress("training", len(missing), show_progress) as advance:
        for member in _trained(folder, missing, settings, workers or cores()):
            advance(member.name)
            if on_done is not None:
                on_done(member)
    wanted = [r.name for r in recipes]
    found = sorted((m for m in members(folder) if m.name in wanted), key=lambda m: wanted.index(m.name))
    _write_rows(folder / "zoo.csv", [m for m in found if m.reached])
    return found


def members(folder: str | Path) -> list[Member]:
    """What there is in a folder that `make_zoo` made, by name."""
    records = sorted(p for place in ("zoo", "left-out") for p in Path(folder, place).glob(f"*/{_RECORD}"))
    return [Member(**json.loads(p.read_text(encoding="utf-8"))) for p in records]


def _slow(recipe: Recipe) -> int:
    return 2 * recipe.augmentation + (recipe.label_noise > 0)


def _trained(folder: Path, recipes: Sequence[Recipe], settings: Settings, workers: int) -> Any:
    """Members as they are done."""
    work = partial(_train_one, folder, settings=settings)
    if min(workers, len(recipes)) <= 1:
        with _one_thread():
            yield from map(work, recipes)
        return
    spawn = get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(min(workers, len(recipes)), mp_context=spawn, initializer=_begin) as pool:
        jobs = [pool.submit(work, r) for r in recipes]
        try:
            for job in as_completed(jobs):
                yield job.result()
        except BrokenProcessPool as error:
            raise ModelError(
                "expected the training processes to end their work, but one was ended from outside (out of memory?): "
                "run it again, it goes on where it was"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Set up a training process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # stopped by hand it ends at once, without a trace on the terminal
    torch.set_num_threads(1)


@contextmanager
def _one_thread() -> Any:
    """The same sums in one process as in several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_one(folder: Path, recipe: Recipe, settings: Settings) -> Member:
    """Train and save; the folder appears whole or not at all."""
    import time

    began = time.process_time()
    trained = train_to_level(recipe, settings)
    member = Member(
        recipe.name, recipe.to_dict(), trained.steps, trained.loss, trained.reached, time.process_time() - began
    )
    part = folder / f".{recipe.name}.{os.getpid()}"
    with without_bars():
        trained.model.save_pretrained(part, safe_serialization=True)  # type: ignore[operator]  # transformers'
    (part / _RECORD).write_text(json.dumps(member.__dict__, indent=1) + "\n", encoding="utf-8")
    target = folder / ("zoo" if member.reached else "left-out") / recipe.name
    if target.exists():  # another process was faster
        shutil.rmtree(part)
    else:
        part.rename(target)
    return member


@contextmanager
def without_bars() -> Any:
    """No progress bars of transformers' own for a while."""
    logging = optional("transformers").logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


def _write_rows(path: Path, found: Sequence[Member]) -> None:
    names = list(dict.fromkeys(n for m in found for n in m.hyperparameters))
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["checkpoint", *names])
        rows.writerows([m.name, *(m.hyperparameters[n] for n in names)] for m in found)
