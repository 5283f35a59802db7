"""The demonstration: its data, its zoo, and the way from nothing to a report."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

import spiritlevel as sl
from spiritlevel.cli import main
from spiritlevel.demo import RECIPES, SHIFTS, Recipe, Settings, run_demo, train_to_level
from spiritlevel.demo import run as demo_run
from spiritlevel.demo import zoo as demo_zoo
from spiritlevel.demo.cache import cache_folder, cache_home, prepared
from spiritlevel.demo.data import CLEAN, blurred, clean, noisy, plain, rotated, thick, thin, training
from spiritlevel.demo.invariance import MEASURES, check_invariance
from spiritlevel.demo.training import _with_noise
from spiritlevel.demo.zoo import make_zoo, members
from spiritlevel.errors import ArgumentError, MissingDependencyError, ModelError
from spiritlevel.study import load_checkpoint, read_table

TINY = Settings(
    level=2.2, limit=60, every=5, hidden=16, layers=1
)  # trained to hardly better than guessing, in a second
STUCK = Recipe("sgd", 1e-9, 0.0, False, 0.0, 0)


def loss_of(model: torch.nn.Module) -> float:
    images, labels = clean()
    with torch.no_grad():
        return float(F.cross_entropy(model(images).logits, labels))


# ------------------------------------------------------------------------------------------------------------ recipes


def test_recipes_differ_in_one_thing_along_every_axis() -> None:
    """What granulated statistics need. Kills: a fraction of a design in which two things always change together."""
    assert len(RECIPES) >= 24
    assert len({r.name for r in RECIPES}) == len(RECIPES)
    rows = [r.to_dict() for r in RECIPES]
    for axis in rows[0]:
        pairs = [
            (a, b) for i, a in enumerate(rows) for b in rows[:i] if {k for k in a if a[k] != b[k]} == {axis}
        ]  # fmt: skip
        assert len(pairs) >= 8, axis
    assert set(rows[0]) == {"optimizer", "learning_rate", "weight_decay", "augmentation", "label_noise", "seed"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"optimizer": "lion"}, "'adamw' or 'sgd'"), ({"label_noise": 1.0}, "label_noise"), ({"learning_rate": 0}, "> 0")],
)
def test_recipes_are_checked(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        replace(STUCK, **wrong)


def test_settings_are_checked() -> None:
    with pytest.raises(ArgumentError, match="level above 0"):
        Settings(level=0.0)


# --------------------------------------------------------------------------------------------------------------- data


def test_no_test_digit_is_trained_on() -> None:
    seen = {t.numpy().tobytes() for t in training()[0]}
    assert not seen & {t.numpy().tobytes() for t in plain()[0]}
    assert len(training()[1]) + len(plain()[1]) == 1797
    assert torch.equal(clean()[0], training()[0][:CLEAN])


def test_label_noise_spares_the_clean_digits() -> None:
    """Kills: noise on what the training loss is taken of; a wrong label that is right by chance."""
    labels = training()[1]
    noisy_labels = _with_noise(labels, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(noisy_labels[:CLEAN], labels[:CLEAN])
    share = float((noisy_labels != labels)[CLEAN:].float().mean())
    assert share == pytest.approx(0.5, abs=0.07)
    assert int(noisy_labels.min()) >= 0
    assert int(noisy_labels.max()) <= 9


def test_shifts_change_images_as_they_say() -> None:
    """Ink added by thick strokes, taken by thin ones, kept in all by turning; sharp edges lost by blur; noise outside.

    Kills: a shift that returns the digits as they are, or another test set's labels.
    """
    images, labels = plain()
    ink = (images + 1) / 2
    for make in SHIFTS.values():
        changed, same = make()
        assert torch.equal(same, labels)
        assert changed.shape == images.shape
        assert changed.dtype == torch.float32
        assert float(changed.min()) >= -1
        assert float(changed.max()) <= 1
        assert torch.equal(changed, make()[0])

    def total(x: torch.Tensor) -> float:
        return float(((x + 1) / 2).sum())

    assert total(thick()[0]) > 1.2 * total(images)
    assert total(thin()[0]) < 0.8 * total(images)
    assert bool((thin()[0] <= images + 1e-6).float().mean() > 0.9)
    assert total(rotated()[0]) == pytest.approx(total(images), rel=0.1)
    assert float((blurred()[0].diff(dim=-1)).abs().mean()) < 0.8 * float(images.diff(dim=-1).abs().mean())
    empty = ink == 0
    assert float((((noisy()[0] + 1) / 2)[empty] > 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    torch.testing.assert_close(rotated(0.0)[0], images, atol=1e-5, rtol=0)


# ------------------------------------------------------------------------------------------------------------ training


def test_all_stop_at_the_same_training_loss() -> None:
    """Kills: the level taken in passing; a loss in training mode or on noisy labels; a result that is not seeded."""
    recipes = [RECIPES[3], RECIPES[-1]]  # with augmentation and noise, both optimisers
    for recipe in recipes:
        first = train_to_level(recipe, TINY)
        assert first.reached
        assert 0.99 * TINY.level <= first.loss <= TINY.level
        assert loss_of(first.model) == pytest.approx(first.loss, rel=1e-5)
        assert not first.model.training
        again = train_to_level(recipe, TINY)
        assert (again.steps, again.loss) == (first.steps, first.loss)
    assert train_to_level(replace(recipes[0], seed=5), TINY).loss != first.loss


def test_what_does_not_get_there_says_so() -> None:
    stuck = train_to_level(STUCK, TINY)
    assert not stuck.reached
    assert stuck.steps == TINY.limit
    assert stuck.loss > TINY.level
    lost = train_to_level(replace(STUCK, learning_rate=1e9), TINY)
    assert not lost.reached
    assert lost.steps < TINY.limit


def test_weight_decay_shrinks_matrices_only() -> None:
    """Kills: decay on gains and biases; a decay that SGD multiplies into its momentum."""
    for optimizer in ("adamw", "sgd"):
        found = [
            train_to_level(Recipe(optimizer, 1e-6, wd, False, 0.0, 0), replace(TINY, limit=1, every=1, warm_up=1)).model  # type: ignore[arg-type]
            for wd in (0.0, 1e5)
        ]
        rate = TINY.rates[optimizer] * 1e-6
        for (name, p), (_, q) in zip(found[0].named_parameters(), found[1].named_parameters(), strict=True):
            expected = p * (1 - rate * 1e5) if p.dim() > 1 else p
            torch.testing.assert_close(q, expected, rtol=1e-3, atol=1e-6, msg=name)


# ----------------------------------------------------------------------------------------------------------------- zoo


def test_a_zoo_on_disk(tmp_path: Path) -> None:
    """Folders that transformers reads, hyperparameters beside them; what did not get there is listed and left out."""
    told: list[str] = []
    found = make_zoo(tmp_path, [RECIPES[0], STUCK], TINY, workers=1, on_done=lambda m: told.append(m.name))
    assert [m.reached for m in found] == [True, False]
    assert sorted(told) == sorted(m.name for m in found)
    assert sorted(p.name for p in (tmp_path / "zoo").iterdir()) == [RECIPES[0].name]
    assert sorted(p.name for p in (tmp_path / "left-out").iterdir()) == [STUCK.name]
    folder = tmp_path / "zoo" / RECIPES[0].name
    assert (folder / "model.safetensors").is_file()
    assert loss_of(load_checkpoint(folder)) == pytest.approx(found[0].loss, rel=1e-5)
    record = json.loads((folder / "training.json").read_text())
    assert record["hyperparameters"] == RECIPES[0].to_dict()
    with (tmp_path / "zoo.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["checkpoint"] for r in rows] == [RECIPES[0].name]
    assert rows[0]["optimizer"] == "adamw"


def test_a_stopped_zoo_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: training again what is there; half a folder taken for a network."""
    done = make_zoo(tmp_path, [RECIPES[0]], TINY, workers=1)
    (tmp_path / "zoo" / ".half").mkdir()
    trained: list[str] = []
    real = demo_zoo.train_to_level

    def noted(recipe: Recipe, settings: Settings) -> Any:
        trained.append(recipe.name)
        return real(recipe, settings)

    monkeypatch.setattr(demo_zoo, "train_to_level", noted)
    found = make_zoo(tmp_path, [RECIPES[0], RECIPES[1]], TINY, workers=1)
    assert trained == [RECIPES[1].name]
    assert found[0] == done[0]
    assert [m.name for m in members(tmp_path)] == sorted(m.name for m in found)


