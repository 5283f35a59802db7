"""Tables of studies as files: CSV and Parquet, one's own and those of others.

Besides the columns of `StudyTable`, a file holds what else the table knows, one row for each checkpoint:

====================  =======================================================================================
column                meaning
====================  =======================================================================================
``batches.MEASURE``   the measure on single batches: numbers with spaces between them (a list in Parquet)
``size.SET``          how many examples the test set has, the same in every row
``error.MEASURE``     why the measure is missing, empty where it is not
``fact.KEY``          a fact about the whole study as JSON, in the first row only
====================  =======================================================================================

Numbers are written with the fewest digits that give them back exactly, so equal tables give equal bytes and nothing is
lost. A column of hyperparameters that reads as numbers throughout holds numbers, in both formats.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiritlevel.core.registry import Registry
from spiritlevel.core.results import plain
from spiritlevel.errors import ArgumentError, DataError, MissingDependencyError
from spiritlevel.study.table import StudyTable

__all__ = ["READERS", "read_table", "write_table"]

Columns = dict[str, list[Any]]
READERS: Registry[Callable[[Path], StudyTable]] = Registry("kind of table")
"""How a table is read from a file, by the ending of its name."""

_WHOLE = re.compile(r"[+-]?\d{1,18}")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_table(table: StudyTable, path: str | Path) -> Path:
    """Write a table as CSV or Parquet, whichever the name ends in; the file is there whole or not at all.

    Equal tables give equal bytes (Parquet: with the same version of pyarrow).
    """
    path = Path(path)
    writers = {".csv": _csv_bytes, ".parquet": _parquet_bytes}
    if path.suffix not in writers:
        raise ArgumentError(f"expected a file name that ends in {' or '.join(writers)}, got {path.name!r}")
    content = writers[path.suffix](_flatten(table))
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise ArgumentError(f"expected a place to write to, but {path} cannot be written: {error}") from error
    return path


def read_table(path: str | Path) -> StudyTable:
    """Read a table written here, or another study's in the same columns."""
    path = Path(path)
    if path.suffix not in READERS:
        raise ArgumentError(f"expected a table that ends in {', '.join(READERS)}, got {path.name!r}")
    if not path.is_file():
        raise DataError(f"expected a table, got nothing at {path}")
    return READERS[path.suffix](path)


def _flatten(table: StudyTable) -> Columns:
    """Everything a table knows as plain columns."""
    out = table.columns()
    out["checkpoint"] = [_clean(n) for n in out["checkpoint"]]
    out |= {f"hp.{n}": _typed([_text(v) for v in values]) for n, values in table.hp.items()}
    out |= {f"batches.{n}": [list(map(float, row)) for row in rows] for n, rows in table.per_batch.items()}
    out |= {f"size.{n}": [int(size)] * len(table) for n, size in table.sizes.items()}
    rows = {name: i for i, name in enumerate(table.names)}
    for checkpoint, measure, message in table.failures:
        if checkpoint not in rows:
            raise DataError(f"expected failures of checkpoints in the table, got one of {checkpoint!r}: add its row")
        column = out.setdefault(f"error.{measure}", [None] * len(table))
        before = column[rows[checkpoint]]
        column[rows[checkpoint]] = _clean(message if before is None else f"{before}\n{message}")
    for key, fact in table.facts.items():
        text = json.dumps(plain(fact), ensure_ascii=True, allow_nan=False)
        out[f"fact.{key}"] = [text, *[None] * len(table)][: len(table)]
    return {_clean(name): values for name, values in out.items()}


def _gather(columns: Mapping[str, Sequence[Any]], path: Path) -> StudyTable:
    """The table behind plain columns."""
    try:
        table = StudyTable.from_columns(columns)
        return replace(
            table,
            per_batch={n: tuple(map(_numbers, values)) for n, values in _named("batches", columns).items()},
            sizes={n: _size(n, values) for n, values in _named("size", columns).items()},
            failures=tuple(
                (checkpoint, measure, str(values[i]))
                for i, checkpoint in enumerate(table.names)
                for measure, values in _named("error", columns).items()
                if values[i]
            ),
            facts={n: json.loads(values[0]) for n, values in _named("fact", columns).items() if values and values[0]},
        )
    except (DataError, ValueError) as error:
        raise DataError(f"expected the table of a study in {path}: {error}") from error


