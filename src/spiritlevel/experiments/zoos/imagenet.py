"""ImageNet and its shifted test sets, named in ``studies/clip_soups_imagenet.yaml``.

Classes are WordNet identifiers, the names of the folders of ``imagenet/train``, in their order: so the 1000 outputs of
every network trained on ImageNet are numbered. ImageNet-R and ImageNet-A have 200 of them each: their labels count
within those 200, and of a network's scores only those 200 are looked at, as their authors say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torch import Tensor

from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.experiments.zoos.images import ImageSet, image_folder
from spiritlevel.experiments.zoos.places import at, most

__all__ = [
    "adversarial",
    "adversarial_scores",
    "renditions",
    "renditions_scores",
    "sketch",
    "train",
    "val",
]

_TRAIN, _VAL, _SKETCH, _R, _A = "imagenet/train", "imagenet/val", "sketch", "imagenet-r", "imagenet-a"
_TRAINING = 10_000  # ours: so many training images give the training error to within 0.4 % (one standard error)


def _classes(folder: Path) -> tuple[str, ...]:
    """The WordNet identifiers in a folder, in order; others, such as a README, are no classes."""
    found = tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and re.fullmatch(r"n\d{8}", p.name)))
    if not found:
        raise DataError(f"expected folders named by WordNet identifiers (n01440764) in {folder}, got none")
    return found


def train() -> ImageSet:
    """10 000 training images, picked at random with a fixed seed."""
    return image_folder(at(_TRAIN), _classes(at(_TRAIN)), most(_TRAINING))


def val() -> ImageSet:
    """The validation images, in folders as the training images are."""
    return image_folder(at(_VAL), _classes(at(_TRAIN)), most())


def sketch() -> ImageSet:
    """ImageNet-Sketch (Wang et al. 2019): drawings of all 1000 classes."""
    return image_folder(at(_SKETCH), _classes(at(_TRAIN)), most())


def renditions() -> ImageSet:
    """ImageNet-R (Hendrycks et al. 2021): renditions of 200 classes."""
    return _of_some(_R)


def adversarial() -> ImageSet:
    """ImageNet-A (Hendrycks et al. 2021): photographs of 200 classes that ResNet-50 gets wrong."""
    return _of_some(_A)


def renditions_scores(scores: Tensor) -> Tensor:
    """Of the scores for all classes those for the classes of ImageNet-R."""
    return _columns(scores, _places(_R, at(_TRAIN).absolute()))


def adversarial_scores(scores: Tensor) -> Tensor:
    """Of the scores for all classes those for the classes of ImageNet-A."""
    return _columns(scores, _places(_A, at(_TRAIN).absolute()))


def _of_some(name: str) -> ImageSet:
    return image_folder(at(name), _classes(at(name)), most())


@cache
def _places(name: str, train: Path) -> tuple[int, ...]:
    """Where the classes of a smaller set stand among all."""
    order = {c: i for i, c in enumerate(_classes(train))}
    found = _classes(at(name))
    strange = [c for c in found if c not in order]
    if strange:
        raise DataError(f"expected classes of {train} in {name}, got {', '.join(strange[:5])}")
    return tuple(order[c] for c in found)


def _columns(scores: Tensor, places: Sequence[int]) -> Tensor:
    """The scores of some classes, in the order of ``places``.

    Raises:
        ArgumentError: where there are not so many scores.
    """
    if max(places) >= scores.shape[-1]:
        raise ArgumentError(f"expected scores of at least {max(places) + 1} classes, got {scores.shape[-1]}")
    return scores[..., list(places)]
