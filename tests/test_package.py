"""The package as a whole: curated names, quiet progress, and the layers' promises."""

import importlib
import pkgutil
import time

import pytest

import spiritlevel as sl
from spiritlevel.core import progress as bars
from spiritlevel.core.registry import Registry
from spiritlevel.errors import ArgumentError

FIXED = [
    *("Problem", "find_symmetries", "verify_symmetries", "move_along_orbit"),
    *("Euclidean", "Elementwise", "Diagonal", "Quotient"),
    *("worst_case", "average_case", "gradient_norm", "adaptive_sharpness", "geodesic_sharpness", "solvers"),
]


def modules() -> list[str]:
    return [
        "spiritlevel",
        *(m.name for m in pkgutil.walk_packages(sl.__path__, "spiritlevel.") if "__main__" not in m.name),
    ]


@pytest.mark.parametrize("name", modules())
def test_public_names_are_sorted_and_exist(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert list(names) == sorted(names, key=lambda n: (not n.isupper(), n[0].islower(), n))
    assert all(hasattr(module, n) for n in names)
    assert module.__doc__


def test_the_fixed_names_are_there() -> None:
    assert set(FIXED) <= set(sl.__all__)
    assert {"AutoPGD", "SphereAscent"} <= set(sl.solvers.__all__)
    assert {"Reparametrisation", "Scaling", "WeightNorm", "carried", "reparametrised"} <= set(sl.reparam.__all__)


def test_progress_is_quiet_where_nobody_looks(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "_DELAY", 0.0)
    with bars.progress("work", 3) as advance:
        for _ in range(3):
            advance()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("delay", "seen"), [(0.0, True), (60.0, False)])
def test_progress_shows_long_work_only(
    delay: float, seen: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a bar for a blink of work; a bar on standard output, where JSON goes."""
    monkeypatch.setattr(bars, "_DELAY", delay)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with bars.progress("measuring", 4, show=True) as advance:
        for i in range(4):
            advance(f"rho {i}")
            time.sleep(0.15)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("measuring" in err) is seen


def test_registries_refuse_doubles_and_name_what_they_have() -> None:
    shapes: Registry[int] = Registry("shape")
    shapes.register("square")(4)
    with pytest.raises(ArgumentError, match="new shape name, got 'square'"):
        shapes.register("square")(5)
    with pytest.raises(ArgumentError, match="shape out of square; got 'circle'"):
        shapes["circle"]
    assert "square" in shapes
    assert "circle" not in shapes
    assert len(shapes) == 1
