"""The zoos of the papers in the formats they were published in, and their test sets: named in ``studies/*.yaml``.

Data lie in one folder, ``$SPIRITLEVEL_DATA`` (by default ``data`` in the current folder); `docs/recipes/real_zoos.md`
says what goes where and how to get it.
"""

from spiritlevel.experiments.zoos.clip_soups import CLIPClassifier, clip_classifier
from spiritlevel.experiments.zoos.feather_berts import convert_bert, convert_berts
from spiritlevel.experiments.zoos.images import ImageSet, clip_crop
from spiritlevel.experiments.zoos.tensor_bundle import read_bundle

__all__ = [
    "CLIPClassifier",
    "ImageSet",
    "clip_classifier",
    "clip_crop",
    "convert_bert",
    "convert_berts",
    "read_bundle",
]
