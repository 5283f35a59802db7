"""The ablations of geodesic sharpness: the plan as a study, the paired statistics, the judgements."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import spiritlevel as sl
from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.experiments import EXPERIMENTS
from spiritlevel.experiments.ablation_findings import Effects, effects_of, prefix
from spiritlevel.experiments.ablation_plan import BASES, VARIANTS, Ablation, measured_ablations
from spiritlevel.experiments.ablations import QUICK, _above, _draw, _papers, _within, report_ablations
from spiritlevel.experiments.zoo_folder import ZooFolder
from spiritlevel.study import StudyTable, jobs, load_checkpoint
from spiritlevel.study.statistics.kendall import tau_b
from spiritlevel.study.statistics.resamples import Interval
from zoos import write_vits

MOST = tuple(v.name for v in VARIANTS if v.name not in ("exact", "cross", "first-order", "norm-off"))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> ZooFolder:
    """Random vision transformers in the folders of a zoo."""
    folder = tmp_path_factory.mktemp("zoo")
    study = write_vits(folder, 4)
    (folder / "vits").rename(folder / "checkpoints")
    for i in range(4):
        (folder / "checkpoints" / f"vit-{i}").rename(folder / "checkpoints" / f"net{i}-end")
    rows = (folder / "vits.csv").read_text().splitlines()
    (folder / "zoo.csv").write_text("\n".join([rows[0], *(f"net{i}-end,{i},adamw" for i in range(4))]) + "\n")
    study["zoo"] = {"checkpoints": "checkpoints/*", "hyperparameters": "zoo.csv"}
    study["data"] = {"train": "train.npz", "subset": 16, "tests": {"test": "iid.npz", "shifted": "shifted.npz"}}
    study |= {"batches": {"size": 8}, "store": "study.db"}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    (folder / "zoo.json").write_text("{}")
    return ZooFolder(folder)


def test_the_plan_is_a_study_that_goes_on_where_it_was(zoo: ZooFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kills: variants at another radius than their base, a norm that does not reach the measure, work done twice.
    plan = Ablation(3, ("end",), judges=1, left_out=MOST)
    table = measured_ablations(zoo, plan, show_progress=False)
    assert table.names == ("net0-end", "net1-end", "net2-end")
    assert not table.failures
    columns = {c.rpartition("@")[0]: c for c in table.complexity}
    assert columns["first-order"].split("@")[1] == columns["exact"].split("@")[1] != columns["norm-off"].split("@")[1]
    for name, geometry in (
        ("exact", sl.Quotient()),
        ("first-order", sl.Quotient(curve="first_order")),
        ("norm-off", sl.Quotient(curve="second_order", norm="elementwise")),
    ):
        x, y = (np.load(zoo.train)[k] for k in ("x", "y"))
        order = jobs_batches(x, y)
        problem = sl.Problem(load_checkpoint(zoo.checkpoint("net0", "end")), order)
        direct = sl.worst_case(problem, geometry, float(columns[name].split("@")[1]), show_progress=False)
        assert table.complexity[columns[name]][0] == pytest.approx(direct.value, rel=1e-4)
    again = table.columns()
    monkeypatch.setattr(jobs, "measured", lambda *_: pytest.fail("measured twice"))
    assert measured_ablations(zoo, plan, show_progress=False).columns() == again


def jobs_batches(x: Any, y: Any) -> list[Any]:
    """The images the study measures on, in its batches."""
    from spiritlevel.study import load_data

    return list(load_data({"x": x, "y": y}, 8).chosen(16, 0))  # type: ignore[union-attr]


def test_what_is_not_there_is_said(zoo: ZooFolder) -> None:
    with pytest.raises(ArgumentError, match="expected networks of the designs level"):
        measured_ablations(zoo, Ablation(3, ("level",)), show_progress=False)
    with pytest.raises(ArgumentError, match="expected names of variants to leave out"):
        Ablation(3, ("end",), left_out=("exact",)).variants  # noqa: B018
    table = StudyTable(("a",), {}, {}, {"test_gap": np.zeros(1)})
    with pytest.raises(DataError, match="expected one column exact@RADIUS"):
        effects_of(table, table, VARIANTS[:1], [0], "test_gap", 0)


def table_of(changes: dict[str, Any], n: int = 30, seed: int = 0) -> tuple[StudyTable, np.ndarray[Any, Any]]:
    """Bases that order networks against the gap, and variants made of them."""
    rng = np.random.default_rng(seed)
    gap = rng.normal(size=n)
    exact = np.exp(-gap + 0.7 * rng.normal(size=n))
    columns = {"exact": exact, "cross": exact**2, **{k: change(exact, gap) for k, change in changes.items()}}
    per_batch = {f"{k}@0.1": tuple((v * 0.5, v * 1.5, v, v) for v in x) for k, x in columns.items()}
    names = tuple(f"net{i}-end" for i in range(n))
    return StudyTable(names, {}, {f"{k}@0.1": x for k, x in columns.items()}, {"test_gap": gap}, {}, per_batch), gap


def effects(changes: dict[str, Any], n: int = 30) -> Effects:
    table, _ = table_of(changes, n)
    chosen = [v for v in VARIANTS if v in BASES or v.name in changes]
    return effects_of(table, table, chosen, range(n), "test_gap", 0)


def test_changes_are_paired_and_in_the_direction_of_the_base() -> None:
    # Kills: unpaired intervals, tau folded to its size, ratios the wrong way round or arithmetic.
    found = effects({
        "second-order": lambda x, g: 2 * x,
        "first-order": lambda x, g: 1 / x,
        "norm-off": lambda x, g: np.exp(-g),
    })  # fmt: skip
    rows = found.rows
    base = rows["exact"].tau
    assert base.value < -0.2
    same, turned, better = (rows[n] for n in ("second-order", "first-order", "norm-off"))
    assert same.change == Interval(0.0, 0.0, 0.0)
    assert same.ratio is not None
    assert same.ratio.value == pytest.approx(2)
    assert same.ratio.high - same.ratio.low < 1e-9
    assert same.order == 1.0
    assert turned.change is not None
    assert turned.change.value == pytest.approx(2 * base.value)  # tau of the other sign: all of it and more is lost
    assert turned.change.high < 0
    assert turned.order == -1.0
    assert better.change is not None
    assert better.change.value == pytest.approx(1 + base.value)
    assert better.change.low > 0
    assert better.p < 0.01 < 0.5 < same.p
    assert rows["exact"].change is None
    assert rows["exact"].order == 1.0
    more = found.larger_loss("first-order", "second-order")
    assert more is not None
    assert more.value == pytest.approx(-2 * base.value)
    assert more.low > 0
    assert found.larger_loss("cross-norm-off", "first-order") is None


def test_ratios_are_geometric_means_with_intervals_of_the_networks() -> None:
    rng = np.random.default_rng(3)
    factors = np.exp(rng.normal(size=30))
    row = effects({"second-order": lambda x, g: factors * x}).rows["second-order"]
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx(float(np.exp(np.log(factors).mean())))
    error = np.log(factors).std(ddof=0) / math.sqrt(30)
    assert math.log(row.ratio.high / row.ratio.low) / 2 / 1.96 == pytest.approx(error, rel=0.1)


def test_fewer_batches_are_the_first_of_them() -> None:
    table, gap = table_of({})
    assert prefix(table, "exact@0.1", [0, 3], 1) == pytest.approx(table.complexity["exact@0.1"][[0, 3]] * 0.5)
    assert prefix(table, "exact@0.1", [2], 4) == pytest.approx(table.complexity["exact@0.1"][[2]])
    found = effects_of(table, table, BASES, range(30), "test_gap", 0)
    assert [k for k, *_ in found.batches["exact"]] == [1, 2, 4]
    assert found.batches["exact"][0][1].value == pytest.approx(tau_b(table.complexity["exact@0.1"], gap))
    assert found.batches["exact"][-1][2] == Interval(0.0, 0.0, 0.0)
    rng = np.random.default_rng(1)
    noisy = {k: tuple((float(rng.normal()), v, v) for v in x) for k, x in table.complexity.items()}
    other = effects_of(table, replace(table, per_batch=noisy), BASES, range(30), "test_gap", 0).batches["exact"]
    assert [k for k, *_ in other] == [1, 2, 3]
    assert other[0][2].value == pytest.approx(-(other[0][1].value - other[-1][1].value))  # the base has a negative tau


def test_failed_networks_are_counted_and_left_out() -> None:
    found = effects({"second-order": lambda x, g: np.where(np.arange(len(x)) < 3, np.nan, x)})
    row = found.rows["second-order"]
    assert row.failed == 3
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx(1)


def test_the_papers_sentences_are_judged_by_intervals() -> None:
    # Kills: a verdict by the value alone, or with the sign turned.
    assert _above(Interval(0.1, 0.05, 0.2)) is True
    assert _above(Interval(-0.1, -0.2, -0.05)) is False
    assert _above(Interval(0.1, -0.05, 0.2)) is None
    assert _within(Interval(0.0, -0.05, 0.05), 0.1) is True
    assert _within(Interval(0.0, -0.15, 0.05), 0.1) is None
    assert _within(Interval(-0.2, -0.3, -0.15), 0.1) is False
    assert _within(None, 0.1) is None
    found = effects({
        "first-order": lambda x, g: 1.01 * x,
        "norm-off": lambda x, g: np.roll(x, 7),
        "cross-first-order": lambda x, g: 1 / x,
        "cross-norm-off": lambda x, g: x,
        "relaxed-1": lambda x, g: x,
        "relaxed-0.01": lambda x, g: 1 / x,
    })  # fmt: skip
    verdicts = {c.what.partition(": ")[2]: c.holds for c in _papers("end: ", found)}
    assert verdicts == {
        "metric (15): norm off costs more than second order off (App. G)": True,
        "metric (34): norm off costs more than second order off (App. G)": False,
        "metric (15): second order off costs little (App. G)": True,
        "metric (34): second order off costs much (App. G)": True,
        "relaxation makes no significant difference (App. H)": False,
        "metric (34) tells more than (15) (App. F.2)": None,
    }
    noise = np.exp(0.4 * np.random.default_rng(8).normal(size=30))
    unsure = effects({"cross-first-order": lambda x, g: x * noise})  # -0.06 [-0.17, 0.05]
    change = unsure.rows["cross-first-order"].change
    assert change is not None
    assert change.value < 0 < change.high
    assert {c.what: c.holds for c in _papers("", unsure)}["metric (34): second order off costs much (App. G)"] is None
    gain = effects({"norm-off": lambda x, g: np.exp(-g), "first-order": lambda x, g: 1.01 * x})
    verdicts = {c.what: c.holds for c in _papers("", gain)}  # larger in size, but a gain
    assert verdicts["metric (15): norm off costs more than second order off (App. G)"] is False
    figure = _draw({"end": found})
    assert len(figure.axes) == 3


def test_the_report_of_a_small_zoo(zoo: ZooFolder, tmp_path: Path) -> None:
    # Kills: a claim without its number, other targets lost, a figure that cannot be drawn.
    found = report_ablations(zoo, Ablation(4, ("end",), judges=1, left_out=MOST))
    written = found.write(tmp_path)
    assert {p.name for p in written} == {f"ablations.{e}" for e in ("json", "csv", "md", "png", "svg")}
    data = json.loads((tmp_path / "ablations.json").read_text())["data"]
    assert data["designs"]["end"]["networks"] == 4
    assert set(data["other targets"]["end"]) == {"shifted_gap"}
    assert "geodesic sharpness has tau" in found.reading
    assert sum("change of tau" in c.what for c in found.claims) == 3 + 2 * 1  # one of two batches, in both metrics
    batches = data["designs"]["end"]["batches"]["exact"]
    assert [b["batches"] for b in batches] == [1, 2]


@pytest.mark.slow  # all variants, the integrated geodesics and all kinds of symmetries among them
def test_all_variants_can_be_measured(zoo: ZooFolder) -> None:
    table = measured_ablations(zoo, Ablation(2, ("end",), judges=1), zoo.path / "all.db", show_progress=False)
    assert not table.failures
    assert {c.rpartition("@")[0] for c in table.complexity} - {""} == {v.name for v in VARIANTS}


@pytest.mark.slow  # makes the small zoo where it is not in the cache
def test_the_quick_run(tmp_path: Path) -> None:
    assert main(["reproduce", "ablations", "--quick", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "ablations.json").read_text())
    assert data["data"]["designs"]["end"]["networks"] == QUICK.networks
    assert all(math.isfinite(v["rho"]) for v in data["data"]["designs"]["end"]["variants"].values())


def test_it_is_listed() -> None:
    assert {"ablations", "orbit"} <= set(EXPERIMENTS)
    assert replace(QUICK, left_out=("cross-exact",)).variants[-1].name == "cross-norm-off"