def _named(prefix: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    return {c[len(prefix) + 1 :]: values for c, values in columns.items() if c.startswith(f"{prefix}.")}


def _numbers(cell: Any) -> tuple[float, ...]:
    if cell is None:
        return ()
    return tuple(float(v) for v in (cell.split() if isinstance(cell, str) else cell))


def _size(name: str, values: Sequence[Any]) -> int:
    found = {int(v) for v in values if v not in (None, "")}
    if len(found) != 1:
        raise DataError(f"expected one size of the test set {name!r} throughout, got {sorted(found)[:4]}")
    return found.pop()


def _text(value: Any) -> str | None:
    """A hyperparameter as it stands in a CSV file."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return repr(value) if isinstance(value, float) else _clean(str(value))


def _typed(cells: Sequence[str | None]) -> list[Any]:
    """Texts as truth values, whole numbers or numbers where all of them are.

    >>> _typed(["1", None, "2"]), _typed(["1e-3", "2"]), _typed(["True", "False"]), _typed(["sgd", "1"])
    ([1, None, 2], [0.001, 2.0], [True, False], ['sgd', '1'])
    """
    there = [c for c in cells if c is not None]
    convert: Callable[[str], Any] = str
    if all(c in ("True", "False") for c in there):
        convert = "True".__eq__
    elif all(_WHOLE.fullmatch(c) for c in there):
        convert = int
    elif all(_DECIMAL.fullmatch(c) for c in there):
        convert = float
    return [None if c is None else convert(c) for c in cells]


def _clean(text: str) -> str:
    """The text, with what no file in UTF-8 can hold (half a surrogate pair, from odd file names) spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _csv_bytes(columns: Columns) -> bytes:
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(",".join(map(_cell, row)) + "\n" for row in rows).encode()


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(repr, value))
    text = "" if value is None else repr(value) if isinstance(value, float) else str(value)
    # Not csv.writer: with "\n" at the end of lines it leaves a carriage return unquoted, which csv.reader then refuses.
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',;\t"\r\n') else text


@READERS.register(".csv")
def _read_csv(path: Path) -> StudyTable:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        head = text.partition("\n")[0]
        delimiter = max(",;\t", key=head.count)  # the first of equals is the comma
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"expected a CSV file in UTF-8, but {path} cannot be read: {error}") from error
    if not rows:
        raise DataError(f"expected a table in {path}, got an empty file")
    names, rows = rows[0], [row for row in rows[1:] if row]
    if len(set(names)) != len(names):
        raise DataError(f"expected each column once in {path}, got {max(names, key=names.count)!r} more than once")
    for i, row in enumerate(rows):
        if len(row) != len(names):
            raise DataError(f"expected {len(names)} cells in each row of {path}, got {len(row)} in row {i + 1}")
    columns: Columns = {}
    for name, cells in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        columns[name] = _typed([c or None for c in cells]) if name.startswith("hp.") else list(cells)
    return _gather(columns, path)


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'pyarrow' for parquet: pip install 'spiritlevel[data]'"
        ) from error
    return pyarrow


def _parquet_bytes(columns: Columns) -> bytes:
    arrow = _arrow()
    kinds = {"complexity": arrow.float64(), "gen": arrow.float64(), "batches": arrow.list_(arrow.float64())}
    kinds |= {"checkpoint": arrow.string(), "error": arrow.string(), "fact": arrow.string(), "size": arrow.int64()}
    arrays = {n: arrow.array(values, kinds.get(n.partition(".")[0])) for n, values in columns.items()}
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.table(arrays), sink, compression="zstd")
    return bytes(sink.getvalue())


@READERS.register(".parquet")
def _read_parquet(path: Path) -> StudyTable:
    arrow = _arrow()
    try:
        content = arrow.parquet.ParquetFile(path).read()
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"expected a parquet file, but {path} cannot be read: {error}") from error
    return _gather({n: content[n].to_pylist() for n in content.column_names}, path)
