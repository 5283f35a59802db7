"""``spiritlevel doctor``: what is there, what is broken, and a self-test that can fail."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from spiritlevel import cli
from spiritlevel.doctor import Diagnosis, machine, packages, self_test
from spiritlevel.doctor.packages import GIVES, Package
from spiritlevel.doctor.self_test import CHECKS, Check
from spiritlevel.doctor.versions import Requirement, within
from spiritlevel.errors import StoreError
from spiritlevel.study import Store

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def checks() -> tuple[Check, ...]:
    before = torch.random.get_rng_state()
    found = self_test.self_test()
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's random numbers go on
    return found


def test_a_sound_machine_passes_within_ten_seconds(checks: tuple[Check, ...]) -> None:
    assert [c.state for c in checks] == ["ok"] * len(CHECKS), checks
    began = time.process_time()
    self_test.self_test()
    assert time.process_time() - began < 10


def one(name: str) -> Check:
    return self_test._tried(name, CHECKS[name])


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a check against our own number, which a wrong radius or metric would change alike."""
    right = self_test.geodesic_sharpness
    monkeypatch.setattr(self_test, "geodesic_sharpness", lambda p, rho, **k: right(p, rho * 1.00001, **k))
    check = one("geodesic sharpness of attention, value")
    assert check.state == "failed"
    assert re.search(r"ArithmeticError: expected 0\.\d+ \(by hand\), got 0\.\d+: .* apart", check.detail)


def test_a_value_that_changes_along_the_orbit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: geodesic sharpness that is another one in disguise."""
    monkeypatch.setattr(
        self_test, "geodesic_sharpness", lambda p, rho: self_test.worst_case(p, self_test.Euclidean(), rho)
    )
    assert "before the move" in one("geodesic sharpness, invariance").detail


def test_a_move_that_moves_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an invariance that holds because nothing was changed."""
    monkeypatch.setattr(self_test, "move_along_orbit", lambda model, *_, **__: model.state_dict())
    assert "expected the move to change Euclidean sharpness" in one("geodesic sharpness, invariance").detail


@pytest.mark.parametrize(
    ("wrong", "match"), [("skew", "expected a symmetric Hessian"), ("double", "differences of grad")]
)
def test_wrong_hessian_products_are_found(monkeypatch: pytest.MonkeyPatch, wrong: str, match: str) -> None:
    right = self_test.hessian_operator

    class Wrong:
        def __init__(self, *args: Any) -> None:
            self.operator = right(*args)
            self.dimension = self.operator.dimension

        def apply(self, vectors: torch.Tensor) -> torch.Tensor:
            out = self.operator.apply(vectors)
            return 2 * out if wrong == "double" else out + 1e-6 * vectors.roll(1, -1)

    monkeypatch.setattr(self_test, "hessian_operator", Wrong)
    check = one("Hessian products")
    assert check.state == "failed"
    assert match in check.detail


def test_a_store_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "write", lambda *_: None)
    assert "expected 1/3 to be read as it was written" in one("store").detail
    monkeypatch.setattr(Store, "plan", _full)
    check = one("store")
    assert (check.state, check.detail) == ("failed", "StoreError: the disk is full")


def _full(*_: Any) -> None:
    raise StoreError("the disk is full")


def test_without_matplotlib_no_figure_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    check = one("figures")
    assert check.state == "skipped"
    assert "pip install 'spiritlevel[figures]'" in check.detail


def test_an_empty_figure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = pytest.importorskip("matplotlib.axes")
    monkeypatch.setattr(axes.Axes, "draw", lambda *_: None)
    assert "expected a line on paper" in one("figures").detail


# ----------------------------------------------------------------------------------------------------------- packages


def test_every_extra_for_users_is_explained() -> None:
    """Kills: a new extra that the doctor does not know."""
    assert set(GIVES) == set(PROJECT["optional-dependencies"]) - {"dev", "all"}


def test_requirements_are_read() -> None:
    lines = {
        "torch>=2.4": ("torch", ">=2.4", "", ()),
        "PyYAML>=6.0; extra == 'study'": ("pyyaml", ">=6.0", "study", ()),
        'scikit_learn (>=1.4,<2) ; python_version > "3.10" and extra == "demo"': (
            "scikit-learn",
            ">=1.4,<2",
            "demo",
            (),
        ),
        'spiritlevel[study, data]; extra == "demo"': ("spiritlevel", "", "demo", ("study", "data")),
        "rich": ("rich", "", "", ()),
    }
    for line, expected in lines.items():
        assert Requirement.read(line) == Requirement(*expected)
    for dependency in PROJECT["dependencies"]:
        assert Requirement.read(dependency).range.startswith(">=")


@pytest.mark.parametrize(
    ("version", "stated", "holds"),
    [
        ("2.4", ">=2.4", True), ("2.4.0", ">=2.4", True), ("2.10", ">=2.9", True), ("2.3.9", ">=2.4", False),
        ("2.13.0+cpu", ">=2.4,<3", True), ("3", ">=2.4,<3", False), ("3.0.1", "<=3.0", False), ("1.2", "==1.2.0", True),
        ("1.2.5", "!=1.2.5", False), ("1.5", "~=1.4", True), ("2.0", "~=1.4", False), ("1.3", "~=1.4", False),
        ("2.0.dev3", ">1.9", True), ("1.9", ">1.9", False), ("unknown", ">=9", True), ("v7", ">=6", True),
        ("1", "", True),
    ],
)  # fmt: skip
def test_versions_in_a_range(version: str, stated: str, holds: bool) -> None:
    assert within(version, stated) is holds


