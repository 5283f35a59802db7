"""Fashion-MNIST from where Debian puts it, and shifted versions of its test images.

70,000 grey images of clothes, 28 x 28, in ten classes (Xiao, Rasul and Vollgraf 2017), in Debian's package
``dataset-fashion-mnist``. Nothing is fetched here: a missing file is an error that says how to get it.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from spiritlevel.demo.cache import cache_home
from spiritlevel.errors import DataError

__all__ = ["SHIFTS", "Bytes", "Ink", "Labels", "fashion", "scaled", "shifted"]

Bytes = npt.NDArray[np.uint8]
Ink = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_PACKAGE = "dataset-fashion-mnist"
_INSTALLED = Path("/usr/share/datasets/fashion-mnist")
_VARIABLE = "FASHION_MNIST"
_FILES = {"train": "train", "test": "t10k"}
_IMAGES, _LABELS = 2051, 2049  # the first numbers of IDX files of images and of labels


def fashion(part: str) -> tuple[Bytes, Labels]:
    """Images as bytes and labels of ``train`` (60,000) or ``test`` (10,000).

    Looked for in the folder or ``.deb`` file that the environment variable FASHION_MNIST names, where Debian installs
    it, and among ``.deb`` files in the cache folder.
    """
    if part not in _FILES:
        raise DataError(f"expected 'train' or 'test' of Fashion-MNIST, got {part!r}")
    return _read(_source(), _FILES[part])


def _source() -> Path:
    given = os.environ.get(_VARIABLE)
    cached = sorted((cache_home() / "spiritlevel").glob(f"{_PACKAGE}*.deb"))
    places = [Path(given)] if given else [_INSTALLED, *cached]
    for place in places:
        if place.is_file() or (place / "t10k-labels-idx1-ubyte.gz").is_file():
            return place
    raise DataError(
        f"expected the images of Fashion-MNIST in {' or '.join(map(str, places))}, got nothing there. On Debian or "
        f"Ubuntu: apt-get install {_PACKAGE}. Elsewhere take the package's .deb file (apt-get download {_PACKAGE}, or "
        f"from https://packages.debian.org/{_PACKAGE}) and set {_VARIABLE} to its path, or to a folder with the four "
        "files train-images-idx3-ubyte.gz and so on"
    )


@cache
def _read(source: Path, stem: str) -> tuple[Bytes, Labels]:
    images = _idx(_content(source, f"{stem}-images-idx3-ubyte.gz"), _IMAGES, source)
    labels = _idx(_content(source, f"{stem}-labels-idx1-ubyte.gz"), _LABELS, source)
    if len(images) != len(labels):
        raise DataError(f"expected as many images as labels in {source}, got {len(images)} and {len(labels)}")
    return images, labels.astype(np.int64)


def _content(source: Path, name: str) -> bytes:
    try:
        packed = (source / name).read_bytes() if source.is_dir() else _from_deb(source, name)
        return gzip.decompress(packed)
    except (OSError, EOFError, KeyError, tarfile.TarError, ValueError) as error:
        raise DataError(f"expected {name} in {source}, but it cannot be read: {error}; get it anew") from error


def _from_deb(path: Path, name: str) -> bytes:
    """One file out of a Debian package: an ``ar`` archive with the files in a tar archive called ``data.tar.*``."""
    with path.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ValueError("it is no Debian package")
        while header := file.read(60):
            size = int(header[48:58])
            if header.startswith(b"data.tar"):
                break
            file.seek(size + size % 2, 1)
        else:
            raise KeyError("data.tar")
        with tarfile.open(fileobj=io.BytesIO(file.read(size))) as archive:
            member = next((m for m in archive if m.name.endswith("/" + name)), None)
            found = None if member is None else archive.extractfile(member)
            if found is None:
                raise KeyError(name)
            return found.read()


def _idx(content: bytes, kind: int, source: Path) -> Bytes:
    """An array in the IDX format: a magic number, the lengths of the axes, bytes."""
    axes = 3 if kind == _IMAGES else 1
    head = 4 * (1 + axes)
    found, *shape = struct.unpack(f">{1 + axes}I", content[:head]) if len(content) >= head else (0,)
    if found != kind or len(content) != head + int(np.prod(shape)):
        raise DataError(f"expected an IDX file with the number {kind} in {source}, got {found}: get it anew")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def scaled(images: npt.NDArray[np.uint8] | npt.NDArray[np.float32]) -> Ink:
    """Bytes as a network takes them: from -1 to 1, with one channel."""
    out: Ink = (images.astype(np.float32) / 127.5 - 1)[:, None]
    return out


def _noisy(ink: Ink, rng: np.random.Generator) -> Ink:
    return ink + 0.2 * rng.standard_normal(ink.shape, dtype=np.float32)


def _blurred(ink: Ink, rng: np.random.Generator) -> Ink:
    del rng
    out: Ink = ndimage.gaussian_filter(ink, (0, 1.0, 1.0))
    return out


def _rotated(ink: Ink, rng: np.random.Generator) -> Ink:
    angles = 20 * rng.choice([-1, 1], len(ink))
    return np.stack([ndimage.rotate(i, a, reshape=False, order=1) for i, a in zip(ink, angles, strict=True)])


def _occluded(ink: Ink, rng: np.random.Generator) -> Ink:
    out = ink.copy()
    for image, (row, column) in zip(out, rng.integers(4, 16, (len(ink), 2)), strict=True):
        image[row : row + 9, column : column + 9] = 0.5
    return out


SHIFTS: dict[str, tuple[str, Callable[[Ink, np.random.Generator], Ink]]] = {
    "noisy": ("Gaussian noise of 0.2 on each pixel, which goes from 0 to 1", _noisy),
    "blurred": ("a Gaussian blur of one pixel", _blurred),
    "rotated": ("turned by 20 degrees, left or right", _rotated),
    "occluded": ("a grey square of 9 x 9 pixels somewhere in the middle", _occluded),
}
"""The shifts by name, in words and as functions of ink from 0 to 1. Their strengths are ours."""


def shifted(images: Bytes, shift: str, seed: int = 0) -> Ink:
    """The images, changed, as a network takes them."""
    ink: Ink = np.divide(images, 255, dtype=np.float32)
    changed: Ink = np.clip(SHIFTS[shift][1](ink, np.random.default_rng(seed)), 0, 1).astype(np.float32)
    return scaled(changed * np.float32(255))
