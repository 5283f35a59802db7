"""``spiritlevel study ...``: parse, call one library function, print."""

from __future__ import annotations

import json
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spiritlevel.core.launched import speaks
from spiritlevel.core.results import plain
from spiritlevel.errors import ArgumentError
from spiritlevel.study.exchange import read_table, write_table
from spiritlevel.study.pace import Pace, words
from spiritlevel.study.runner import run_study
from spiritlevel.study.settings_file import read_config
from spiritlevel.study.store import Store
from spiritlevel.study.table import StudyTable

__all__ = ["study_app"]

study_app = typer.Typer(help="Measure a whole zoo of checkpoints.", no_args_is_help=True)
_out = Console()
_EVERY = 30.0  # seconds between lines where there is no terminal for a bar
_SHOWN = 10  # failures shown; all are in the table


def _say(text: str, style: str | None = None) -> None:
    """One line as it is: no markup in a user's words, no breaks in a path."""
    _out.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


_Study = Annotated[Path, typer.Argument(help="The study's configuration (.yaml), or its store.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@study_app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a commented example of a configuration."""
    if path.exists() and not force:
        raise ArgumentError(f"expected a new file, but {path} is there already: name another, or --force")
    try:
        path.write_text(files("spiritlevel.study").joinpath("example.yaml").read_text("utf-8"), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"expected a place to write to, but {path} cannot be written: {error}") from error
    _say(f"wrote {path}: fill it in, then spiritlevel study run {path}")


@study_app.command()
def run(
    config: Annotated[Path, typer.Argument(help="The study's configuration (.yaml).")],
    store: Annotated[Path | None, typer.Option(help="The file for the results; default: the configuration's.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="serial, processes, ray or ranks; default: the configuration's, and ranks under torchrun."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    as_json: _Json = False,
) -> None:
    """Measure what is not measured yet. Stop it as you like: the next run goes on."""
    said = time.monotonic()

    def say(pace: Pace) -> None:
        nonlocal said
        if time.monotonic() - said > _EVERY and not sys.stderr.isatty():
            said = time.monotonic()
            sys.stderr.write(f"{pace}\n")

    settings = read_config(config)
    table = run_study(settings, store, engine=engine, retry_failed=retry_failed, on_done=say)
    if speaks():
        _tell(store or settings.folder / settings.store, table, as_json)
    if table.failures and not any(v for v in _numbers(table)):
        raise typer.Exit(1)


@study_app.command()
def status(study: _Study, as_json: _Json = False) -> None:
    """Show how far a study is and what failed; also while it runs."""
    path = _store(study)
    with Store(path) as store:
        _tell(path, store.table(), as_json)


@study_app.command()
def export(study: _Study, table: Annotated[Path, typer.Argument(help="The table to write: .csv or .parquet.")]) -> None:
    """Write the table, with the columns hp.*, complexity.* and gen.* of public studies."""
    with Store(_store(study)) as store:
        write_table(store.table(), table)
    _say(f"wrote {table}")


@study_app.command("import")
def import_(
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet with columns complexity.* and gen.*.")],
    store: Annotated[Path, typer.Argument(help="The new store to write it to.")],
) -> None:
    """Put another study's table into a store, to report on it."""
    content = read_table(table)
    if store.exists():
        raise ArgumentError(f"expected a new store, but {store} is there already: name another")
    with Store(store, write=True) as made:
        made.put(content)
    _say(f"wrote {store}: {len(content)} checkpoints")


def _store(study: Path) -> Path:
    if study.suffix not in (".yaml", ".yml"):
        return study
    config = read_config(study)
    return config.folder / config.store


def _numbers(table: StudyTable) -> list[bool]:
    return [v is not None for n, values in table.columns().items() if n[:2] in ("co", "ge") for v in values]


def _tell(path: Path, table: StudyTable, as_json: bool) -> None:
    with Store(path) as store:
        columns = store.progress()
    left = sum(c.pending for c in columns)
    spent = {c.name: c.seconds / max(c.done + c.failed, 1) for c in columns}
    to_go = sum(spent[c.name] * c.pending for c in columns)
    if as_json:
        facts = {
            "store": str(path),
            "checkpoints": len(table),
            "pending": left,
            "columns": [c.__dict__ for c in columns],
            "failures": [dict(zip(("checkpoint", "column", "error"), f, strict=True)) for f in table.failures],
            "radii": table.facts.get("radii", []),
        }
        sys.stdout.write(json.dumps(plain(facts), indent=2, allow_nan=False) + "\n")
        return
    shown = Table(title=Text(f"{path}: {len(table)} checkpoints"), title_justify="left")
    shown.add_column("column", overflow="fold")
    for head in ("done", "failed", "pending", "seconds each"):
        shown.add_column(head, justify="right")
    for c in columns:
        shown.add_row(Text(c.name), str(c.done), str(c.failed or ""), str(c.pending or ""), f"{spent[c.name]:.2g}")
    _out.print(shown)
    for chosen in table.facts.get("radii", []):
        _say("{measure}: a mean rise of {rise:g} is at rho {rho:g}".format(**chosen))
    for name, column, error in table.failures[:_SHOWN]:
        _say(f"{name}, {column}: {error}", style="red")
    if len(table.failures) > _SHOWN:
        _say(f"... and {len(table.failures) - _SHOWN} more failed units", style="red")
    rest = f", about {words(to_go)} in one process" if to_go else ""
    _say(f"{left} units to do{rest}" if left else "All units are done.")
