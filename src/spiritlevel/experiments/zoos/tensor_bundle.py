"""TensorFlow checkpoints without TensorFlow: the tensors of ``model.ckpt-N.index`` and ``.data-*``.

The index is a sorted table in blocks (LevelDB's format): each key is written as what it shares with the one before and
the rest; the last 48 bytes say where the block of blocks is. Values are protocol buffers with type, shape, file, offset
and size of a tensor, whose bytes lie in the data files, little-endian. Nothing that a file holds is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spiritlevel.errors import CheckpointError

__all__ = ["read_bundle"]

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # float, double, int32, int64 of TensorFlow's DataType


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies."""

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    sliced: bool


def read_bundle(prefix: str | Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """The variables of a checkpoint by name.

    Args:
        prefix: the path up to and without ``.index``.
        wanted: which names; the others are not read.

    Raises:
        CheckpointError: where a file is missing, damaged or cut short, or a tensor is of a kind that is not read here.
    """
    prefix = Path(prefix)
    try:
        table = dict(_table(prefix.with_name(prefix.name + ".index").read_bytes()))
        shards = next((v for f, v in _fields(table.pop(b"")) if f == 1), 1)
        entries = {n: _entry(v) for key, v in table.items() if wanted(n := key.decode())}
        return {n: _tensor(prefix, n, e, int(shards)) for n, e in entries.items()}
    except (OSError, IndexError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"expected a TensorFlow checkpoint {prefix}.index with its .data files, but it cannot be read: {error}"
        ) from error


def _tensor(prefix: Path, name: str, entry: _Entry, shards: int) -> Tensor:
    if entry.kind not in _TYPES or entry.sliced:
        raise CheckpointError(
            f"expected whole float or integer tensors, got {name!r} of kind {entry.kind}{' in slices' * entry.sliced}: "
            "leave it out with wanted="
        )
    path = prefix.with_name(f"{prefix.name}.data-{entry.shard:05d}-of-{shards:05d}")
    with path.open("rb") as file:
        file.seek(entry.offset)
        raw = file.read(entry.size)
    kind = np.dtype(_TYPES[entry.kind])
    if len(raw) != entry.size or entry.size != kind.itemsize * int(np.prod(entry.shape, dtype=np.int64)):
        raise ValueError(f"{name!r} of shape {entry.shape} has {len(raw)} bytes")
    return torch.from_numpy(np.frombuffer(raw, kind).reshape(entry.shape).copy())


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = content[-_FOOTER:]
    if len(footer) < _FOOTER or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError("it does not end like a table")
    _, at = _varint(footer, 0)  # offset and size of a block of further information, of which there is none
    _, at = _varint(footer, at)
    offset, at = _varint(footer, at)
    size, _ = _varint(footer, at)
    for _, handle in _block(content, offset, size):
        start, after = _varint(handle, 0)
        yield from _block(content, start, _varint(handle, after)[0])


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if content[offset + size] != 0:
        raise ValueError("its index is compressed, which TensorFlow never writes")
    block = content[offset : offset + size]
    end = size - 4 * (int.from_bytes(block[-4:], "little") + 1)
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        yield key, block[at + rest : at + rest + length]
        at += rest + length


def _entry(value: bytes) -> _Entry:
    found = dict(_fields(value))
    whole = {f: v for f, v in found.items() if isinstance(v, int)}
    shape = found.get(2, b"")
    assert isinstance(shape, bytes)
    return _Entry(whole.get(1, 0), _shape(shape), whole.get(3, 0), whole.get(4, 0), whole.get(5, 0), 7 in found)


def _shape(value: bytes) -> tuple[int, ...]:
    """Of a TensorShapeProto: repeated messages with the length of an axis."""
    axes = [dict(_fields(v)) for f, v in _fields(value) if f == 2 and isinstance(v, bytes)]
    return tuple(int(axis.get(1, 0)) for axis in axes)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a protocol buffer."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size, at = _varint(message, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
        yield tag >> 3, message[at : at + size] if tag & 7 == 2 else int.from_bytes(message[at : at + size], "little")
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
        shift += 7
