"""Scikit-learn's 8 x 8 digits, and shifted versions of those kept for testing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import Tensor

from spiritlevel.demo.optional import optional

__all__ = ["CLEAN", "SHIFTS", "blurred", "clean", "digits", "noisy", "plain", "rotated", "thick", "thin", "training"]

Data = tuple[Tensor, Tensor]
"""Images from -1 to 1, and labels."""

Ink = npt.NDArray[np.float32]

CLEAN = 384
"""Training digits whose labels are never changed: the training loss and the sharpness are taken on them."""
_TRAINED_ON = 896  # of 1797; as many are kept for testing, so that errors are known to about 1 %
_FINE = 4  # strokes are changed on a grid so much finer


@cache
def _shuffled() -> Data:
    data = optional("sklearn.datasets").load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def digits(trained_on: int = 1280) -> tuple[Data, Data]:
    """The digits, shuffled once: so many for training, and the others."""
    images, labels = _shuffled()
    return (images[:trained_on], labels[:trained_on]), (images[trained_on:], labels[trained_on:])


def training() -> Data:
    """What the zoo is trained on; the first `CLEAN` keep their labels."""
    return digits(_TRAINED_ON)[0]


def clean() -> Data:
    """The part of the training data that all networks of the zoo saw with the right labels."""
    images, labels = training()
    return images[:CLEAN], labels[:CLEAN]


def plain() -> Data:
    """Test digits as they are."""
    return digits(_TRAINED_ON)[1]


def _shifted(change: Callable[[Ink], Ink]) -> Data:
    """The test digits, each changed; a changed image takes ink from 0 to 1 and gives it."""
    images, labels = plain()
    ink = (images.squeeze(1).numpy() + 1) / 2
    changed = np.clip(np.stack([change(image) for image in ink]), 0, 1)
    return torch.tensor(changed * 2 - 1, dtype=torch.float32).unsqueeze(1), labels


def rotated(degrees: float = 20.0) -> Data:
    """Turned, every other digit the other way."""
    signs = iter(np.resize([1, -1], len(plain()[1])))
    return _shifted(lambda ink: ndimage.rotate(ink, degrees * next(signs), reshape=False, order=1))


def blurred(sigma: float = 0.8) -> Data:
    """Through a Gaussian of so many pixels, at the contrast they had."""

    def blur(ink: Ink) -> Ink:
        soft = ndimage.gaussian_filter(ink, sigma)
        brought: Ink = soft * (ink.max() / soft.max())
        return brought

    return _shifted(blur)


def noisy(deviation: float = 0.25) -> Data:
    """With Gaussian noise on each pixel."""
    draws = np.random.default_rng(0)
    return _shifted(lambda ink: ink + deviation * draws.standard_normal(ink.shape, dtype=np.float32))


def thick() -> Data:
    """With strokes half a pixel wider on each side."""
    return _shifted(lambda ink: _strokes(ink, ndimage.grey_dilation))


def thin() -> Data:
    """With strokes half a pixel narrower on each side."""
    return _shifted(lambda ink: _strokes(ink, ndimage.grey_erosion))


def _strokes(ink: Ink, change: Callable[..., Ink]) -> Ink:
    """Widen or narrow strokes on a finer grid, where half a pixel is a step."""
    fine = np.clip(ndimage.zoom(ink, _FINE, order=1, grid_mode=True, mode="nearest"), 0, 1)
    moved = change(fine, size=_FINE + 1)
    coarse: Ink = moved.reshape(ink.shape[0], _FINE, ink.shape[1], _FINE).mean((1, 3))
    return coarse


SHIFTS: dict[str, Callable[[], Data]] = {
    "test": plain,
    "rotated": rotated,
    "blurred": blurred,
    "noisy": noisy,
    "thick": thick,
    "thin": thin,
}
"""The test sets by name: the digits as they are, and five shifts."""
