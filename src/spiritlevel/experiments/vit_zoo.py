"""Hide & Seek, section 5.3.1, at the scale of a processor: does sharpness tell which fine-tunings generalise?

The paper measures 72 fine-tunings of one CLIP ViT-B/32 on ImageNet. Here they are small vision transformers on clothes
(Fashion-MNIST), all from one network that learned to name other images, each turned by
some quarters. Each training gives two networks,
for two designs: where it ends, as in the paper, and where its training loss first is at a level that all share.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.core.progress import progress
from spiritlevel.demo.cache import prepared
from spiritlevel.demo.zoo import without_bars
from spiritlevel.errors import DataError
from spiritlevel.experiments.fashion import SHIFTS, fashion, scaled, shifted
from spiritlevel.experiments.vit_recipes import Recipe, drawn
from spiritlevel.experiments.vit_training import END, Setting, error_of, fine_tuned, pretrained, turned
from spiritlevel.experiments.zoo_folder import Arrays, Trained, ZooFolder, prepare_zoo, zoo_folder
from spiritlevel.study import load_checkpoint

__all__ = ["FULL", "MEASURES", "QUICK", "VARIATIONS", "prepare_vit_zoo", "varied_study", "vit_study", "vit_zoo_folder"]

_FORMAT = 1  # counted up when data or training change in a way that the settings do not show

FULL = Setting()
QUICK = replace(
    FULL,
    networks=8,
    pretraining=10_000,
    pretraining_epochs=8,
    held_out=500,
    training=512,
    test=500,
    measured=256,
    level=0.7,
    epochs=(4, 12),
    more=20,
    hidden=32,
    layers=2,
)

MEASURES: tuple[dict[str, Any], ...] = (
    {"measure": "geodesic", "rho": [0.05, 0.1, 0.2]},
    {
        "measure": "geodesic",
        "name": "geodesic-cross",
        "geometry": {"kind": "quotient", "metric": "cross_gram", "curve": "second_order"},
        "rho": [0.0125, 0.025, 0.05],
    },
    {"measure": "adaptive", "rho": [0.2, 0.4, 0.8]},
    {"measure": "adaptive-linf", "rho": [0.002, 0.004, 0.008], "solver": "autopgd", "steps": 10},
)

VARIATIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, dict[str, Any]]]] = {
    "batches of 32": lambda study: {"batches": {"size": 32}},
    "twice the images": lambda study: {"data": {"subset": 2 * study["data"]["subset"]}},
    "normalised logits": lambda study: {"loss": {"normalize_logits": True}},
}
"""What the paper does not state or could have chosen otherwise: what each changes in the settings of a study."""


def vit_zoo_folder(quick: bool = False, seed: int = 0) -> ZooFolder:
    """Where the zoo lies: in the user's cache, in a folder of its own for each setting."""
    return zoo_folder("vit-zoo-quick" if quick else "vit-zoo", [_FORMAT, seed, _setting(quick).to_dict()])


def _setting(quick: bool) -> Setting:
    return QUICK if quick else FULL


def vit_study(setting: Setting, seed: int = 0) -> dict[str, Any]:
    """The settings of the study, as they are written into its file."""
    hyperparameters = [n for n in Recipe.__dataclass_fields__ if n != "seed"]
    return {
        "name": "vit-zoo",
        "store": "study.db",
        "zoo": {
            "checkpoints": "checkpoints/*",
            "hyperparameters": "zoo.csv",
            "columns": ["network", "design", *hyperparameters],
        },
        "data": {
            "train": "train.npz",
            "subset": setting.measured // 2,  # ours: half of those whose loss is at the level, so that it takes minutes
            "subset_seed": None,
            "tests": {name: f"{name}.npz" for name in ("test", *SHIFTS)},
        },
        "measures": [dict(m) for m in MEASURES],
        "batches": {"size": setting.batch},
        "seed": seed,
        "engine": "serial",
        "threads": 1,
    }


