"""Folders of images as CLIP sees them, without torchvision: decoded once, kept as bytes, read lazily."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spiritlevel.core.progress import progress
from spiritlevel.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["MEAN", "SPREAD", "ImageSet", "clip_crop", "image_folder"]

MEAN = (0.48145466, 0.4578275, 0.40821073)  # of the images CLIP was trained on: OpenAI's preprocessing
SPREAD = (0.26862954, 0.26130258, 0.27577711)
_FORMAT = 1  # counted up when crops change in a way that names and sizes of files do not show
_ENDINGS = (".jpeg", ".jpg", ".png")


def clip_crop(image: Image.Image, pixels: int = 224) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The middle of an image as bytes (rows, columns, colours): OpenAI's preprocessing up to the scaling of colours.

    The shorter side is brought to ``pixels`` by a bicubic filter, the longer one in proportion and rounded down; the
    middle is cut out, and only then colours become red, green and blue.
    """
    resize = _pillow().Resampling.BICUBIC
    short, long = sorted(image.size)
    if short != pixels:
        other = int(pixels * long / short)
        image = image.resize((pixels, other) if image.width <= image.height else (other, pixels), resize)
    left, top = (round((side - pixels) / 2) for side in image.size)
    return np.asarray(image.crop((left, top, left + pixels, top + pixels)).convert("RGB"))


@dataclass(frozen=True)
class ImageSet(Sequence[Any]):
    """Images cut into batches ``(inputs, labels)``; the crops stay on disk.

    Attributes:
        crops: a NumPy file of bytes (examples, rows, columns, colours).
        content: a hash of what is in it.
        labels: of all examples in it.
        rows: which of them, in order.
        batch: examples in a batch.
    """

    crops: Path
    content: str
    labels: tuple[int, ...]
    rows: tuple[int, ...]
    batch: int = 128

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        rows = self.rows[i * self.batch : (i + 1) * self.batch]
        images = torch.from_numpy(np.ascontiguousarray(self._file[list(rows)])).permute(0, 3, 1, 2).float() / 255
        mean, spread = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, SPREAD))
        return (images - mean) / spread, torch.tensor([self.labels[r] for r in rows])

    @cached_property
    def _file(self) -> Any:
        return np.load(self.crops, mmap_mode="r")

    @property
    def fingerprint(self) -> str:
        """A hash of the content, the choice, and how it is cut."""
        parts = [_FORMAT, self.content, [self.labels[r] for r in self.rows], self.rows, self.batch]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

    def batched(self, size: int) -> ImageSet:
        """The same, cut into batches of so many."""
        return replace(self, batch=size)

    def chosen(self, examples: int, seed: int | None = None) -> ImageSet:
        """So many examples: the first, or those that a seed picks, in their order here."""
        return replace(self, rows=tuple(self.rows[i] for i in _picked(len(self.rows), examples, seed)))


def _picked(count: int, wanted: int, seed: int | None) -> list[int]:
    if wanted >= count or seed is None:
        return list(range(min(wanted, count)))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:wanted].tolist())


def image_folder(folder: Path, classes: Sequence[str], most: int | None = None, pixels: int = 224) -> ImageSet:
    """Images in a folder for each class; decoded the first time, in ``.crops`` beside it from then on.

    Args:
        folder: with a folder for each class that has images. Other files in it are passed over.
        classes: names of folders; an image's label is the place of its folder in this list.
        most: how many images at most, picked at random with a fixed seed.
        pixels: of a crop, along each side.

    Raises:
        DataError: where there are no images, folders that are no class, or an image that cannot be read.
    """
    place = {name: i for i, name in enumerate(classes)}
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    strange = [p.name for p in folders if p.name not in place]
    if strange:
        raise DataError(f"expected folders of known classes in {folder}, got {', '.join(strange[:5])}")
    files = [p for f in folders for p in sorted(f.iterdir()) if p.suffix.lower() in _ENDINGS]
    if not files:
        raise DataError(f"expected images in {folder}, one folder for each class, got none")
    if most is not None:
        files = [files[i] for i in _picked(len(files), most, seed=0)]
    crops, content = _decoded(folder, files, pixels)
    return ImageSet(crops, content, tuple(place[p.parent.name] for p in files), tuple(range(len(files))))


def _decoded(folder: Path, files: Sequence[Path], pixels: int) -> tuple[Path, str]:
    """The file of crops, and a hash of its content."""
    stamps = [(str(p.relative_to(folder)), (s := p.stat()).st_size, s.st_mtime_ns) for p in files]
    key = hashlib.sha256(json.dumps([_FORMAT, pixels, stamps]).encode()).hexdigest()[:16]
    crops, note = (folder / ".crops" / f"{key}.{ending}" for ending in ("npy", "sha256"))
    if not note.exists():  # written last
        part = crops.with_suffix(f".{os.getpid()}.part")
        try:
            crops.parent.mkdir(exist_ok=True)
            content = _write(part, files, pixels)
            part.replace(crops)
            note.write_text(content, encoding="ascii")
        except OSError as error:
            raise DataError(f"expected to keep decoded images in {crops.parent}, but: {error}") from error
        finally:
            part.unlink(missing_ok=True)
    return crops, note.read_text(encoding="ascii")


def _write(path: Path, files: Sequence[Path], pixels: int) -> str:
    """Decode in as many threads as torch has; returns the hash."""
    total = hashlib.sha256()
    out = np.lib.format.open_memmap(path, "w+", np.uint8, (len(files), pixels, pixels, 3))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool, progress("decoding", len(files)) as advance:
        for i in range(0, len(files), 256):  # ours: few enough to wait for, many enough to share out
            for j, crop in enumerate(pool.map(lambda p: _read(p, pixels), files[i : i + 256]), i):
                out[j] = crop
                total.update(crop.tobytes())
                advance()
    out.flush()
    return total.hexdigest()[:20]


def _read(path: Path, pixels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        with _pillow().open(path) as image:
            return clip_crop(image, pixels)
    except OSError as error:
        raise DataError(f"expected an image, but {path} cannot be read: {error}") from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'pillow' for images: pip install 'spiritlevel[zoos]'"
        ) from error
    return Image
