"""The configuration of a study: what it accepts, and where it says a mistake is."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import spiritlevel as sl
from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, ConfigError, MissingDependencyError
from spiritlevel.study import Data, GeometrySettings, Measure, RadiusRule, StudyConfig, Zoo, read_config, run_study
from spiritlevel.study.config import config_of
from spiritlevel.study.members import find_checkpoints
from zoos import network, settings, write_zoo

GOOD = """\
zoo:
  checkpoints: "runs/*"
  builder: zoos:network
data:
  train: train.npz
  tests:
    iid: iid.npz
measures:
  - geodesic
  - measure: worst-case
    geometry: euclidean
    rho: {rise: 0.1}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  builder:", "  bulder:", "study.yaml:3:3: zoo.bulder: expected a setting of this place, not this key"),
        ("  builder:", "  bulder:", "did you mean 'builder' instead of 'bulder'?"),
        ("    geometry: euclidean", "    what: 1", "known there: measure, name, geometry, rho"),
        ("  train: train.npz\n", "", "study.yaml:4:1: data.train: expected this setting, got none"),
        ("iid:", '"not good":', "study.yaml:7:5: data.tests.not good"),
        ("iid:", "train:", "expected another name for the test set 'train'"),
        ("- geodesic", "- beauty", "study.yaml:9:5: measures.0.measure: expected a measure out of geodesic,"),
        ("- geodesic", "- {measure: adaptive, rho: -1}", "study.yaml:9:25: measures.0.rho.0: input should be greater"),
        ("- geodesic", "- {measure: adaptive, rho: [1, x]}", "study.yaml:9:34: measures.0.rho.1: input should"),
        ("- geodesic", "- {measure: adaptive, rho: [1, 1.0]}", "study.yaml:9:25: .* no two alike"),
        ("- geodesic", "- {measure: adaptive, rho: []}", "expected one or more numbers"),
        ("- geodesic", "- {measure: gradient-norm, rho: 1}", "study.yaml:9:5: .* no rho for gradient-norm"),
        ("- geodesic", "- {measure: adaptive, geometry: euclidean}", "no geometry for adaptive: take worst-case"),
        ("- geodesic", "- {measure: geodesic, geometry: euclidean}", "expected a quotient for geodesic"),
        ("- geodesic", "- {measure: average-case, samples: 3}", "even number of samples"),
        ("- geodesic", "- {measure: average-case, solver: magic}", "expected a solver out of"),
        ("- geodesic", "- {measure: average-case, name: a b}", "study.yaml:9:29: measures.0.name"),
        ("- geodesic", "- {measure: average-case, name: parameter-norm}", "another name than 'parameter-norm'"),
        ("- geodesic", "- {measure: worst-case, name: x}\n  - {measure: adaptive, name: x}", "got 'x' twice"),
        ("geometry: euclidean", "geometry: flat", "study.yaml:11:5: measures.1.geometry.kind: input"),
        ("geometry: euclidean", "geometry: {kind: euclidean, metric: cross_gram}", "for the quotient only"),
        ("geometry: euclidean", "geometry: {kind: elementwise, curve: exact}", "out of straight, geodesic; got exact"),
        ("geometry: euclidean", "geometry: {kind: quotient, metric: x}", "metric out of inverse_gram, cross_gram"),
        ("geometry: euclidean", "geometry: {kind: quotient, metrik: x}", "did you mean 'metric' instead of 'metrik'"),
        ("{rise: 0.1}", "{rise: [0.1, -1]}", "study.yaml:12:23: measures.1.rho.rise.1: input should be greater than 0"),
        ("{rise: 0.1}", "{rize: 0.1}", "did you mean 'rise' instead of 'rize'"),
        ("measures:", "seed: much\nmeasures:", "study.yaml:8:1: seed: input should be a valid integer"),
        ("measures:", "loss: {function: a:b, normalize_logits: true}\nmeasures:", "either a function or"),
        ("  train:", "  train: x.npz\n  train:", "6:3: expected each key once, .* again .first in line 5"),
        ("measures:", "measures: [", "study.yaml:.*: expected YAML, but"),
        ("zoo:", "\tzoo:", "study.yaml:1:1: expected YAML, but found character"),
        (GOOD, "- a\n- b\n", "study.yaml:1:1: expected settings such as 'zoo:' and 'data:', got list"),
        (GOOD, "", "expected settings such as 'zoo:' and 'data:', got NoneType"),
        (GOOD, "a: \x00", "expected YAML, but"),
    ],
)  # fmt: skip
def test_mistakes_are_found_at_their_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Kills: a line off by one, the place of the parent, a key that is silently ignored."""
    assert old in GOOD
    with pytest.raises(ConfigError, match=words):
        read_config(write(tmp_path, GOOD.replace(old, new, 1)))


def test_all_mistakes_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("builder", "bulder").replace("train: ", "train: x\n  examples: ").replace("geodesic", "x")
    with pytest.raises(ConfigError) as caught:
        read_config(write(tmp_path, text))
    places = [line.split(": ")[0] for line in str(caught.value).splitlines() if line.startswith("study.yaml")]
    assert places == ["study.yaml:3:3", "study.yaml:6:3", "study.yaml:10:5"]


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`spiritlevel study init` writes one"):
        read_config(tmp_path / "no.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"in UTF-8, but .*bytes\.yaml cannot be read"):
        read_config(tmp_path / "bytes.yaml")


def test_without_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingDependencyError, match=r"'pyyaml' for a study: pip install 'spiritlevel\[study\]'"):
        read_config(write(tmp_path, GOOD))


def test_what_is_wrong_later_has_its_line_too(tmp_path: Path) -> None:
    """Kills: a wrong column, found only when files are read, without its place."""
    write_zoo(tmp_path, 2)
    text = GOOD.replace(
        "builder: zoos:network", "builder: zoos:network\n  hyperparameters: runs.csv\n  columns: [lr, wd]"
    )
    with pytest.raises(ConfigError, match=r"^study.yaml:5:3: zoo.columns: expected .* lr, seed, optimiser; got 'wd'"):
        find_checkpoints(read_config(write(tmp_path, text)))


def test_names_of_measures(tmp_path: Path) -> None:
    given: list[Any] = [
        "geodesic",
        {"measure": "worst-case", "geometry": "euclidean"},
        {"measure": "worst-case", "geometry": {"kind": "quotient", "metric": "cross_gram"}},
        {"measure": "worst-case", "geometry": sl.Elementwise("geodesic")},
        {"measure": "average-case", "name": "mine"},
        Measure(measure="geodesic", geometry=GeometrySettings(kind="quotient", metric="cross_gram")),
    ]
    names = [Measure.model_validate(m).name for m in given]
    assert names == [
        *("geodesic", "worst-case-euclidean", "worst-case-quotient-cross_gram", "worst-case-elementwise", "mine"),
        "geodesic-cross_gram",
    ]


def test_geometries_and_solvers_are_what_was_asked_for() -> None:
    """Kills: settings that are read and dropped."""
    space = Measure.model_validate(
        {"measure": "worst-case", "geometry": {"kind": "quotient", "rest": "euclidean"}}
    ).space
    assert str(space) == str(sl.Quotient(rest=sl.Euclidean()))
    assert Measure(measure="worst-case", geometry=GeometrySettings(kind="euclidean")).space == sl.Euclidean()
    curved = Measure.model_validate({"measure": "worst-case", "geometry": {"kind": "elementwise", "curve": "geodesic"}})
    assert curved.space == sl.Elementwise("geodesic")
    assert Measure(measure="worst-case").search is None
    assert str(Measure(measure="worst-case", steps=3).search) == str(sl.solvers.SphereAscent().limited(3))
    assert "AutoPGD" in str(Measure(measure="worst-case", solver="autopgd").search)


def test_in_python_and_to_another_process() -> None:
    config = StudyConfig(
        zoo=Zoo(checkpoints={"a": network}),
        data=Data(train=(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))),
        measures=(Measure(measure="adaptive", rho=RadiusRule(rise=(0.1,))),),
    )
    again = pickle.loads(pickle.dumps(config))
    assert again.measures == config.measures
    assert again.zoo.checkpoints["a"] is network
    assert config.summary()["zoo"] == {"checkpoints": {"a": "network"}}
    assert config.summary()["data"] == {"train": "tuple"}
    with pytest.raises(ConfigError, match=r"^zoo: expected this setting, got none"):
        config_of({"data": {"train": "x"}, "measures": ["geodesic"]})
    assert config_of(config) is config


_SWITCHED = ("# loss", "#   f", "#   n", "# w", "# r", "#   a", "#   g")  # commented settings, not words


def test_the_example_validates_and_mentions_every_setting(tmp_path: Path) -> None:
    """Also with every commented line switched on. Kills: an example that has fallen behind."""
    target = tmp_path / "study.yaml"
    assert main(["study", "init", str(target)]) == 0
    config = read_config(target)
    assert [m.name for m in config.measures][:3] == ["geodesic", "adaptive", "worst-case-euclidean"]
    assert main(["study", "init", str(target)]) == 2
    assert main(["study", "init", str(target), "--force"]) == 0
    text = target.read_text(encoding="utf-8")
    for model in (StudyConfig, Zoo, Data, Measure, RadiusRule, GeometrySettings):
        for name in model.model_fields:
            assert f"{name}:" in text, f"{model.__name__}.{name}"
    lines = [line for line in text.splitlines() if line[:2] != "# " or line.startswith(_SWITCHED)]
    switched = "\n".join(line.replace("# ", "", 1) if line.strip().startswith("# ") else line for line in lines)
    seen: set[str] = set()
    kept = []
    for line in switched.splitlines():
        key = line.split(":")[0] if line.startswith("  ") and not line.startswith("    ") else ""
        if key.strip() in ("checkpoints", "hyperparameters") and key in seen:
            continue
        seen.add(key)
        kept.append(line)
    content = yaml.safe_load("\n".join(kept))
    content["loss"].pop("normalize_logits", None)
    full = config_of(content)
    assert full.zoo.partial
    assert full.zoo.columns == ("lr", "weight_decay")
    assert full.batches.micro == 32
    assert full.workers == 4


def test_paths_start_at_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also code beside it. Kills: a study that runs only where its file lies."""
    (tmp_path / "zoo").mkdir()
    write_zoo(tmp_path / "zoo", 1)
    (tmp_path / "zoo" / "beside_it.py").write_text("from zoos import network\n")
    text = GOOD.replace("zoos:network", "beside_it:network").replace("- geodesic\n", "- gradient-norm\n")
    path = write(tmp_path / "zoo", text)
    monkeypatch.chdir(tmp_path)
    table = run_study(path)
    assert table.failures == ()
    assert (tmp_path / "zoo" / "study.db").is_file()
    assert table.facts["radii"][0]["checkpoints"] == ["run-0"]


