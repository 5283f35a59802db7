"""The checkpoints of a zoo: where they are, what they are called, what they were trained with."""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from spiritlevel.errors import CheckpointError, ConfigError
from spiritlevel.integrations.peft import CONFIG, base_folder
from spiritlevel.study.checkpoints import load_checkpoint
from spiritlevel.study.config import StudyConfig
from spiritlevel.study.identity import identity

__all__ = ["Checkpoint", "find_checkpoints"]

_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
_CONFIGS = ("config.json", CONFIG)
_NAMES = ("checkpoint", "experiment_id", "name")
_BLOCK = 1 << 20  # bytes read at a time
_WHOLE = re.compile(r"[+-]?\d{1,18}")

Builder = Callable[..., Any]


@dataclass(frozen=True)
class Checkpoint:
    """One network of the zoo, on disk.

    Attributes:
        name: in the table.
        source: a folder, a file of weights, or a function that returns the model.
        hyperparameters: what it was trained with.
    """

    name: str
    source: Path | Builder
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def load(self, builder: str | Builder | None) -> nn.Module:
        """The model, in evaluation mode."""
        if isinstance(self.source, Path):
            return load_checkpoint(self.source, builder)
        model = self.source()
        if not isinstance(model, nn.Module):
            raise CheckpointError(
                f"expected a torch.nn.Module from the function for {self.name!r}, got {type(model).__name__}"
            )
        return model.eval()

    def stamp(self) -> str:
        """Sizes and times of its files, or what a function is: while these are the same, so is the content."""
        if not isinstance(self.source, Path):
            return str(identity(self.source))
        try:
            stats = [(p.name, p.stat()) for p in self._files()]
        except OSError:
            return "missing"
        return " ".join(f"{name}:{s.st_size}:{s.st_mtime_ns}" for name, s in stats) or "missing"

    def digest(self) -> str:
        """A hash of the content of its files; for a function one of what it is. Empty where there is nothing."""
        total = hashlib.sha256()
        if not isinstance(self.source, Path):
            return hashlib.sha256(str(identity(self.source)).encode()).hexdigest()[:20]
        try:
            files = self._files()
            for path in files:
                total.update(f"{path.name}:{path.stat().st_size}:".encode())
                with path.open("rb") as file:
                    while block := file.read(_BLOCK):
                        total.update(block)
        except OSError:
            return ""
        return total.hexdigest()[:20] if files else ""

    def _files(self) -> list[Path]:
        if not isinstance(self.source, Path):
            return []
        if not self.source.is_dir():
            return [self.source] if self.source.exists() else []
        own = [p for p in self.source.iterdir() if p.name in _CONFIGS or p.suffix in _WEIGHTS]
        base = base_folder(self.source) if (self.source / CONFIG).is_file() else None
        under = [] if base is None else [p for p in base.iterdir() if p.name in _CONFIGS or p.suffix in _WEIGHTS]
        return sorted(own) + sorted(under)  # another base is another network


def find_checkpoints(config: StudyConfig) -> list[Checkpoint]:
    """The zoo in the order of its names, with hyperparameters; nothing is loaded."""
    found = _sources(config)
    if not found:
        raise ConfigError(
            f"{config.at('zoo', 'checkpoints')}: expected checkpoints, got none for "
            f"{config.zoo.checkpoints!r} in {config.folder.absolute()}"
        )
    plain = [Checkpoint(name, source) for name, source in sorted(found.items(), key=lambda item: _natural(item[0]))]
    if config.zoo.hyperparameters is None:
        return plain
    return _with_hyperparameters(config, plain)


def _natural(name: str) -> list[tuple[int, int | str]]:
    """A key that puts run-2 before run-10.

    >>> sorted(["run-10", "run-2"], key=_natural)
    ['run-2', 'run-10']
    """
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def _sources(config: StudyConfig) -> dict[str, Path | Builder]:
    given, where = config.zoo.checkpoints, config.at("zoo", "checkpoints")
    if isinstance(given, Mapping):
        return {n: s if callable(s) else config.folder / s for n, s in given.items()}
    found: dict[str, Path | Builder] = {}
    for pattern in [given] if isinstance(given, str) else given:
        for name, path in _matches(config.folder, str(pattern)):
            if found.get(name, path) != path:
                raise ConfigError(
                    f"{where}: expected checkpoints of different names, got {name!r} for {found[name]} and {path}: "
                    "narrow the glob, or give names (name: path)"
                )
            found[name] = path
    return found


def _matches(folder: Path, pattern: str) -> list[tuple[str, Path]]:
    """What a glob finds, named by the part of the path that varies; a plain path stands for itself, there or not."""
    if not glob.has_magic(pattern):
        return [(_stem(Path(pattern).name), folder / pattern)]
    fixed = folder.joinpath(*_before_magic(Path(pattern)))
    paths = sorted(Path(p) for p in glob.glob(str(folder / pattern), recursive=True))
    kept = [p for p in paths if p.suffix in _WEIGHTS or (p.is_dir() and any((p / c).exists() for c in _CONFIGS))]
    return [(_stem(p.relative_to(fixed).as_posix()), p) for p in kept]


def _before_magic(pattern: Path) -> list[str]:
    parts = list(pattern.parts)
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return parts[:first]


def _stem(name: str) -> str:
    suffix = next((s for s in _WEIGHTS if name.endswith(s)), "")
    return name.removesuffix(suffix)


