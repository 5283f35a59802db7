"""The experiment vit-zoo on made-up images: data, recipes, training, folder, judging, and the whole, small."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import struct
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, DataError, ModelError
from spiritlevel.experiments import EXPERIMENTS, fashion, vit_report, vit_training, vit_zoo, zoo_judging, zoo_words
from spiritlevel.experiments.vit_recipes import Recipe, drawn
from spiritlevel.experiments.zoo_folder import Trained, ZooFolder, prepare_zoo, zoo_folder
from spiritlevel.study import Store, StudyTable, read_config, run_study

TINY = replace(
    vit_zoo.QUICK, networks=3, pretraining=256, pretraining_epochs=1, held_out=64, training=64, test=60, measured=32,
    batch=64, level=2.2, every=2, step=16, epochs=(2, 4), hidden=16, layers=1, heads=2, spread=0.2,
)  # fmt: skip


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A bright square whose place is its class, in noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    x = rng.integers(0, 60, (count, 28, 28))
    for image, k in zip(x, labels, strict=True):
        row, column = 2 + 12 * (k // 5), 2 + 5 * (k % 5)
        image[row : row + 6, column : column + 4] += 180
    return x.astype(np.uint8), labels.astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The IDX format from its definition."""
    kind = struct.pack(">BBBB", 0, 0, 8, array.ndim)
    return gzip.compress(kind + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


def files() -> dict[str, bytes]:
    found = {}
    for stem, count, seed in (("train", 400, 0), ("t10k", 100, 1)):
        x, y = images(count, seed)
        found |= {f"{stem}-images-idx3-ubyte.gz": idx(x), f"{stem}-labels-idx1-ubyte.gz": idx(y)}
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images where they are looked for, a cache of one's own, and small settings."""
    (tmp_path / "images").mkdir()
    for name, content in files().items():
        (tmp_path / "images" / name).write_bytes(content)
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "images"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vit_zoo, "QUICK", TINY)
    return tmp_path


def test_images_come_from_a_folder_or_a_debian_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = images(100, 1)
    found = fashion.fashion("test")
    assert np.array_equal(found[0], x)
    assert np.array_equal(found[1], y)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name, content in files().items():
            member = tarfile.TarInfo(f"./usr/share/datasets/fashion-mnist/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": packed.getvalue()}
    deb = b"!<arch>\n"
    for name, content in parts.items():  # kills: no padding to even length (control.tar.xz is odd)
        deb += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        deb += content + b"\n" * (len(content) % 2)
    path = folder / "cache/spiritlevel/dataset-fashion-mnist_1_all.deb"
    path.parent.mkdir(parents=True)
    path.write_bytes(deb)
    monkeypatch.setattr(fashion, "_INSTALLED", folder / "nothing")
    monkeypatch.delenv("FASHION_MNIST")
    again = fashion.fashion("train")
    assert np.array_equal(again[0], images(400, 0)[0])
    path.write_bytes(b"something else")
    fashion._read.cache_clear()
    with pytest.raises(DataError, match=r"expected t10k-images.* it is no Debian package; get it anew"):
        fashion.fashion("test")
    path.write_bytes(b"!<arch>\n")
    with pytest.raises(DataError, match=r"data\.tar"):
        fashion.fashion("test")


def test_missing_images_are_an_error_that_says_how_to_get_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASHION_MNIST", str(folder / "nowhere"))
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        fashion.fashion("train")
    assert main(["reproduce", "vit-zoo", "--quick"]) == 1
    assert "FASHION_MNIST" in capsys.readouterr().err
    with pytest.raises(DataError, match="expected 'train' or 'test' of Fashion-MNIST, got 'valid'"):
        fashion.fashion("valid")


def test_damaged_images_are_errors(folder: Path) -> None:
    place = folder / "images/t10k-labels-idx1-ubyte.gz"
    place.write_bytes(idx(images(90, 1)[1]))
    with pytest.raises(DataError, match=r"expected as many images as labels in .*, got 100 and 90"):
        fashion.fashion("test")
    place.write_bytes(idx(images(100, 1)[0]))
    with pytest.raises(DataError, match=r"expected an IDX file with the number 2049 in .*, got 2051"):
        fashion.fashion("test")
    place.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"expected t10k-labels-idx1-ubyte\.gz in .* cannot be read"):
        fashion.fashion("test")


