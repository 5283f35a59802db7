"""The command line: what a user types, what comes out, and with which exit code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import spiritlevel as sl
from spiritlevel.cli import main
from test_files import save, tiny_vit


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 1, 4, 4, generator=g), torch.tensor([0, 1, 2, 0, 1, 2])
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    return str(save(tmp_path / "vit")), str(tmp_path / "data.npz")


def test_measure_as_json_is_what_the_library_says(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The issue's own command line: several radii in a row."""
    checkpoint, data = files
    line = ["measure", checkpoint, "--data", data, "--measure", "geodesic", "--rho", "0.05", "0.1", "0.2", "--json"]
    assert main(line) == 0
    out = json.loads(capsys.readouterr().out)
    with np.load(data) as content:
        batch = (torch.from_numpy(content["x"]), torch.from_numpy(content["y"]))
    curve = sl.geodesic_sharpness(sl.Problem(tiny_vit().eval(), [batch]), [0.05, 0.1, 0.2])
    assert [m["settings"]["rho"] for m in out["measurements"]] == [0.05, 0.1, 0.2]
    assert [m["value"] for m in out["measurements"]] == pytest.approx(curve.values, rel=1e-5)
    assert out["spiritlevel"] == sl.__version__


def test_several_measures_and_commas(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, data = files
    line = [
        "measure",
        checkpoint,
        "--data",
        data,
        "--measure",
        "adaptive,gradient-norm",
        "average-case",
        "adaptive-linf",
    ]
    assert main([*line, "--rho=0.1", "--samples", "2", "--batch-size", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["measurements"]
    assert [m["measure"] for m in found] == ["adaptive", "gradient-norm", "average-case", "adaptive-linf"]
    assert all(len(m["per_batch"]) == 2 for m in found)


def test_tables(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, data = files
    assert main(["measure", checkpoint, "--data", data, "--rho", "0.05", "0.1", "--steps", "3"]) == 0
    text = capsys.readouterr().out
    assert "geodesic sharpness" in text
    assert "0.05" in text
    assert (
        main(
            [
                "measure",
                checkpoint,
                "--data",
                data,
                "--measure",
                "worst-case",
                "--geometry",
                "euclidean",
                "--rho",
                "0.1",
            ]
        )
        == 0
    )
    assert "Euclidean()" in capsys.readouterr().out


def test_solver_and_metric_are_passed_on(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: options that are parsed and dropped."""
    checkpoint, data = files
    line = [
        "measure",
        checkpoint,
        "--data",
        data,
        "--rho",
        "0.01",
        "--solver",
        "autopgd",
        "--steps",
        "4",
        "--seed",
        "7",
    ]
    assert main([*line, "--metric", "cross_gram", "--curve", "second_order", "--normalize-logits", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["measurements"][0]["settings"]
    assert "AutoPGD(steps=4" in settings["solver"]
    assert "cross_gram" in settings["geometry"]
    assert "second_order" in settings["geometry"]
    assert "normalize_logits=True" in settings["loss"]
    assert settings["seed"] == 7


def test_symmetries_of_all_kinds_on_data_with_a_page(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With data all kinds are found and tested; the page stands alone and escapes what it shows."""
    checkpoint, data = files
    target = tmp_path / "page.html"
    assert main(["symmetries", checkpoint, "--data", data, "--html", str(target)]) == 0
    text = capsys.readouterr().out
    assert "Hold on data" in text
    assert "Redundancy by layer" in text
    html = target.read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")
    assert main(["symmetries", checkpoint, "--data", data, "--kinds", "norm", "attention", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {b["kind"] for b in found["blocks"]} == {"norm", "attention"}
    assert found["certificate"]["holds"] is True
    assert main(["symmetries", checkpoint, "--kinds", "norm"]) == 2
    assert "expected batch= for the kinds norm" in capsys.readouterr().err
    assert main(["symmetries", checkpoint, "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_names_on_a_page_are_escaped() -> None:
    """Kills: a module called <script>."""
    from spiritlevel.symmetry import page

    hostile = sl.Symmetries((), (sl.Leftover(("<script>alert(1)</script>",), "<b>&"),), 1, {}, {"<i>": "<u>"})
    html = page(hostile, title="<title>")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;&amp;" in html
    assert "&lt;i&gt;" in html


def test_symmetries(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["symmetries", files[0]]) == 0
    assert "GL(4)^2" in capsys.readouterr().out
    assert main(["symmetries", files[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["redundant"] == 64


def test_kinds_of_symmetry_are_quotiented(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: an option that does not arrive; the dimension falls by that of the further groups."""
    line = ["measure", files[0], "--data", files[1], "--measure", "gradient-norm", "--json"]
    found = []
    for more in ([], ["--kinds", "all"], ["--kinds", "attention", "norm"]):
        assert main([*line, *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["measurements"][0]["settings"]["dimension"])
    assert found[0] > found[2] > found[1]
    assert main([*line, "--kinds", "nothing"]) == 2
    assert "expected kinds out of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"checkpoint": "nowhere"}, 1, "got nothing at nowhere"),
        ({"data": "nowhere.npz"}, 1, "got nothing at nowhere.npz"),
        ({"rho": "-1"}, 2, "radius"),
        ({"rho": "nan"}, 2, "radius"),
        ({"rho": "abc"}, 2, "--rho"),
        ({"measure": "beauty"}, 2, "beauty"),
        ({"geometry": "flat"}, 2, "geometry out of"),
        ({"solver": "magic"}, 2, "solver out of"),
        ({"device": "toaster"}, 2, "toaster"),
        ({"steps": "0"}, 2, "steps"),
        ({"samples": "3", "measure": "average-case"}, 2, "even number of samples"),
    ],
)
def test_exit_codes(
    files: tuple[str, str], change: dict[str, str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"checkpoint": files[0], "data": files[1], "rho": "0.1", **change}
    line = ["measure", options.pop("checkpoint")]
    for name, value in options.items():
        line += [f"--{name}", value]
    assert main(line) == code
    captured = capsys.readouterr()
    assert words in " ".join(captured.err.split())
    assert captured.out == ""


def test_help_version_and_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert sl.__version__ in capsys.readouterr().out
    assert main(["measure", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("--rho", "--data", "--measure", "geodesic", "--json"):
        assert word in text
    assert main(["measure"]) == 2


def test_labels_the_model_does_not_have(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "wrong.npz", x=np.zeros((2, 1, 4, 4), dtype=np.float32), y=np.array([0, 7]))
    assert main(["measure", files[0], "--data", str(tmp_path / "wrong.npz"), "--rho", "0.1"]) == 1
    assert "labels from 0 to 2" in " ".join(capsys.readouterr().err.split())


def test_curvature_measures_with_options_and_figures(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The issue's own command line. Kills: an option that does not arrive."""
    checkpoint, data = files
    line = ["measure", checkpoint, "--data", data, "--measure", "hessian-trace,hessian-top,density,renyi", "--json"]
    line += ["--vectors", "12", "--tolerance", "0.001", "--lanczos-steps", "4", "--probes", "2", "--alpha", "0.5"]
    line += ["--eigenvalues", "2", "--per", "block", "--matrix", "gauss_newton", "--figures", str(tmp_path / "new")]
    assert main(line) == 0
    found = {m["measure"]: m for m in json.loads(capsys.readouterr().out)["measurements"]}
    assert list(found) == ["hessian-trace", "hessian-top", "density", "renyi"]
    assert all(m["settings"]["matrix"] == "gauss_newton" for m in found.values())
    assert all("Quotient" in m["settings"]["geometry"] and m["layers"] for m in found.values())
    assert found["hessian-trace"]["settings"]["samples"] == 12
    assert len(found["hessian-top"]["eigenvalues"]) == 2
    assert found["density"]["stats"]["products"] == 4 * 2 * (1 + len(found["density"]["layers"]))
    assert found["renyi"]["settings"]["alpha"] == 0.5
    with np.load(data) as content:
        batch = (torch.from_numpy(content["x"]), torch.from_numpy(content["y"]))
    problem = sl.Problem(tiny_vit().eval(), [batch])
    top = sl.hessian_eigenvalues(problem, sl.Quotient(), 2, tolerance=0.001, matrix="gauss_newton")
    assert found["hessian-top"]["eigenvalues"] == pytest.approx(top.eigenvalues, rel=1e-4)
    written = sorted(p.name for p in (tmp_path / "new").iterdir())
    assert written == ["density.png", "hessian-top.png", "hessian-trace.png", "renyi.png"]
    assert all((tmp_path / "new" / n).stat().st_size > 5000 for n in written)


def test_every_curvature_measure_has_a_name_and_prints(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    checkpoint, data = files
    names = list(sl.measures.CURVATURE)
    line = ["measure", checkpoint, "--data", data, "--measure", ",".join(names), "--vectors", "4", "--seconds", "60"]
    line += ["--lanczos-steps", "3", "--probes", "2", "--geometry", "euclidean", "--figures", str(tmp_path)]
    assert main(line) == 0
    text = capsys.readouterr().out
    assert "Rényi sharpness" in text
    assert "wrote" in text
    assert not (tmp_path / "hessian-trace.png").exists()  # one number: nothing to draw


def test_curvature_options_out_of_range(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    checkpoint, data = files
    line = ["measure", checkpoint, "--data", data, "--measure"]
    assert main([*line, "renyi", "--alpha", "1"]) == 2
    assert "order alpha" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main([*line, "density", "--lanczos-steps", "2", "--figures", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