def test_states_of_a_package() -> None:
    states = [Package("x", ">=2", *rest).state for rest in ((None,), ("2.1",), ("1.9",), ("2.1", (), "it raised"))]
    assert states == ["missing", "ok", "out of range", "broken"]


_PACKAGES = {
    "sound_one": 'print(\'["sound_two", "a lie of another package"\', flush=True)',
    "raises_on_import": "raise RuntimeError('built for another machine')",
    "leaves_on_import": "import sys; sys.exit('no licence')",
    "kills_on_import": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs_on_import": "import time; time.sleep(1000)",
    "sound_two": "",
}


def test_broken_packages_are_reported_and_the_rest_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a doctor that dies of what it examines."""
    for name, code in _PACKAGES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(packages, "_PATIENCE", 3.0)
    assert packages._errors(list(_PACKAGES)) == {
        "sound_one": None,
        "raises_on_import": "RuntimeError: built for another machine",
        "leaves_on_import": "SystemExit: no licence",
        "kills_on_import": "its import ended the process (-11)",
        "hangs_on_import": "its import did not end within 3 s",
        "sound_two": None,
    }


def test_packages_by_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: versions, ranges and extras mixed up; a package that an extra and everything needs called optional."""
    (tmp_path / "brokenpack.py").write_text("raise ValueError('torn')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    lines = ["numpy>=1.26", "rich>=99", "brokenpack; extra == 'ray'", "nowhere>=3; extra == 'study'",
             "pyyaml>=6; extra == 'study'", "pyyaml>=6; extra == 'demo'", "numpy>=1.26; extra == 'demo'",
             "pytest>=8; extra == 'dev'", "spiritlevel[study]; extra == 'demo'"]  # fmt: skip
    version = metadata.version
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    monkeypatch.setattr(metadata, "version", lambda name: "1.0" if name == "brokenpack" else version(name))
    found = {p.name: p for p in packages.packages()}
    assert {n: (p.state, p.extras) for n, p in found.items()} == {
        "numpy": ("ok", ()),
        "rich": ("out of range", ()),
        "brokenpack": ("broken", ("ray",)),
        "nowhere": ("missing", ("study",)),
        "pyyaml": ("ok", ("study", "demo")),
    }
    assert found["brokenpack"].error == "ValueError: torn"
    diagnosis = Diagnosis({}, machine.machine(), (), tuple(found.values()), ())
    assert diagnosis.missing == {e: GIVES[e] for e in ("study", "ray")}
    shown = str(diagnosis)
    assert "broken: ValueError: torn" in shown
    assert "pip install 'spiritlevel[ray]' gives: studies on a cluster (engine: ray)" in shown
    assert diagnosis.healthy  # what is optional makes nobody ill


def test_metadata_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", gone)
    assert packages.packages() == ()
    assert "run from its sources" in str(Diagnosis({}, machine.machine(), (), (), ()))
    monkeypatch.setattr(metadata, "version", _torn)
    assert packages._version("numpy") == "unknown"


def _torn(name: str) -> str:
    raise KeyError("Version")


# ------------------------------------------------------------------------------------------------------------ machine


def test_this_machine() -> None:
    found = machine.machine()
    assert found.threads == torch.get_num_threads()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory is None or 0 < (found.available or 1) <= found.memory
    cpu = machine.devices()[0]
    assert cpu.name == "cpu"
    assert {"float64", "float32"} <= set(cpu.precisions)
    assert machine._precisions("nothing") == ()


def test_folders_that_can_and_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert machine._folder("x", tmp_path / "new" / "deep").error is None
    assert not (tmp_path / "new").exists()
    assert machine._folder("x", tmp_path / "file").error == "Not a directory"


def test_devices_with_a_driver_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [d.name for d in machine.devices()] == ["cpu"]


# ------------------------------------------------------------------------------------------------------- command line


def test_json_and_words(checks: tuple[Check, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Kills: JSON with other lines in it, an exit code that does not follow the self-test."""
    bad = Check("a check", "failed", "ArithmeticError: expected 1, got 2", 0.1)
    for found, code in ((checks, 0), ((*checks, bad), 1)):
        diagnosis = Diagnosis(
            {"spiritlevel": "1"}, machine.machine(), machine.devices(), (Package("x", "", None, ("ray",)),), found
        )
        monkeypatch.setattr(cli, "examine", lambda d=diagnosis: d)
        assert cli.main(["doctor", "--json"]) == code
        content = json.loads(capsys.readouterr().out)
        assert content["healthy"] is (code == 0)
        assert len(content["self-test"]) == len(found)
        assert content["packages"][0]["state"] == "missing"
        assert content["missing extras"] == {"ray": GIVES["ray"]}
        assert content["devices"][0]["name"] == "cpu"
        assert cli.main(["doctor"]) == code
        shown = capsys.readouterr().out
        assert ("All is well." in shown) is (code == 0)
        assert ("cannot be trusted" in shown) is (code == 1)
    assert cli.main(["doctor", "--everything"]) == 2


@pytest.mark.slow
def test_the_whole_command() -> None:
    """Kills: a doctor that says something else on standard output, or leaves the machine's packages out."""
    done = subprocess.run(
        [sys.executable, "-m", "spiritlevel", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    content = json.loads(done.stdout)
    assert done.returncode == 0, content["self-test"]
    states = {p["name"]: p["state"] for p in content["packages"]}
    assert states["torch"] == states["numpy"] == states["matplotlib"] == "ok"