def test_several_processes_train_the_same(tmp_path: Path) -> None:
    one = make_zoo(tmp_path / "one", RECIPES[:2], TINY, workers=1)
    two = make_zoo(tmp_path / "two", RECIPES[:2], TINY, workers=2)
    assert [replace(m, seconds=0.0) for m in one] == [replace(m, seconds=0.0) for m in two]
    states = [load_checkpoint(tmp_path / w / "zoo" / RECIPES[1].name).state_dict() for w in ("one", "two")]
    assert all(torch.equal(t, states[1][n]) for n, t in states[0].items())


def _dies(*_: Any) -> None:
    import os

    os._exit(7)


def test_what_a_zoo_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="different names"):
        make_zoo(tmp_path, [STUCK, STUCK], TINY)
    with pytest.raises(ArgumentError, match="at least one worker"):
        make_zoo(tmp_path, [STUCK], TINY, workers=0)
    monkeypatch.setattr(demo_zoo, "_begin", _dies)
    with pytest.raises(ModelError, match="ended from outside"):
        make_zoo(tmp_path, RECIPES[:2], TINY, workers=2)


# --------------------------------------------------------------------------------------------------------------- cache


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path
    for other in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", other)
        assert cache_home() == Path.home() / ".cache"


def test_other_settings_have_another_folder() -> None:
    """Kills: an old zoo shown for new settings."""
    base = cache_folder(RECIPES, TINY)
    assert cache_folder(RECIPES, replace(TINY)) == base
    others = [cache_folder(RECIPES[1:], TINY), cache_folder(RECIPES, replace(TINY, level=0.2))]
    assert len({base, *others}) == 3


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="Set XDG_CACHE_HOME"):
        prepared(tmp_path / "file" / "demo", fresh=False)


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "_NEEDED", ("sklearn.nowhere",))
    with pytest.raises(MissingDependencyError, match=r"'scikit-learn'.*spiritlevel\[demo\]"):
        run_demo(Console(quiet=True))