@pytest.mark.parametrize("name", list(fashion.SHIFTS))
def test_a_shift_changes_images_and_stays_in_range(name: str) -> None:
    # Kills: a shift that is the identity; one whose randomness is not fixed by the seed.
    x, _ = images(20, 0)
    plain, moved = fashion.scaled(x), fashion.shifted(x, name, seed=1)
    assert moved.shape == plain.shape == (20, 1, 28, 28)
    assert moved.dtype == np.float32
    assert moved.min() >= -1
    assert moved.max() <= 1
    assert (np.abs(moved - plain).mean((1, 2, 3)) > 0.01).all()  # every image
    assert np.array_equal(moved, fashion.shifted(x, name, seed=1))


def test_the_noise_is_that_strong() -> None:
    grey = np.full((50, 28, 28), 127, dtype=np.uint8)
    noise = (fashion.shifted(grey, "noisy") - fashion.scaled(grey)) / 2
    assert float(noise.std()) == pytest.approx(0.2, rel=0.05)


def test_recipes_are_random_and_do_not_depend_on_each_other() -> None:
    recipes = [drawn(i, 0) for i in range(200)]
    assert recipes[7] == drawn(7, 0) != drawn(7, 1)
    assert 0.65 < np.mean([r.optimizer == "adamw" for r in recipes]) < 0.85
    for name, share in {"label_smoothing": 0.5, "mixup": 0.5, "augmentation": 1 / 3}.items():
        assert np.mean([getattr(r, name) == 0 for r in recipes]) == pytest.approx(share, abs=0.12), name
    assert {r.epochs for r in recipes} == set(range(3, 13))
    rates = np.array([r.learning_rate for r in recipes if r.optimizer == "adamw"])
    assert 2e-4 <= rates.min() < 3e-4
    assert 2e-3 < rates.max() <= 3e-3
    assert np.median(rates) == pytest.approx((2e-4 * 3e-3) ** 0.5, rel=0.3)  # kills: uniform, not log-uniform


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer": "adam"}, "expected the optimizer 'adamw' or 'sgd', got 'adam'"),
        ({"epochs": 0}, "epochs from 1 on"),
        ({"learning_rate": 0.0}, "expected a learning rate above 0"),
        ({"augmentation": 2.0}, "augmentation from 0 to 1"),
    ],
)
def test_impossible_recipes_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        replace(drawn(0, 0), **change)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match="expected a level above 0"):
        replace(TINY, level=0.0)
    with pytest.raises(ArgumentError, match="expected to measure on 1 to 64 images, got 65"):
        replace(TINY, measured=65)