def varied_study(study: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The same study, changed as `VARIATIONS` says, of the first design and at the middle radii only."""
    changed = {
        **study,
        "name": f"vit-zoo, {name}",
        "store": f"{name.replace(' ', '-')}.db",
        "zoo": {**study["zoo"], "checkpoints": f"checkpoints/*-{END}", "partial": True},
        "data": {**study["data"], "tests": {"test": "test.npz"}},
        "measures": [{**m, "rho": m["rho"][1]} for m in study["measures"]],
    }
    return changed | {key: {**changed.get(key, {}), **new} for key, new in VARIATIONS[name](study).items()}


def prepare_vit_zoo(
    quick: bool = False,
    seed: int = 0,
    folder: ZooFolder | None = None,
    *,
    on_done: Callable[[str], None] | None = None,
    show_progress: bool | None = None,
) -> ZooFolder:
    """Make data, pretrained network, fine-tunings and study, as far as they are missing, with one thread.

    Args:
        quick: the small zoo for tests, or the one that the docs report.
        seed: of everything.
        folder: where; by default `vit_zoo_folder`.
        on_done: called after each network with its name.
        show_progress: force progress bars on or off.
    """
    zoo, setting = folder or vit_zoo_folder(quick, seed), _setting(quick)
    work = _Work(zoo, setting, seed, show_progress)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums on every machine, and nothing to gain for networks this small
    try:
        prepared(zoo.path, fresh=False)
        facts = {"settings": setting.to_dict(), "seed": seed, "pretraining": work.pretraining()}
        return prepare_zoo(
            zoo,
            work.data(),
            {name: r.to_dict() for name, r in work.recipes.items()},
            work.train,
            vit_study(setting, seed),
            facts,
            on_done=on_done,
            show_progress=show_progress,
        )
    finally:
        torch.set_num_threads(threads)


class _Work:
    """The parts of a zoo, each made when it is asked for."""

    def __init__(self, zoo: ZooFolder, setting: Setting, seed: int, show: bool | None) -> None:
        self._zoo, self._setting, self._seed, self._show = zoo, setting, seed, show
        self.recipes = {f"net{i:03d}": drawn(i, seed, setting.epochs) for i in range(setting.networks)}
        self._first: nn.Module | None = None

    @property
    def _rows(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Which images of the training part are for pretraining, for judging that, and for fine-tuning."""
        s, there = self._setting, len(fashion("train")[1])
        wanted = s.pretraining + s.held_out + s.training
        if there < wanted:
            raise DataError(
                f"expected at least {wanted:,} images to train on, got {there:,}: take all of Fashion-MNIST"
            )
        order = np.random.default_rng(self._seed).permutation(there)[:wanted]
        return tuple(np.split(order, [s.pretraining, s.pretraining + s.held_out]))

    def data(self) -> dict[str, Callable[[], Arrays]]:
        """The data sets by name."""
        return {"train": self._training, "test": self._test, **{n: partial(self._test, n) for n in SHIFTS}}

    def _training(self) -> Arrays:
        images, labels = fashion("train")
        rows = self._rows[2]
        return {"x": scaled(images[rows]), "y": labels[rows]}

    def _test(self, shift: str | None = None) -> Arrays:
        images, labels = fashion("test")
        rows = np.random.default_rng(self._seed).permutation(len(images))[: self._setting.test]
        x = scaled(images[rows]) if shift is None else shifted(images[rows], shift, self._seed)
        return {"x": x, "y": labels[rows]}

    def pretraining(self) -> dict[str, Any]:
        """Train the first network where it is not there, and say how well it does what it learned."""
        record = self._zoo.path / "pretrained.json"
        if not record.is_file():
            images, labels = fashion("train")
            learnt, kept, _ = self._rows
            with progress("pretraining", self._setting.pretraining_epochs, self._show) as advance:
                model = pretrained(images[learnt], labels[learnt], self._setting, self._seed, advance)
            y, rng = torch.from_numpy(labels[kept]), np.random.default_rng(self._seed)
            sets = {
                "error, turned": turned(images[kept], rng),
                "error, upright": torch.from_numpy(scaled(images[kept])),
            }
            facts = {"images": len(learnt), **{name: error_of(model, x, y) for name, x in sets.items()}}
            with without_bars():
                model.save_pretrained(self._zoo.path / "pretrained", safe_serialization=True)  # type: ignore[operator]
            record.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return content

    def train(self, name: str) -> Trained:
        """Fine-tune one network."""
        if self._first is None:
            self._first = load_checkpoint(self._zoo.path / "pretrained")
        return fine_tuned(self._first, _tensors(self._zoo.train), self.recipes[name], self._setting)


@cache
def _tensors(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
