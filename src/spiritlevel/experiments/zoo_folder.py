"""A zoo of networks in one folder: where everything lies, and how it is made, bit by bit and once.

::

    checkpoints/NAME-DESIGN/   Hugging Face folders; a design is a rule when to stop, so one training may give several
    networks/NAME.json         what became of each training, written when it is over
    zoo.csv                    hyperparameters: a row for each checkpoint
    train.npz, test.npz, ...   arrays "x" and "y": the training data, and test sets
    study.yaml, study.db       the study of the checkpoints, and its numbers
    zoo.json                   facts about the whole; written last, so it is there when all the rest is
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from spiritlevel.core.progress import progress
from spiritlevel.demo.cache import cache_home, prepared
from spiritlevel.demo.optional import optional
from spiritlevel.demo.zoo import without_bars
from spiritlevel.errors import ArgumentError, ModelError

__all__ = ["Arrays", "Trained", "ZooFolder", "prepare_zoo", "zoo_folder"]

Arrays = Mapping[str, Any]
"""Inputs and targets by name, as `spiritlevel.study.load_data` takes them: ``x`` and ``y``, or a tokenizer's names."""


@dataclass(frozen=True)
class Trained:
    """What one training gave.

    Attributes:
        models: a Hugging Face model for each design in which this network takes part.
        facts: steps, losses and the like, as plain data.
    """

    models: Mapping[str, nn.Module]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ZooFolder:
    """Where everything of a zoo lies.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def study(self) -> Path:
        """The configuration of the study of this zoo."""
        return self.path / "study.yaml"

    @property
    def store(self) -> Path:
        """The numbers of that study."""
        return self.path / "study.db"

    @property
    def table(self) -> Path:
        """The hyperparameters, a row for each checkpoint."""
        return self.path / "zoo.csv"

    @property
    def train(self) -> Path:
        """The training data."""
        return self.data("train")

    def data(self, name: str) -> Path:
        """A data set by name."""
        return self.path / f"{name}.npz"

    @property
    def prepared(self) -> bool:
        """Whether all networks are trained and all files there."""
        return (self.path / "zoo.json").is_file()

    @property
    def facts(self) -> dict[str, Any]:
        """About the whole zoo: how it was made."""
        if not self.prepared:
            raise ArgumentError(f"expected a zoo that is made, but {self.path} has no zoo.json: prepare it first")
        content: dict[str, Any] = json.loads((self.path / "zoo.json").read_text(encoding="utf-8"))
        return content

    def checkpoint(self, network: str, design: str) -> Path:
        """The folder of one network in one design."""
        return self.path / "checkpoints" / f"{network}-{design}"

    def checkpoints(self, design: str | None = None) -> tuple[Path, ...]:
        """All that are there, or those of one design, in order of their names."""
        found = (self.path / "checkpoints").glob("*" if design is None else f"*-{design}")
        return tuple(sorted(p for p in found if (p / "config.json").is_file()))

    @property
    def networks(self) -> dict[str, dict[str, Any]]:
        """What became of each training that is over, by name."""
        found = sorted((self.path / "networks").glob("*.json"))
        return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in found}


def zoo_folder(name: str, content: Any) -> ZooFolder:
    """The folder of a zoo in the user's cache: another one for other settings or library versions.

    Args:
        name: of the experiment.
        content: everything that fixes the networks and the data, as plain data.
    """
    packages = {p: version(p) for p in ("torch", "transformers")}
    key = hashlib.sha256(json.dumps([content, packages], sort_keys=True).encode()).hexdigest()[:12]
    return ZooFolder(cache_home() / "spiritlevel" / f"{name}-{key}")


def prepare_zoo(
    zoo: ZooFolder,
    data: Mapping[str, Callable[[], Arrays]],
    recipes: Mapping[str, Mapping[str, Any]],
    train: Callable[[str], Trained],
    study: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    on_done: Callable[[str], None] | None = None,
    show_progress: bool | None = None,
) -> ZooFolder:
    """Make what is not there yet: data sets, networks, table and study. Stopped at any moment, it goes on from there.

    Args:
        zoo: the folder.
        data: each data set by name, made when its file is missing.
        recipes: the hyperparameters of each network by name.
        train: trains the network of that name.
        study: the settings of the study, written as they are.
        facts: about the whole, for ``zoo.json``.
        on_done: called after each network with its name.
        show_progress: force the progress bar on or off.
    """
    prepared(zoo.path, fresh=False)
    for name, make in data.items():
        if not zoo.data(name).is_file():
            _write(zoo.data(name), lambda part, make=make: np.savez(part, **make()))  # type: ignore[misc]
    missing = [name for name in recipes if name not in zoo.networks]
    with progress("training", len(missing), show_progress) as advance:
        for name in missing:
            _keep(zoo, name, train(name))
            advance(name)
            if on_done is not None:
                on_done(name)
    rows = _rows(zoo, recipes)
    if not rows:
        raise ModelError(f"expected at least one network in {zoo.path}, got none: allow longer training")
    _write(zoo.table, lambda part: _write_table(part, rows))
    _write_text(zoo.study, optional("yaml").safe_dump(dict(study), sort_keys=False))
    _write_text(zoo.path / "zoo.json", json.dumps(dict(facts), indent=1) + "\n")
    return zoo


def _keep(zoo: ZooFolder, name: str, trained: Trained) -> None:
    """Save the networks, each folder whole or not at all, and only then the record."""
    for design, model in trained.models.items():
        target = zoo.checkpoint(name, design)
        target.parent.mkdir(exist_ok=True)
        part = zoo.path / f".{target.name}.{os.getpid()}"
        with without_bars():
            model.save_pretrained(part, safe_serialization=True)  # type: ignore[operator]  # transformers'
        if target.exists():  # of a training that was stopped before its record
            shutil.rmtree(target)
        part.rename(target)
    (zoo.path / "networks").mkdir(exist_ok=True)
    record = {"designs": sorted(trained.models), **trained.facts}
    _write_text(zoo.path / "networks" / f"{name}.json", json.dumps(record, indent=1) + "\n")


def _rows(zoo: ZooFolder, recipes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    networks = zoo.networks
    return [
        {"checkpoint": f"{name}-{design}", "network": name, "design": design, **recipe}
        for name, recipe in recipes.items()
        for design in networks[name]["designs"]
    ]


def _write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _write_text(path: Path, text: str) -> None:
    _write(path, lambda part: part.write_text(text, encoding="utf-8"))


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """A file, whole or not at all."""
    part = path.with_name(f".{os.getpid()}.{path.name}")
    write(part)
    part.replace(path)