def data(count: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = images(count, 3)
    return torch.from_numpy(fashion.scaled(x)), torch.from_numpy(y.astype(np.int64))


def plain(epochs: int = 6) -> Recipe:
    return Recipe("adamw", 5e-3, 0.0, 0.0, 0.0, 0.0, epochs, 0)


def loss_of(model: nn.Module, setting: vit_training.Setting) -> float:
    x, y = data()
    with torch.no_grad():
        return float(F.cross_entropy(model(x[: setting.measured]).logits, y[: setting.measured]))


def test_one_training_gives_a_network_at_the_level_and_one_at_the_end() -> None:
    # Kills: the level looked at on all training images; the network after the stretch kept, not the one at the level;
    # weights shared with the network that trains on.
    setting = replace(TINY, level=1.5, every=7)
    torch.manual_seed(0)
    first = setting.model()
    before = {n: p.clone() for n, p in first.state_dict().items()}
    found = vit_training.fine_tuned(first, data(), plain(12), setting)
    assert set(found.models) == {vit_training.END, vit_training.LEVEL}
    assert 0.99 * setting.level <= loss_of(found.models[vit_training.LEVEL], setting) <= setting.level
    assert loss_of(found.models[vit_training.END], setting) == pytest.approx(found.facts["loss"], rel=1e-5)
    assert found.facts["loss"] < 1.2
    assert found.facts["steps"] == 12 * 4 > found.facts["steps to level"]
    assert all(torch.equal(v, before[n]) for n, v in first.state_dict().items())  # others start from it too


def test_a_training_that_is_never_at_the_level_is_in_one_design_only() -> None:
    torch.manual_seed(0)
    found = vit_training.fine_tuned(TINY.model(), data(), plain(1), replace(TINY, level=1e-6, more=1))
    assert set(found.models) == {vit_training.END}
    assert "steps to level" not in found.facts


def test_a_training_that_is_late_goes_on_plainly_for_the_level_only() -> None:
    # Kills: the network at the end trained on; a second part with augmentation, mixup or smoothing; one that does not
    # start where the first ended, or does not stop at the level.
    torch.manual_seed(0)
    first, setting = TINY.model(), replace(TINY, level=1.2, more=40)
    recipe = replace(plain(1), label_smoothing=0.1, mixup=0.5, augmentation=0.5)
    assert recipe.seed == plain().seed
    late = vit_training.fine_tuned(first, data(), recipe, setting)
    there = vit_training.fine_tuned(first, data(), recipe, replace(setting, more=1))
    assert set(there.models) == {vit_training.END}
    assert set(late.models) == {vit_training.END, vit_training.LEVEL}
    assert late.facts["loss"] == there.facts["loss"]
    assert loss_of(late.models[vit_training.END], setting) == loss_of(there.models[vit_training.END], setting)
    assert late.facts["steps"] == 4
    assert 0 < late.facts["steps to level, plain"] < 40 * 4
    assert 0.99 * setting.level <= loss_of(late.models[vit_training.LEVEL], setting) <= setting.level
    again = vit_training.fine_tuned(
        late.models[vit_training.END], data(), replace(plain(40), seed=recipe.seed), setting
    )
    assert again.facts["loss at level"] == late.facts["loss at level, plain"]


def test_a_training_that_diverges_is_in_no_design() -> None:
    torch.manual_seed(0)
    first = TINY.model()
    with torch.no_grad():
        next(first.parameters()).fill_(float("nan"))
    assert not vit_training.fine_tuned(first, data(), plain(1), TINY).models


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd", "learning_rate": 0.05},
        {"weight_decay": 5.0},
        {"label_smoothing": 0.3},
        {"mixup": 0.8},
        {"augmentation": 1.0},
        {"seed": 1},
    ],
)
def test_every_hyperparameter_changes_the_training_and_the_seed_fixes_it(change: dict[str, object]) -> None:
    # Kills: a hyperparameter that is recorded and not used.
    torch.manual_seed(0)
    first = TINY.model()
    losses = [
        vit_training.fine_tuned(first, data(), r, TINY).facts["loss"]
        for r in (plain(2), replace(plain(2), **change), replace(plain(2), **change))
    ]
    assert losses[1] == losses[2] != losses[0]


def test_augmentation_moves_each_image_by_its_own_amount() -> None:
    x, _ = data(8)
    moved = vit_training._augmented(x, 1.0, torch.Generator().manual_seed(0))
    assert moved.shape == x.shape
    assert moved.min() >= -1 - 1e-5
    same = x[:1].expand(8, 1, 28, 28)
    different = vit_training._augmented(same, 1.0, torch.Generator().manual_seed(0))
    assert len({float(i.sum()) for i in different}) == 8  # kills: one move for all
    gentle = vit_training._augmented(same, 1e-9, torch.Generator().manual_seed(0))
    assert torch.allclose(gentle, same, atol=1e-4)


def test_images_are_turned_by_quarters() -> None:
    x, _ = images(40, 0)
    out = vit_training.turned(x, np.random.default_rng(0)).numpy()[:, 0]
    wanted = fashion.scaled(x)[:, 0]
    turns = [[k for k in range(4) if np.array_equal(a, np.rot90(b, k))] for a, b in zip(out, wanted, strict=True)]
    assert all(turns)
    assert {t[0] for t in turns} == {0, 1, 2, 3}


class Saved(nn.Module):
    """As much of a Hugging Face model as is needed to be saved."""

    def save_pretrained(self, path: Path, safe_serialization: bool) -> None:
        path.mkdir()
        (path / "config.json").write_text("{}")


def make(zoo: ZooFolder, asked: list[str], stop: str | None = None) -> ZooFolder:
    def train(name: str) -> Trained:
        asked.append(name)
        if name == stop:
            raise KeyboardInterrupt
        designs = ("end", "level") if name == "a" else ("end",)
        return Trained({d: Saved() for d in designs}, {"steps": 1})

    sets = {"train": lambda: {"x": np.zeros((2, 1)), "y": np.arange(2)}}
    return prepare_zoo(zoo, sets, {n: {"lr": i} for i, n in enumerate("abc")}, train, {"name": "x"}, {"seed": 0})