# ---------------------------------------------------------------------------------------------------------- all of it


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """A whole demonstration on nine tiny networks, with what it printed and its cache."""
    home = tmp_path_factory.mktemp("cache")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        console = Console(record=True, width=100, file=io.StringIO())
        found = run_demo(console, workers=1, recipes=[*RECIPES[:9], STUCK], settings=TINY)
    return found, console.export_text(), home


def test_the_demonstration_tells_its_story(demo: tuple[dict[str, Any], str, Path]) -> None:
    found, text, home = demo
    assert str(home) in found["folder"]
    for words in ("9 networks are in the zoo", "1 are left out", STUCK.name, "Only geodesic", "Kendall's tau-b"):
        assert words in " ".join(text.split()), words
    assert "nan" not in text
    for name in ("geodesic@0.1", "adaptive@0.5", "euclidean@0.05", "parameter-norm"):
        assert name in text
    assert "spiritlevel report" in text
    json.dumps(found, allow_nan=False)


def test_the_report_has_the_invariance_check_and_every_shift(demo: tuple[dict[str, Any], str, Path]) -> None:
    found, _, _ = demo
    files = {Path(f).name: Path(f) for f in found["files"]}
    page = files["report.html"].read_text(encoding="utf-8")
    assert "Invariance check" in page
    assert any(name.startswith("invariance") for name in files)
    for shift in SHIFTS:
        assert f"{shift}_gap" in page
    ratios = {o["measure"]: o["after"] / o["before"] for o in found["orbit_check"]}
    assert ratios["geodesic@0.1"] == pytest.approx(1, abs=1e-3)
    assert abs(ratios["adaptive@0.5"] - 1) > 0.05


