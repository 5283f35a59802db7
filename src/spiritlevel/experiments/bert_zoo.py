"""Hide & Seek, section 5.3.2, at the scale of a processor: does sharpness tell which fine-tunings generalise?

The paper measures 35 fine-tunings of BERT on MNLI (McCoy et al. 2020) that differ by a seed alone. Here it is the first
layers of a pretrained MiniLM on two small tasks. Each training gives two networks, for two designs: where it ends, as
in the paper, and where its training loss first is at a level that all share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.experiments.bert_encoder import encoder
from spiritlevel.experiments.bert_tasks import TASKS, arrays_of
from spiritlevel.experiments.bert_training import END, LEVEL, Setting, fine_tuned
from spiritlevel.experiments.zoo_folder import Arrays, Trained, ZooFolder, prepare_zoo, zoo_folder

__all__ = ["DESIGNS", "FULL", "MEASURES", "QUICK", "bert_study", "bert_zoo_folder", "prepare_bert_zoo"]

_FORMAT = 1  # counted up when data or training change in a way that the settings do not show
_WORDS = "words"

FULL = {
    # One layer reads words of praise; to compare two sentences takes two, one that matches words and one that reads it.
    "sentiment": Setting(networks=35, layers=1, length=16, training=600, test=1000, level=0.52, epochs=2),
    "entailment": Setting(networks=35, layers=2, length=16, training=640, test=400, level=0.6, epochs=3),
}
QUICK = {
    name: replace(setting, networks=6, layers=1, training=64, test=64, looked=32, level=0.69, epochs=1)
    for name, setting in FULL.items()
}
DESIGNS = (END, LEVEL)
MEASURED, BATCH = 64, 64  # ours, for the time: the paper took 1,024 examples in batches of 128
MEASURES: tuple[dict[str, Any], ...] = (
    {"measure": "geodesic", "rho": [0.05, 0.15]},
    {
        "measure": "geodesic",
        "name": "geodesic-cross",
        "geometry": {"kind": "quotient", "metric": "cross_gram", "curve": "second_order"},
        "rho": [0.05, 0.15],
    },
    {"measure": "adaptive", "rho": [0.25, 0.75]},
    {"measure": "adaptive-linf", "rho": [0.002, 0.006], "steps": 5},
)


def bert_zoo_folder(task: str, quick: bool = False, seed: int = 0) -> ZooFolder:
    """Where a zoo lies: in the user's cache, in a folder of its own for each setting."""
    setting = (QUICK if quick else FULL)[task]
    return zoo_folder(f"bert-zoo-{task}{'-quick' if quick else ''}", [_FORMAT, seed, setting.to_dict()])


def bert_study(task: str, seed: int = 0) -> dict[str, Any]:
    """The settings of the study, as they are written into its file."""
    return {
        "name": f"bert-zoo-{task}",
        "store": "study.db",
        "zoo": {
            "checkpoints": [f"checkpoints/*-{design}" for design in DESIGNS],
            "hyperparameters": "zoo.csv",
            "columns": ["network", "design", "seed"],
            "partial": True,
        },
        "data": {
            "train": "train.npz",
            "subset": MEASURED,
            "subset_seed": None,
            "tests": {name: f"{name}.npz" for name in ("test", *TASKS[task].shifts)},
        },
        "measures": [dict(m) for m in MEASURES],
        "batches": {"size": BATCH},
        "seed": seed,
        "engine": "serial",
        "threads": 1,
    }


def prepare_bert_zoo(
    task: str,
    quick: bool = False,
    seed: int = 0,
    folder: ZooFolder | None = None,
    *,
    on_done: Callable[[str], None] | None = None,
    show_progress: bool | None = None,
) -> ZooFolder:
    """Make data, fine-tunings and study of a task, as far as they are missing, with one thread.

    Args:
        task: one of `TASKS`.
        quick: the small zoo for tests, or the one that the docs report.
        seed: of everything but the networks' own seeds.
        folder: where; by default `bert_zoo_folder`.
        on_done: called after each network with its name.
        show_progress: force progress bars on or off.
    """
    zoo, setting = folder or bert_zoo_folder(task, quick, seed), (QUICK if quick else FULL)[task]
    work = _Work(zoo, task, setting, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums on every machine, and nothing to gain for networks this small
    try:
        return prepare_zoo(
            zoo,
            work.data(),
            work.recipes,
            work.train,
            bert_study(task, seed),
            {"task": TASKS[task].what, "settings": setting.to_dict(), "seed": seed},
            on_done=on_done,
            show_progress=show_progress,
        )
    finally:
        torch.set_num_threads(threads)


class _Work:
    """The parts of a zoo, each made when it is asked for."""

    def __init__(self, zoo: ZooFolder, task: str, setting: Setting, seed: int) -> None:
        self._zoo, self._task, self._setting, self._seed = zoo, task, setting, seed
        first = setting.networks * seed
        self.recipes = {f"seed{i:03d}": {"seed": i} for i in range(first, first + setting.networks)}

    def data(self) -> dict[str, Callable[[], Arrays]]:
        """The data sets by name, and the vocabulary."""
        names = ("train", "test", *TASKS[self._task].shifts)
        made: dict[str, Callable[[], Arrays]] = {n: lambda n=n: self._arrays[0][n] for n in names}  # type: ignore[misc]
        return {**made, _WORDS: lambda: {_WORDS: self._arrays[1]}}

    @cached_property
    def _arrays(self) -> Any:
        return arrays_of(TASKS[self._task], self._setting, self._seed)

    def train(self, name: str) -> Trained:
        """Fine-tune one network."""
        return fine_tuned(self._first, self._training, int(self.recipes[name]["seed"]), self._setting)

    @cached_property
    def _first(self) -> nn.Module:
        with np.load(self._zoo.data(_WORDS)) as file:
            return encoder(file[_WORDS], self._setting.length, self._setting.layers)

    @cached_property
    def _training(self) -> dict[str, Tensor]:
        with np.load(self._zoo.train) as file:
            return {n: torch.from_numpy(file[n]) for n in file.files}