def test_a_zoo_that_was_stopped_goes_on(tmp_path: Path) -> None:
    zoo, asked = ZooFolder(tmp_path / "zoo"), []
    with pytest.raises(KeyboardInterrupt):
        make(zoo, asked, stop="b")
    assert not zoo.prepared
    with pytest.raises(ArgumentError, match=r"has no zoo\.json: prepare it first"):
        _ = zoo.facts
    (zoo.path / "checkpoints/b-end").mkdir()  # as left by a training without record: made anew
    make(zoo, asked)
    assert asked == ["a", "b", "b", "c"]
    assert zoo.prepared
    assert zoo.facts == {"seed": 0}
    assert [p.name for p in zoo.checkpoints()] == ["a-end", "a-level", "b-end", "c-end"]
    assert [p.name for p in zoo.checkpoints("level")] == ["a-level"]
    with zoo.table.open() as file:
        rows = list(csv.DictReader(file))
    named = [(r["checkpoint"], r["network"], r["design"], r["lr"]) for r in rows]
    assert named[:2] == [("a-end", "a", "end", "0"), ("a-level", "a", "level", "0")]
    assert named[2:] == [("b-end", "b", "end", "1"), ("c-end", "c", "end", "2")]
    assert zoo.study.read_text() == "name: x\n"
    assert not list(zoo.path.glob(".*"))  # nothing half made is left


def test_a_zoo_without_networks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected at least one network"):
        prepare_zoo(ZooFolder(tmp_path), {}, {"a": {}}, lambda name: Trained({}, {}), {}, {})


def test_other_settings_have_another_folder(folder: Path) -> None:
    assert zoo_folder("x", [1]) != zoo_folder("x", [2])
    assert zoo_folder("x", [1]).path.parent == folder / "cache/spiritlevel"
    assert len({vit_zoo.vit_zoo_folder(q, s).path for q in (True, False) for s in (0, 1)}) == 4


def made_up(count: int = 40) -> StudyTable:
    """``good`` follows the gap of the first design and opposes it, ``bad`` is noise."""
    rng = np.random.default_rng(0)
    gap = rng.standard_normal(2 * count)
    return StudyTable(
        tuple(f"n{i}" for i in range(2 * count)),
        hp={"design": ("end", "level") * count},
        complexity={"good": -gap + 0.1 * rng.standard_normal(2 * count), "bad": rng.standard_normal(2 * count)},
        gen={"train_loss": rng.random(2 * count), "test_loss": rng.random(2 * count), "test_gap": gap},
    )


def test_a_design_is_judged_by_itself() -> None:
    # Kills: all rows judged together; the sign of a lead; signed taus compared instead of their sizes.
    table = zoo_judging.of_design(zoo_judging.with_loss_gaps(made_up()), "level")
    assert table.names == tuple(f"n{i}" for i in range(1, 80, 2))
    assert np.allclose(table.gen["test_loss_gap"], made_up().gen["test_loss"][1::2] - made_up().gen["train_loss"][1::2])
    found = zoo_judging.judged(table, ("test_gap",), (("good", "bad"), ("bad", "good")), 200)
    good, bad = (stats.kendalltau(table.complexity[m], table.gen["test_gap"]).statistic for m in ("good", "bad"))
    assert good < -0.8
    assert found.tau("good", "test_gap").value == pytest.approx(good)
    lead, other = (found.leads[a, b, "test_gap"] for a, b in (("good", "bad"), ("bad", "good")))
    assert lead.difference.value == pytest.approx(abs(good) - abs(bad))
    assert lead.difference.low > 0
    assert lead.p < 0.05
    assert other.difference.high == pytest.approx(-lead.difference.low)
    assert found.lead_rows()[0]["lead"][0] == pytest.approx(lead.difference.value, abs=5e-3)
    assert {r["measure"] for r in found.rows()} == {"good", "bad", "train_loss"}


def test_a_table_without_the_design_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="expected networks of the design 'other', got "):
        zoo_judging.of_design(made_up(), "other")
    with pytest.raises(ArgumentError, match="expected a hyperparameter 'design'"):
        zoo_judging.of_design(replace(made_up(), hp={}), "end")


def table_names(zoo: ZooFolder) -> list[str]:
    return [p.name for p in zoo.checkpoints()]


