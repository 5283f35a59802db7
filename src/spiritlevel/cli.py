"""The command line: parse, call one library function, print.

Exit codes: 0 done, 1 the work failed, 2 wrong usage.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import spiritlevel
from spiritlevel.core.launched import device_of_rank, speaks
from spiritlevel.core.results import Curve, Measurement
from spiritlevel.demo import run_demo
from spiritlevel.doctor import examine
from spiritlevel.errors import ArgumentError, SpiritlevelError
from spiritlevel.experiments import EXPERIMENTS
from spiritlevel.geometry import GEOMETRIES, Elementwise, Euclidean, Geometry, Quotient
from spiritlevel.measures import MEASURES, CurvatureOptions, LayeredMeasurement, Options, PerLayer, by_block
from spiritlevel.monitor import LogView, follow, read_log
from spiritlevel.problem import Problem, problem_of_command
from spiritlevel.solvers import SOLVERS
from spiritlevel.study import Store, StudyTable, load_checkpoint, load_data
from spiritlevel.study.commands import study_app
from spiritlevel.study.exchange import read_table
from spiritlevel.study.report import StudyReport
from spiritlevel.study.report import report as report_of
from spiritlevel.study.report.training import TrainingReport, training_report
from spiritlevel.study.statistics import Settings
from spiritlevel.symmetry import KINDS, LayerMap, certify, find_symmetries, page

__all__ = ["app", "main"]

app = typer.Typer(
    name="spiritlevel",
    help="Measure how flat a trained network's loss is, without being fooled by the symmetries of its weights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(study_app, name="study")
_out = Console()


_LISTED = ("--kinds", "--rho", "--measure")


def _spread(arguments: list[str]) -> list[str]:
    """Let options take several values in a row: ``--rho 0.05 0.1`` is ``--rho 0.05 --rho 0.1``, commas likewise.

    >>> _spread(["here", "--rho", "0.1", "0.2", "--measure=geodesic,adaptive", "--json"])
    ['here', '--rho', '0.1', '--rho', '0.2', '--measure', 'geodesic', '--measure', 'adaptive', '--json']
    """
    spread: list[str] = []
    option, fresh = "", False
    for arg in arguments:
        name, equals, value = arg.partition("=")
        if name in _LISTED and equals:
            option, fresh = name, False
            spread += [x for part in value.split(",") for x in (name, part)]
        elif option and (fresh or _belongs(option, arg)) and not arg.startswith("--"):
            spread += [x for part in arg.split(",") for x in (option, part)]
            fresh = False
        else:
            spread += [option] if fresh else []  # nothing came after it: typer says what is missing
            option, fresh = (arg, True) if arg in _LISTED else ("", False)
            spread += [] if fresh else [arg]
    return [*spread, option] if fresh else spread


def _belongs(option: str, arg: str) -> bool:
    """Whether a further argument is one more value of a list option."""
    known = {"--measure": set(MEASURES), "--kinds": {"all", *KINDS}}
    if option in known:
        return all(part.partition("@")[0] in known[option] for part in arg.split(","))  # geodesic@0.1 in a study
    try:
        [float(part) for part in arg.split(",")]
    except ValueError:
        return False
    return True


class _Metric(StrEnum):
    inverse_gram = "inverse_gram"
    cross_gram = "cross_gram"


class _Matrix(StrEnum):
    hessian = "hessian"
    gauss_newton = "gauss_newton"
    fisher = "fisher"
    empirical_fisher = "empirical_fisher"


class _Per(StrEnum):
    whole = "whole"
    layer = "layer"
    block = "block"


class _Estimator(StrEnum):
    hutchinson = "hutchinson"
    hutch_pp = "hutch++"
    xtrace = "xtrace"


class _Curve(StrEnum):
    exact = "exact"
    second_order = "second_order"
    first_order = "first_order"


_LAYERS: dict[str, PerLayer] = {"whole": False, "layer": True, "block": by_block}


def _curved(text: str, least: float | None = None) -> Any:
    """An option that only measures of curvature take."""
    return typer.Option(help=text, min=least, rich_help_panel="Curvature")


def _shared(text: str, least: float | None = None) -> Any:
    """An option for several processes."""
    return typer.Option(help=text, min=least, rich_help_panel="Under torchrun")


_Checkpoint = Annotated[
    Path,
    typer.Argument(
        help="A local Hugging Face folder (safetensors), the folder of a PEFT adapter, or a file of weights with "
        "--builder."
    ),
]
_Builder = Annotated[
    str | None,
    typer.Option(help="package.module:function that returns the model for a file of weights. Your code runs."),
]
_Base = Annotated[
    Path | None,
    typer.Option(help="Local folder of an adapter's base model. Default: the one its configuration names."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        _out.print(f"spiritlevel {spiritlevel.__version__}")
        raise typer.Exit


@app.command()
def measure(
    checkpoint: _Checkpoint,
    data: Annotated[
        str,
        typer.Option(
            help="Training data: .npz, .safetensors or .parquet with one array per input and one of labels, or "
            "package.module:function (your code runs)."
        ),
    ],
    measure: Annotated[
        list[str],
        typer.Option(help="One or more of: " + "; ".join(f"{n} ({m.summary})" for n, m in MEASURES.items()) + "."),
    ] = ["geodesic"],  # noqa: B006  # typer copies it
    rho: Annotated[
        list[float] | None,
        typer.Option(help="One or more radii, as in --rho 0.05 0.1 0.2. Default: the measure's grid."),
    ] = None,
    geometry: Annotated[
        str, typer.Option(help="For measures without a geometry in their name: quotient, elementwise or euclidean.")
    ] = "quotient",
    metric: Annotated[_Metric, typer.Option(help="Metric of the quotient.")] = _Metric.inverse_gram,
    curve: Annotated[_Curve, typer.Option(help="Curves of the quotient.")] = _Curve.exact,
    kinds: Annotated[
        list[str] | None,
        typer.Option(help=f"Symmetries to quotient by: all, {', '.join(KINDS)}. Default: attention and lora."),
    ] = None,
    solver: Annotated[str, typer.Option(help=f"One of {', '.join(SOLVERS)}.")] = "sphere",
    steps: Annotated[int, typer.Option(min=1, help="Most gradient evaluations per batch and radius.")] = 20,
    samples: Annotated[int, typer.Option(min=2, help="Random points per batch for averages (even).")] = 20,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per batch: the m of m-sharpness.")] = 128,
    examples: Annotated[int | None, typer.Option(min=1, help="Use only the first so many examples.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Most examples in one pass, to save memory.")] = None,
    normalize_logits: Annotated[bool, typer.Option(help="Centre logits and divide them by their norm.")] = False,
    seed: Annotated[int, typer.Option(help="Fixes everything random.")] = 0,
    matrix: Annotated[_Matrix, _curved("Which matrix.")] = _Matrix.hessian,
    per: Annotated[_Per | None, _curved("Also for each layer or block. Default: layers for renyi, else not.")] = None,
    eigenvalues: Annotated[int, _curved("How many eigenvalues.", 1)] = 1,
    estimator: Annotated[_Estimator, _curved("Of the trace.")] = _Estimator.hutchinson,
    vectors: Annotated[int, _curved("Most random vectors for traces, norms and diagonals.", 2)] = 100,
    tolerance: Annotated[float | None, _curved("Wanted relative error of traces, norms and eigenvalues.", 0)] = None,
    lanczos_steps: Annotated[int | None, _curved("For density, logdet, effective-dimension, renyi.", 1)] = None,
    probes: Annotated[int | None, _curved("Random directions for the same.", 1)] = None,
    alpha: Annotated[float, _curved("Order of the Rényi entropy.")] = 1.5,
    damping: Annotated[float, _curved("For logdet and effective-dimension, in units of the curvature.")] = 1.0,
    seconds: Annotated[float | None, _curved("Stop each measure after this time with what it has.")] = None,
    figures: Annotated[Path | None, _curved("Write figures of curvature into this folder.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    sharded: Annotated[bool, _shared("Spread weights and solver vectors over the processes.")] = False,
    rank_timeout: Annotated[float, _shared("Seconds to wait for another process.", 1)] = 300.0,
    builder: _Builder = None,
    base: _Base = None,
    as_json: _Json = False,
) -> None:
    """Measure sharpness of a checkpoint on data; under torchrun by all processes together."""
    unknown = [m for m in measure if m not in MEASURES]
    if unknown:
        raise ArgumentError(f"expected measures out of {', '.join(MEASURES)}; got {', '.join(unknown)}")
    where = _device(device_of_rank(device))
    model, batches = load_checkpoint(checkpoint, builder, base), load_data(data, batch_size, examples)
    first = next(Problem(model, batches).batches()) if kinds else None
    blocks = find_symmetries(model, kinds=_kinds(kinds), batch=first) if kinds else None
    quotient = Quotient(metric.value, curve.value, blocks)
    options = Options(
        rho=tuple(rho or ()),
        geometry=_geometry(geometry, quotient),
        quotient=quotient,
        solver=None if (solver, steps) == ("sphere", 20) else SOLVERS[solver].limited(steps),
        samples=samples,
        seed=seed,
        curvature=CurvatureOptions(
            matrix=matrix.value,
            per_layer=None if per is None else _LAYERS[per.value],
            k=eigenvalues,
            estimator=estimator.value,
            vectors=vectors,
            tolerance=tolerance,
            steps=lanczos_steps,
            probes=probes,
            alpha=alpha,
            damping=damping,
            seconds=seconds,
        ),
    )
    with problem_of_command(
        model,
        batches,
        where,
        sharded=sharded,
        timeout=rank_timeout,
        normalize_logits=normalize_logits,
        micro_batch=micro_batch,
    ) as problem:
        results = [(name, MEASURES[name].run(problem, options)) for name in measure]
    if not speaks():
        return
    drawn = [] if figures is None else _draw(figures, results)
    if as_json:
        _print_json(
            {
                "spiritlevel": spiritlevel.__version__,
                "checkpoint": str(checkpoint),
                "data": data,
                "measurements": [{"measure": name, **m.to_dict()} for name, found in results for m in found],
            }
        )
        return
    for _, found in results:
        _out.print(_shown(found))
    for path in drawn:
        _out.print(f"wrote {path}", highlight=False)


def _kinds(named: list[str]) -> str | list[str]:
    return "all" if "all" in named else named


def _draw(folder: Path, results: list[tuple[str, list[Measurement]]]) -> list[Path]:
    """A file for each measurement that has a figure."""
    written = []
    for name, found in results:
        for m in found:
            if isinstance(m, LayeredMeasurement) and m.drawable:
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    m.figure().savefig(folder / f"{name}.png", dpi=150)
                except OSError as error:
                    raise ArgumentError(
                        f"expected a folder to write to, but {folder} cannot be written: {error}"
                    ) from error
                written.append(folder / f"{name}.png")
    return written


@app.command()
def symmetries(
    checkpoint: _Checkpoint,
    kinds: Annotated[
        list[str] | None,
        typer.Option(help=f"One or more of: all, {', '.join(KINDS)}. Default: attention and lora, or all with --data."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A few examples, as for measure: blocks are tested on them, and all kinds can be found."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the picture as one HTML page to this file.")] = None,
    builder: _Builder = None,
    base: _Base = None,
    as_json: _Json = False,
) -> None:
    """Show what is quotiented in a checkpoint, what is not, and why."""
    model = load_checkpoint(checkpoint, builder, base)
    batch = None if data is None else next(iter(load_data(data, batch_size=4)), None)
    chosen = kinds or (["attention", "lora"] if batch is None else ["all"])
    found = find_symmetries(model, kinds=_kinds(chosen), batch=batch)
    certificate = None if batch is None else certify(model, batch, found)
    if html is not None:
        _write(html, page(found, certificate, f"Weight symmetries of {checkpoint}"))
    if as_json:
        tested = None if certificate is None else certificate.to_dict()
        _print_json({"checkpoint": str(checkpoint), **found.to_dict(), "certificate": tested})
        return
    _out.print(found)
    _out.print(LayerMap.of(found))
    if certificate is not None:
        _out.print(certificate if not certificate.holds else certificate.summary, highlight=False)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"expected a place to write to, but {path} cannot be written: {error}") from error


@app.command()
def report(
    table: Annotated[
        Path,
        typer.Argument(
            help="The store of a study, a table, .csv or .parquet, with columns hp.*, complexity.* and gen.*, or the "
            "log of a monitor, .jsonl."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write page, taus (CSV), all statistics (JSON) and figures into this folder.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page alone to this file.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="What to explain, as in --target test_gap. Default: every gap.")
    ] = None,
    measure: Annotated[list[str] | None, typer.Option(help="Only these measures, as in geodesic@0.1.")] = None,
    figures: Annotated[str, typer.Option(help="Formats of the figures in --out: png, svg, pdf or none.")] = "png,svg",
    title: Annotated[str | None, typer.Option(help="Of the page. Default: the name of the table.")] = None,
    resamples: Annotated[int, typer.Option(min=100, help="Bootstrap resamples and permutations.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Of all intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Fixes resamples and permutations.")] = 0,
    as_json: _Json = False,
) -> None:
    """Say which measure tells generalisation, how surely, and what could fool you: words, statistics, figures, page."""
    formats = tuple(f for f in figures.split(",") if f and f != "none")
    result: StudyReport | TrainingReport
    if table.suffix == ".jsonl":
        result = training_report(read_log(table), title or table.stem)
    else:
        settings = Settings(tuple(target or ()), tuple(measure or ()), resamples, resamples, confidence, seed)
        result = report_of(_study_table(table), settings, title or table.stem)
    written = [] if out is None else result.write(out, formats)
    written += [] if html is None else [result.write_page(html)]
    if as_json:
        _print_json(result.to_dict())
        return
    _out.print(result)
    for path in written:
        _out.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def watch(
    log: Annotated[Path, typer.Argument(help="The log of a monitor, .jsonl, that a training run is writing.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks at the file.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it as it stands, and stop.")] = False,
) -> None:
    """Follow a training run in the terminal until it ends; Ctrl-C stops the view, not the training."""
    if once or not _out.is_terminal:
        _out.print(LogView.of(read_log(log)))
        return
    follow(log, _out, every)


def _study_table(path: Path) -> StudyTable:
    if path.suffix in (".csv", ".parquet"):
        return read_table(path)
    with Store(path) as store:
        return store.table()


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Another zoo, another orbit move.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the report into this folder. Default: beside the networks, in the cache.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what earlier runs trained and measured.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    as_json: _Json = False,
) -> None:
    """Train a zoo of small vision transformers on digits, measure their flatness, and see what it tells.

    Takes minutes the first time and seconds from then on: networks and numbers are kept in the user's cache folder.
    """
    found = run_demo(_out if not as_json else Console(stderr=True), seed=seed, out=out, fresh=fresh, workers=workers)
    if as_json:
        _print_json(found)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; without one they are listed.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Small enough for minutes, or the size that the docs report.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Write data, tables and figures into this folder.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes everything random.")] = 0,
    as_json: _Json = False,
) -> None:
    """Run an experiment of the papers: paper | here | interval | holds?"""
    if name is None:
        table = Table("name", "what it reproduces")
        for each, experiment in EXPERIMENTS.items():
            table.add_row(each, experiment.summary)
        _out.print(table)
        return
    report = EXPERIMENTS[name].run(quick, seed)
    written = [] if out is None else report.write(out)
    if as_json:
        _print_json(report.to_dict())
        return
    _out.print(report)
    for path in written:
        _out.print(f"wrote {path}", highlight=False)


@app.command()
def doctor(as_json: _Json = False) -> None:
    """Say what is installed and works here, what is missing and would give what, and test the numbers (10 seconds)."""
    found = examine()
    if as_json:
        _print_json(found.to_dict())
    else:
        _out.print(found)
    if not found.healthy:
        raise typer.Exit(1)


def _geometry(name: str, quotient: Quotient) -> Geometry:
    known: dict[str, Geometry] = {"quotient": quotient, "elementwise": Elementwise(), "euclidean": Euclidean()}
    if name not in known:
        allowed = ", ".join(n for n in GEOMETRIES if n in known)
        raise ArgumentError(f"expected a geometry out of {allowed}; got {name!r}")
    return known[name]


def _device(name: str) -> Any:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        short = str(error).strip().splitlines()[0]
        raise ArgumentError(f"expected a device that torch can use here, got {name!r}: {short}") from error
    return torch.device(name)


def _shown(found: list[Measurement]) -> Any:
    return found[0] if len(found) == 1 else Curve(tuple(found))


def _print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    errors = Console(stderr=True, soft_wrap=True)
    try:
        app(_spread(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as stop:  # typer's own ending: done, help, or wrong usage
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        errors.print("stopped")
        return 1
    except ArgumentError as error:
        errors.print("wrong usage:", str(error), style="red", markup=False, highlight=False)
        return 2
    except SpiritlevelError as error:
        errors.print("failed:", str(error), style="red", markup=False, highlight=False)
        return 1
    return 0