def test_hyperparameters_beside_each_checkpoint(tmp_path: Path) -> None:
    """Dotted names for inner ones; what is the same everywhere says nothing."""
    for i in range(2):
        folder = tmp_path / "runs" / f"run-{i}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(
            json.dumps({"width": 8, "train": {"lr": 0.1 * i, "by": "sgd"}, "list": [1]})
        )
    config = settings(tmp_path)
    config["zoo"] = {"checkpoints": str(tmp_path / "runs" / "*"), "hyperparameters": "config.json"}
    assert [dict(c.hyperparameters) for c in find_checkpoints(config_of(config))] == [
        {"train.lr": 0.0},
        {"train.lr": 0.1},
    ]
    config["zoo"]["columns"] = ["width", "train.by"]
    assert find_checkpoints(config_of(config))[0].hyperparameters == {"width": 8, "train.by": "sgd"}


def test_names_are_what_varies_in_the_path(tmp_path: Path) -> None:
    write_zoo(tmp_path, 11)
    config = settings(tmp_path)
    zoo = find_checkpoints(config_of(config))
    assert [c.name for c in zoo] == [f"run-{i}" for i in range(11)]
    del config["zoo"]["hyperparameters"]
    config["zoo"]["checkpoints"] = str(tmp_path / "*" / "run-?.safetensors")
    assert find_checkpoints(config_of(config))[0].name == "runs/run-0"
    config["zoo"]["hyperparameters"] = {f"run-{i}": {"a": i} for i in range(11)}
    with pytest.raises(ConfigError, match="a row for each checkpoint, none for runs/run-0"):
        find_checkpoints(config_of(config))


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "run", str(tmp_path / "no.yaml")]) == 2
    assert "`spiritlevel study init` writes one" in capsys.readouterr().err
    assert main(["study", "init", str(tmp_path / "no" / "study.yaml")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["study"]) in (0, 2)
    assert issubclass(ConfigError, ArgumentError)