@pytest.mark.timeout(900)  # about 10 s of a processor; a machine that is very busy takes minutes
def test_the_whole_experiment_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "twice the images"
    monkeypatch.setattr(vit_report, "VARIATIONS", {name: vit_zoo.VARIATIONS[name]})
    report = EXPERIMENTS["vit-zoo"].run(True, 0)
    zoo = vit_zoo.vit_zoo_folder(True, 0)
    assert len(zoo.checkpoints("end")) == TINY.networks
    found = report.data["zoo"]
    assert found["in the design"] == {d: len(zoo.checkpoints(d)) for d in ("end", "level")}
    assert found["failed measurements"] == 0
    assert len(report.claims) == 2 * (4 + 4 + 2)
    assert name in report.reading
    with Store(zoo.store) as store:
        states = [store.outcomes(c)["complexity.geodesic-cross@0.05"].status for c in table_names(zoo)]
    assert report.data["beyond the edge"]["geodesic-cross@0.05"] == states.count("edge")
    assert len(report.data["varied"][name]["taus"]) == 6  # four measures, training loss and norm
    assert set(report.figures) == {"vit-zoo-end", "vit-zoo-level", "vit-zoo-taus"}
    assert read_config(zoo.study).data.subset == TINY.measured // 2
    table = run_study(zoo.study)  # all is there: nothing is measured again
    end = zoo_judging.of_design(table, "end")
    here = stats.kendalltau(end.complexity["geodesic@0.1"], end.gen["test_gap"]).statistic
    assert report.claims[0].here == pytest.approx(here)
    assert {"test_gap", "noisy_gap", "blurred_gap", "rotated_gap", "occluded_gap"} <= set(table.gen)
    with np.load(zoo.train) as arrays:
        assert arrays["x"].shape == (TINY.training, 1, 28, 28)
    with np.load(zoo.data("noisy")) as noisy, np.load(zoo.data("test")) as test:
        assert np.array_equal(noisy["y"], test["y"])
        assert not np.array_equal(noisy["x"], test["x"])
    written = report.write(folder / "out")
    assert json.loads((folder / "out/vit-zoo.json").read_text())["settings"]["networks"] == TINY.networks
    assert len(written) == 3 + 2 * 3

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(vit_zoo, "fine_tuned", never)
    zoo.study.write_text("of an earlier version")  # kills: what lies in a folder that is prepared taken as it is
    assert EXPERIMENTS["vit-zoo"].run(True, 0).reading == report.reading


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("batches of 32", ("batches", "size"), 32),
        ("twice the images", ("data", "subset"), 32),
        ("normalised logits", ("loss", "normalize_logits"), True),
    ],
)
def test_a_variation_changes_one_setting(name: str, keys: tuple[str, str], value: object) -> None:
    study = vit_zoo.vit_study(TINY)
    varied = vit_zoo.varied_study(study, name)
    assert varied[keys[0]][keys[1]] == value != study.get(keys[0], {}).get(keys[1])
    assert varied["data"]["train"] == "train.npz"
    assert varied["zoo"]["checkpoints"] == "checkpoints/*-end"
    assert varied["store"] != study["store"]
    assert [m["rho"] for m in varied["measures"]] == [m["rho"][1] for m in study["measures"]]


def test_too_few_images_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vit_zoo, "QUICK", replace(TINY, pretraining=300))
    with pytest.raises(DataError, match="expected at least 428 images to train on, got 400"):
        vit_zoo.prepare_vit_zoo(True)


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    say = zoo_words.Lines(lambda: now[0])
    for at in (1.0, 61.0, 62.0):
        now[0] = at
        say(f"at {at:g}")
    assert capsys.readouterr().err == "at 61\n"


@pytest.mark.slow
def test_quick_runs_on_real_images_within_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        source = fashion._source()
    except DataError as error:
        if os.environ.get("SPIRITLEVEL_IMAGES") == "required":
            raise
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing is there from earlier
    monkeypatch.setenv("FASHION_MNIST", str(source))
    began = time.process_time()
    assert main(["reproduce", "vit-zoo", "--quick", "--out", str(tmp_path / "out")]) == 0
    assert time.process_time() - began < 300  # measured: see docs/experiments/vit-zoo.md
    found = json.loads((tmp_path / "out/vit-zoo.json").read_text())
    assert found["data"]["zoo"]["in the design"]["end"] == vit_zoo.QUICK.networks
    assert found["data"]["zoo"]["failed measurements"] == 0
    assert found["data"]["zoo"]["in the design"]["level"] >= 4
    assert found["settings"]["pretraining"]["error, upright"] < 0.5  # chance is 0.9
    assert "equal training loss" in capsys.readouterr().out.replace("\n", " ")