def test_one_command_gives_the_numbers_again(
    demo: tuple[dict[str, Any], str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the store alone. Kills: a table printed from anything else than the stored rows."""
    found, text, _ = demo
    store = Path(found["folder"]) / "study.db"
    assert main(["report", str(store), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for part in ("relations", "comparisons", "granulated", "findings"):
        assert again[part] == found["report"][part]
    assert main(["study", "export", str(store), str(tmp_path / "table.csv")]) == 0
    table = read_table(tmp_path / "table.csv")
    for relation in again["relations"]:
        if relation["target"] == "test_gap" and relation["measure"] in table.complexity:
            tau = _tau_b(table.complexity[relation["measure"]], table.gen["test_gap"])
            assert relation["tau"]["value"] == pytest.approx(tau, abs=1e-12)
            row = next(line for line in text.splitlines() if f" {relation['measure']} " in line)
            assert f" {tau:.2f} " in row


def _tau_b(x: Any, y: Any) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(x, y).statistic)


def test_stored_numbers_are_those_of_the_checkpoints(demo: tuple[dict[str, Any], str, Path]) -> None:
    """Kills: measures on noisy labels or on test data; errors of another test set."""
    folder = Path(demo[0]["folder"])
    name = RECIPES[1].name
    with sl.study.Store(folder / "study.db") as store:
        table = store.table()
    at = table.names.index(name)
    model = load_checkpoint(folder / "zoo" / name)
    images, labels = clean()
    batches = [(images[i : i + 128], labels[i : i + 128]) for i in range(0, demo_run.MEASURED, 128)]
    problem = sl.Problem(model, batches)
    assert table.complexity["geodesic@0.05"][at] == pytest.approx(sl.geodesic_sharpness(problem, 0.05).value, rel=1e-5)
    assert table.gen["train_loss"][at] == pytest.approx(loss_of(model), rel=1e-5)
    assert np.all(table.gen["train_loss"] <= TINY.level * (1 + 1e-6))
    assert np.all(table.gen["train_loss"] >= 0.99 * TINY.level * (1 - 1e-6))
    images, labels = thick()
    with torch.no_grad():
        error = float((model(images).logits.argmax(-1) != labels).double().mean())
    assert table.gen["thick_error"][at] == pytest.approx(error)
    assert table.sizes["thick"] == len(labels)
    assert table.hp["label_noise"][at] == RECIPES[1].label_noise


def test_a_second_run_takes_everything_from_the_cache(
    demo: tuple[dict[str, Any], str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained or measured, and the numbers are the same to the last bit."""
    found, _, home = demo
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    for where, name in ((demo_zoo, "train_to_level"), (demo_run, "check_invariance")):
        monkeypatch.setattr(where, name, lambda *_: pytest.fail("done again"))
    monkeypatch.setattr("spiritlevel.study.session.Session.load", lambda *_: pytest.fail("measured again"))
    began = time.process_time()
    again = run_demo(Console(quiet=True), workers=1, recipes=[*RECIPES[:9], STUCK], settings=TINY, out=tmp_path)
    assert time.process_time() - began < 30
    assert (tmp_path / "report.html").is_file()
    assert {k: v for k, v in again.items() if k != "files"} == {k: v for k, v in found.items() if k != "files"}


def test_fresh_forgets(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "study.db").write_text("old")
    assert list(prepared(tmp_path / "demo", fresh=False).iterdir())
    assert not list(prepared(tmp_path / "demo", fresh=True).iterdir())


def test_too_few_networks_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="at least 8 networks"):
        run_demo(Console(quiet=True), workers=1, recipes=[STUCK], settings=replace(TINY, limit=5))


def test_the_invariance_check_measures_what_the_study_names() -> None:
    names = {
        f"{m['name'] if 'name' in m else m['measure']}@{r:g}"
        for m in demo_run.study_of(0)["measures"]
        for r in m["rho"]
    }
    assert set(MEASURES) <= names


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Options arrive; JSON alone on standard output."""
    given: dict[str, Any] = {}

    def run(console: Console, **options: Any) -> dict[str, Any]:
        console.print("words")
        given.update(options)
        return {"seed": options["seed"]}

    monkeypatch.setattr("spiritlevel.cli.run_demo", run)
    line = ["demo", "--seed", "3", "--out", str(tmp_path), "--fresh", "--workers", "2"]
    assert main([*line, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"seed": 3}
    assert "words" in captured.err
    assert given == {"seed": 3, "out": tmp_path, "fresh": True, "workers": 2}


@pytest.mark.slow
def test_a_part_of_the_real_zoo(tmp_path: Path) -> None:
    """Ten of the demonstration's networks as they are: each at its level, reading digits; the move shows."""
    recipes = [r for r in RECIPES if not (r.augmentation and r.label_noise)][:10]
    found = make_zoo(tmp_path, recipes, workers=1)
    assert all(m.reached for m in found)
    assert all(0.099 <= m.loss <= 0.1 for m in found)
    images, labels = plain()
    for member in found:
        model = load_checkpoint(tmp_path / "zoo" / member.name)
        with torch.no_grad():
            assert float((model(images).logits.argmax(-1) != labels).float().mean()) < 0.15, member.name
    orbit = {o["measure"]: o["after"] / o["before"] for o in check_invariance(model, "last", 0).rows}
    assert orbit["geodesic@0.1"] == pytest.approx(1, abs=1e-3)
    assert orbit["adaptive@0.5"] > 2
    assert orbit["euclidean@0.05"] > 1.2
