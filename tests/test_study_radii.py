"""Radii chosen by rule: against a root finder of scipy, and fixed once they are found."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from scipy.optimize import brentq

import spiritlevel as sl
from spiritlevel.errors import ArgumentError, LossError
from spiritlevel.study import Store, load_checkpoint, load_data, run_study
from spiritlevel.study.radii import radius_of_rise
from zoos import network, settings, weights, write_zoo


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("start", [1e-3, 0.3, 50.0])
def test_the_root_of_a_rise(power: float, start: float) -> None:
    """Three digits of the root that scipy finds. Kills: a bracket on one side only, a chord in the wrong scale."""
    counted = 0

    def rise(rho: float) -> float:
        nonlocal counted
        counted += 1
        if rho > 40:
            raise LossError("too far")  # as averages do where no point has a finite loss
        return math.expm1(min(0.7 * rho**power, 600))

    expected = brentq(lambda rho: math.expm1(min(0.7 * rho**power, 600)) - 0.25, 1e-9, 1e3, xtol=1e-12)
    found = radius_of_rise(rise, 0.25, start)
    assert math.expm1(0.7 * found**power) == pytest.approx(0.25, rel=0.03)
    assert found == pytest.approx(expected, rel=0.03)
    assert found == float(f"{found:.3g}")
    assert counted <= 20


def test_a_rise_that_is_never_reached() -> None:
    with pytest.raises(ArgumentError, match="expected a radius where the rise reaches 2, got a rise of 1 at"):
        radius_of_rise(lambda rho: min(rho, 1.0), 2.0, 0.1)


def test_the_mean_rise_of_the_chosen_checkpoints_is_the_level(tmp_path: Path) -> None:
    """Measured again by the library itself. Kills: a maximum for the mean, one checkpoint for three."""
    write_zoo(tmp_path, 7)
    rule = {"measure": "worst-case", "geometry": "euclidean", "rho": {"rise": [0.4, 0.1], "checkpoints": 3}}
    table = run_study(settings(tmp_path, measures=[rule]))
    chosen = table.facts["radii"]
    assert [c["rise"] for c in chosen] == [0.4, 0.1]
    assert chosen[0]["checkpoints"] == ["run-1", "run-3", "run-5"]
    assert [n for n in table.complexity if "@" in n] == [
        f"worst-case-euclidean@{rho:g}" for rho in sorted(c["rho"] for c in chosen)
    ]
    for c in chosen:
        rises = [
            sl.worst_case(
                sl.Problem(load_checkpoint(tmp_path / "runs" / f"{name}.safetensors", network),
                           load_data(tmp_path / "train.npz", 6)),
                sl.Euclidean(), c["rho"],
            ).value
            for name in c["checkpoints"]
        ]  # fmt: skip
        assert np.mean(rises) == pytest.approx(c["rise"], rel=0.02)
        assert c["each"] == pytest.approx(rises, rel=1e-6)


def test_chosen_once_then_fixed(tmp_path: Path) -> None:
    """A zoo that grows keeps its radii; other data choose anew. Kills: columns that move while a zoo is trained."""
    write_zoo(tmp_path, 3)
    rule = {"measure": "adaptive", "rho": {"rise": 0.2, "checkpoints": 2}}
    first = run_study(settings(tmp_path, measures=[rule]))
    for i in (3, 4):
        save_file({n: 3 * w for n, w in weights(i).items()}, tmp_path / "runs" / f"run-{i}.safetensors")
    config = settings(tmp_path, measures=[rule])
    config["zoo"]["partial"] = True
    (tmp_path / "runs.csv").write_text("name,lr\n" + "".join(f"run-{i},1\n" for i in range(5)))
    grown = run_study(config)
    assert list(grown.complexity) == list(first.complexity)
    assert grown.facts["radii"] == first.facts["radii"]
    config["data"] = {**config["data"], "train": str(tmp_path / "shifted.npz")}
    assert run_study(config).facts["radii"] != first.facts["radii"]
    with Store(tmp_path / "study.db") as store:
        assert len(store._rows("SELECT * FROM radii")) == 2


def test_checkpoints_that_cannot_be_measured_choose_nothing(tmp_path: Path) -> None:
    write_zoo(tmp_path, 3)
    (tmp_path / "runs" / "run-0.safetensors").write_bytes(b"damaged")
    rule = {"measure": "adaptive", "rho": {"rise": 0.2, "checkpoints": 2}}
    table = run_study(settings(tmp_path, measures=[rule]))
    assert table.facts["radii"][0]["checkpoints"] == ["run-2", "run-1"]
    for i in (1, 2):
        (tmp_path / "runs" / f"run-{i}.safetensors").write_bytes(b"damaged")
    with pytest.raises(ArgumentError, match=r"adaptive: .* a checkpoint to choose radii on, but none can be measured"):
        run_study(settings(tmp_path, measures=[rule], batches={"size": 5}))


def test_a_level_out_of_reach_names_the_measure(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    rule = {"measure": "average-case", "samples": 2, "rho": {"rise": 1e30}}
    with pytest.raises(ArgumentError, match=r"average-case: choosing the radius of a mean rise of 1e\+30 failed"):
        run_study(settings(tmp_path, measures=[rule]))