def _with_hyperparameters(config: StudyConfig, zoo: list[Checkpoint]) -> list[Checkpoint]:
    given, where = config.zoo.hyperparameters, config.at("zoo", "hyperparameters")
    beside = False
    if isinstance(given, Mapping):
        rows: dict[str, Mapping[str, Any]] = dict(given)
    else:
        path = config.folder / str(given)
        beside = not path.exists() and len(Path(str(given)).parts) == 1 and path.suffix == ".json"
        rows = _beside(zoo, path.name, where) if beside else _read_rows(path, where)
    paired = _paired(config, zoo, rows, where)
    table = {n: [row.get(n) for _, row in paired] for n in dict.fromkeys(k for _, row in paired for k in row)}
    wanted = config.zoo.columns
    if wanted is None:
        wanted = tuple(n for n, v in table.items() if not beside or len(set(map(repr, v))) > 1)
    for name in wanted:
        if name not in table:
            raise ConfigError(
                f"{config.at('zoo', 'columns')}: expected hyperparameters out of {', '.join(table)}; got {name!r}"
            )
    return [replace(c, hyperparameters={n: row.get(n) for n in wanted}) for c, row in paired]


def _paired(
    config: StudyConfig, zoo: list[Checkpoint], rows: Mapping[str, Mapping[str, Any]], where: str
) -> list[tuple[Checkpoint, Mapping[str, Any]]]:
    """Each checkpoint with its row."""
    known = {c.name for c in zoo}
    named = {row if row in known else _stem(row): values for row, values in rows.items()}
    lonely = [c.name for c in zoo if c.name not in named]
    missing = [n for n in named if n not in known]
    if not config.zoo.partial:
        for what, names in (("a row for each checkpoint", lonely), ("a checkpoint for each row", missing)):
            if names:
                raise ConfigError(
                    f"{where}: expected {what}, none for {', '.join(names[:3])} ({len(names)} in all): correct the "
                    "names, or set zoo.partial to leave these out"
                )
    paired = [(c, named[c.name]) for c in zoo if c.name in named]
    if not paired:
        raise ConfigError(f"{where}: expected rows named like {zoo[0].name!r}, got {', '.join(list(rows)[:3])}")
    return paired


def _read_rows(path: Path, where: str) -> dict[str, Mapping[str, Any]]:
    """Hyperparameters by the name of the checkpoint."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            return _named_rows(json.loads(text), where)
        if path.suffix != ".csv":
            raise ConfigError(f"{where}: expected a .csv or .json file, got {path.name!r}")
        lines = list(csv.DictReader(io.StringIO(text), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise ConfigError(f"{where}: expected hyperparameters, but {path} cannot be read: {error}") from error
    if any(None in line or None in line.values() for line in lines):
        raise ConfigError(f"{where}: expected as many cells in each row of {path.name} as in its first")
    columns = {n: _typed([line[n] for line in lines]) for n in (lines[0] if lines else {})}
    return _named_rows([{n: v[i] for n, v in columns.items()} for i in range(len(lines))], where)


def _named_rows(content: Any, where: str) -> dict[str, Mapping[str, Any]]:
    if isinstance(content, dict) and all(isinstance(v, dict) for v in content.values()):
        return content
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ConfigError(f"{where}: expected rows, or an object for each checkpoint, got {type(content).__name__}")
    rows: dict[str, Mapping[str, Any]] = {}
    for row in content:
        key = next((k for k in _NAMES if k in row), None)
        if key is None:
            raise ConfigError(
                f"{where}: expected a column {' or '.join(_NAMES)} with the checkpoints' names, got {', '.join(row)}"
            )
        name = str(row[key])
        if name in rows:
            raise ConfigError(f"{where}: expected each checkpoint once, got two rows for {name!r}")
        rows[name] = {k.removeprefix("hp."): v for k, v in row.items() if k != key}
    return rows


def _beside(zoo: Iterable[Checkpoint], file: str, where: str) -> dict[str, Mapping[str, Any]]:
    """From a JSON file in each checkpoint's folder: its plain values, those of inner objects by dotted names."""
    rows: dict[str, Mapping[str, Any]] = {}
    for checkpoint in zoo:
        source = checkpoint.source
        if not isinstance(source, Path):
            raise ConfigError(f"{where}: expected checkpoints on disk beside their {file}, got a function")
        path = (source if source.is_dir() else source.parent) / file
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ConfigError(
                f"{where}: expected {file} beside each checkpoint, but {path} cannot be read: {error}"
            ) from error
        rows[checkpoint.name] = dict(_flat(content))
    return rows


def _flat(content: Any, before: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _flat(value, f"{before}.{key}" if before else str(key))
    elif isinstance(content, bool | int | float | str) and before:
        yield before, content


def _typed(cells: Sequence[str]) -> list[Any]:
    """Cells of one column as whole numbers, numbers, truth values, or else words; None for empty ones.

    >>> _typed(["1", ""]), _typed(["1e-3", "2"]), _typed(["True", "False"]), _typed(["sgd", "1"])
    ([1, None], [0.001, 2.0], [True, False], ['sgd', '1'])
    """
    there = [c for c in cells if c != ""]
    convert: Callable[[str], Any] = str
    if all(c in ("True", "False") for c in there):
        convert = "True".__eq__
    elif all(_WHOLE.fullmatch(c) for c in there):
        convert = int
    elif all(_is_number(c) for c in there):
        convert = float
    return [None if c == "" else convert(c) for c in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
