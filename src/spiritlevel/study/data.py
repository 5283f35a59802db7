"""Batches from a data file or from a function of the user's."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from spiritlevel.core.batches import batch_size as batch_size_of
from spiritlevel.core.batches import cut
from spiritlevel.errors import ArgumentError, DataError, MissingDependencyError
from spiritlevel.study.references import is_reference, load_function

__all__ = ["ArrayBatches", "Examples", "load_data"]

_LABELS = ("labels", "label", "y", "targets", "target")
_PLAIN = ("x", "inputs", "input", "images", "features", "data")


@runtime_checkable
class Examples(Protocol):
    """Data that cut themselves into batches, such as images that stay on disk."""

    @property
    def fingerprint(self) -> str:
        """A hash of the content and of how it is cut."""

    def __iter__(self) -> Iterator[Any]: ...

    def batched(self, size: int) -> Examples:
        """The same examples, so many in a batch."""

    def chosen(self, examples: int, seed: int | None = None) -> Examples:
        """So many of them: the first, or those that a seed picks."""


class ArrayBatches(Sequence[Any]):
    """Arrays of equal length, cut into batches in order.

    One input called ``x``, ``inputs``, ``images``, ``features`` or ``data`` goes to the model by position, as
    ``(inputs, targets)``; inputs of other names go in as keywords, as a dict with ``labels``.

    >>> batches = ArrayBatches({"x": torch.zeros(5, 2), "y": torch.arange(5)}, batch_size=2)
    >>> len(batches), batches[2]
    (3, (tensor([[0., 0.]]), tensor([4])))
    """

    def __init__(self, arrays: Mapping[str, Tensor], batch_size: int) -> None:
        if batch_size < 1:
            raise ArgumentError(f"expected a batch size from 1 on, got {batch_size}")
        labels = [n for n in _LABELS if n in arrays]
        inputs = {n: a for n, a in arrays.items() if n not in labels}
        if len(labels) != 1 or not inputs:
            raise DataError(
                f"expected inputs and one array of targets called {' or '.join(_LABELS)}, got {sorted(arrays)}"
            )
        for name, array in arrays.items():
            if not array.dim():
                raise DataError(f"expected arrays with one row per example, got a single number under {name!r}")
        lengths = {n: len(a) for n, a in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"expected arrays of equal length, got {lengths}")
        for name, array in inputs.items():
            if array.dtype == torch.uint8:
                raise DataError(
                    f"expected inputs as the model takes them, got bytes under {name!r}: scale them to floats"
                )
        self._inputs, self._targets, self._batch_size = inputs, arrays[labels[0]], batch_size
        self._plain = len(inputs) == 1 and next(iter(inputs)) in _PLAIN

    def __len__(self) -> int:
        return -(-len(self._targets) // self._batch_size)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        rows = slice(i * self._batch_size, (i + 1) * self._batch_size)
        inputs = {n: a[rows] for n, a in self._inputs.items()}
        if self._plain:
            return next(iter(inputs.values())), self._targets[rows]
        return {**inputs, "labels": self._targets[rows]}

    def chosen(self, examples: int, seed: int | None = None) -> ArrayBatches:
        """So many examples: the first, or those that a seed picks, in their order here.

        >>> ArrayBatches({"x": torch.arange(4.0), "y": torch.arange(4)}, 2).chosen(2, seed=0)[0]
        (tensor([...]), tensor([...]))
        """
        count = len(self._targets)
        rows = torch.arange(min(examples, count))
        if seed is not None and examples < count:
            rows = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:examples].sort().values
        arrays = {n: a[rows] for n, a in {**self._inputs, "labels": self._targets}.items()}
        return ArrayBatches(arrays, self._batch_size)


def load_data(source: Any, batch_size: int = 128, examples: int | None = None) -> Iterable[Any]:
    """Batches from ``.npz``, ``.safetensors`` or ``.parquet``, or from ``package.module:function``.

    Args:
        source: a file with one array per input and one of targets (see `ArrayBatches` for the names), or a function
            that returns such arrays by name, a pair (inputs, targets), `Examples`, or an iterable of batches (a
            DataLoader); such arrays and iterables themselves are taken too.
        batch_size: examples per batch; an iterable of batches is taken as it is.
        examples: only the first so many.
    """
    if examples is not None and examples < 1:
        raise ArgumentError(f"expected at least one example, got {examples}")
    if not isinstance(source, str | Path) or is_reference(str(source)):
        function = load_function(source) if isinstance(source, str) else source
        content = function() if callable(function) else function
        if isinstance(content, Examples):
            content = content.batched(batch_size)
            return content if examples is None else content.chosen(examples)
        if isinstance(content, tuple) and len(content) == 2 and all(hasattr(c, "__len__") for c in content):
            content = {"x": content[0], "y": content[1]}
        if not isinstance(content, Mapping):
            if not isinstance(content, Iterable):
                raise DataError(f"expected arrays or batches from {source}, got {type(content).__name__}")
            return content if examples is None else _first(content, examples)
        arrays = {str(n): _tensor(str(n), a) for n, a in content.items()}
    else:
        arrays = _read(Path(source))
    if examples is not None:
        arrays = {n: a[:examples] if a.dim() else a for n, a in arrays.items()}
    return ArrayBatches(arrays, batch_size)


def _first(batches: Iterable[Any], examples: int) -> list[Any]:
    """Batches up to so many examples, the last one cut."""
    kept: list[Any] = []
    for batch in batches:
        size = batch_size_of(batch)
        kept.append(batch if size <= examples else cut(batch, 0, examples, size))
        examples -= size
        if examples <= 0:
            break
    return kept


def _read(path: Path) -> dict[str, Tensor]:
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise DataError(f"expected data in {', '.join(readers)} or package.module:function, got {str(path)!r}")
    if not path.is_file():
        raise DataError(f"expected a data file, got nothing at {path}")
    return readers[path.suffix](path)


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {n: _tensor(n, file[n]) for n in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"expected plain arrays in {path}, but it cannot be read: {error}") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"expected a safetensors file, but {path} cannot be read: {error}") from error


def _read_parquet(path: Path) -> dict[str, Tensor]:
    """One column per array; nested lists of equal lengths become further axes."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'pyarrow' for parquet: pip install 'spiritlevel[data]'"
        ) from error
    try:
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"expected a parquet file, but {path} cannot be read: {error}") from error
    out = {}
    for name in table.column_names:
        column, shape = table[name].combine_chunks(), [table.num_rows]
        while arrow.types.is_nested(column.type):
            lengths = set(column.value_lengths().to_pylist()) if hasattr(column, "value_lengths") else {None}
            if len(lengths) != 1 or None in lengths:
                raise DataError(f"expected lists of equal length in column {name!r} of {path}: pad them first")
            shape.append(lengths.pop())
            column = column.flatten()
        if column.null_count or not (arrow.types.is_integer(column.type) or arrow.types.is_floating(column.type)):
            raise DataError(f"expected numbers without gaps in column {name!r} of {path}, got {column.type}")
        out[name] = _tensor(name, column.to_numpy(zero_copy_only=False)).reshape(shape)
    return out


def _tensor(name: str, array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array
    values = np.asarray(array)
    if values.dtype.kind not in "biuf":
        raise DataError(f"expected numbers under {name!r}, got {values.dtype}")
    return torch.from_numpy(np.array(values, order="C"))
