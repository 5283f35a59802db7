"""Options of a study's measures that only some of them have: norms, symmetries, curvature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from conftest import build_vit
from spiritlevel.errors import ConfigError
from spiritlevel.study import StudyConfig, run_study
from spiritlevel.study.config import config_of
from spiritlevel.study.ensemble import Ensemble, gradient_norms
from spiritlevel.study.jobs import measure_settings
from spiritlevel.study.session import Session
from zoos import settings, write_vits, write_zoo


def study(measure: dict[str, Any]) -> StudyConfig:
    return config_of({"zoo": {"checkpoints": "x"}, "data": {"train": "y"}, "measures": [measure]})


def test_geometries_take_symmetries_norm_and_relaxation() -> None:
    # Kills: an option that is read and then dropped.
    geometry = {"kind": "quotient", "symmetries": ["attention", "norm"], "relaxation": 0.1}
    space = study({"measure": "geodesic", "geometry": geometry}).measures[0].space
    assert space == sl.Quotient(kinds=("attention", "norm"), relaxation=0.1)
    geometry = {"kind": "quotient", "symmetries": "all", "norm": "elementwise", "curve": "second_order"}
    space = study({"measure": "geodesic", "geometry": geometry}).measures[0].space
    assert space == sl.Quotient(curve="second_order", kinds="all", norm="elementwise")


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ({"measure": "worst-case", "geometry": {"kind": "euclidean", "relaxation": 0.1}}, "got relaxation for euclid"),
        ({"measure": "geodesic", "geometry": {"kind": "quotient", "symmetries": ["nothing"]}}, "kind of symmetry"),
        (
            {"measure": "geodesic", "geometry": {"kind": "quotient", "metric": "cross_gram", "relaxation": 0.1}},
            "expected relaxation with the norm of inverse_gram",
        ),
        ({"measure": "geodesic", "curvature": {"alpha": 2}}, "expected curvature for measures of curvature"),
        ({"measure": "renyi", "curvature": {"alpha": -2}}, "curvature.alpha"),
        ({"measure": "renyi", "curvature": {"alphas": 2}}, "expected a setting of this place"),
    ],
)
def test_wrong_options_are_refused(measure: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        study(measure)


def test_curvature_options_reach_the_measure_and_its_settings_hash(tmp_path: Path) -> None:
    # Kills: options that change the number and not its key in the store, or the key and not the number.
    write_zoo(tmp_path, 2)
    measures = [
        {"measure": "hessian-trace", "name": "plain", "geometry": "euclidean", "curvature": {"vectors": 2}},
        {
            "measure": "hessian-trace",
            "name": "gauss",
            "geometry": "euclidean",
            "curvature": {"vectors": 2, "matrix": "gauss_newton"},
        },
    ]
    plain = settings(tmp_path, measures=measures)
    table = run_study(plain, show_progress=False)
    config = config_of(plain)
    kept = [measure_settings(Session(config), m) for m in config.measures]
    assert kept[0] != kept[1]
    assert "curvature" not in measure_settings(Session(config), study({"measure": "hessian-trace"}).measures[0])
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    from safetensors.torch import load_file

    model.load_state_dict(load_file(tmp_path / "runs/run-0.safetensors"))
    problem = Session(config).problem(model, Session(config).sets["measured"])
    for name, matrix in (("plain", "hessian"), ("gauss", "gauss_newton")):
        direct = sl.hessian_trace(problem, sl.Euclidean(), samples=2, matrix=matrix, seed=0)  # type: ignore[arg-type]
        assert table.complexity[name][0] == pytest.approx(direct.value, rel=1e-6)
    assert table.complexity["plain"][0] != pytest.approx(table.complexity["gauss"][0], rel=1e-3)


@pytest.mark.parametrize(
    "geometry",
    [sl.Quotient(relaxation=0.5), sl.Quotient(norm="elementwise"), sl.Quotient(kinds=("attention", "lora"))],
    ids=str,
)
def test_a_stack_of_networks_keeps_norm_and_relaxation(geometry: sl.Quotient) -> None:
    # Kills: a stacked chart of the plain quotient.
    models = [build_vit(seed=i) for i in range(2)]
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 1, 8, 8, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]))]
    together = gradient_norms(Ensemble(models, batches), geometry)
    for model, found in zip(models, together, strict=True):
        assert found.value == pytest.approx(sl.gradient_norm(sl.Problem(model, batches), geometry).value, rel=1e-8)
    plain = gradient_norms(Ensemble(models, batches), sl.Quotient())[0].value
    assert (together[0].value != pytest.approx(plain, rel=1e-3)) is (geometry.kinds is None)


def test_measures_of_a_study_keep_the_options(tmp_path: Path) -> None:
    # Kills: norm, relaxation or kinds that are read and then forgotten.
    plain = write_vits(tmp_path, 2)
    options: dict[str, dict[str, Any]] = {
        "plain": {}, "relaxed": {"relaxation": 0.5}, "normless": {"norm": "euclidean"},
        "more": {"symmetries": ["attention", "norm"]},
    }  # fmt: skip
    plain["measures"] = [
        {"measure": "average-case", "name": name, "geometry": {"kind": "quotient", **own}, "rho": 0.1, "samples": 4}
        for name, own in options.items()
    ]
    table = run_study(plain, show_progress=False)
    assert not table.failures
    values = {name: table.complexity[f"{name}@0.1"] for name in options}
    assert len({f"{v[0]:.6g}" for v in values.values()}) == 4
    config = config_of(plain)
    session = Session(config)
    model = __import__("transformers").ViTForImageClassification.from_pretrained(tmp_path / "vits" / "vit-0").eval()
    torch.manual_seed(0)
    problem = session.problem(model, session.sets["measured"])
    for measure in config.measures:
        assert measure.space is not None
        direct = sl.average_case(problem, measure.space, 0.1, 4, 0)
        assert values[measure.name][0] == pytest.approx(direct.value, rel=1e-4)
