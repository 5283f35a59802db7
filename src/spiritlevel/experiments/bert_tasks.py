"""The two tasks of the zoo of BERTs, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from spiritlevel.demo.cache import cache_home, prepared
from spiritlevel.experiments.bert_encoder import Array, Encoded, Texts, encoded, small_vocabulary, tokenizer
from spiritlevel.experiments.bert_entailment import HEURISTICS, Pair, pairs, shifted
from spiritlevel.experiments.bert_sentiment import IMDB, ROTTEN_TOMATOES, ends, fetched, read_reviews, reviews_of
from spiritlevel.experiments.bert_training import Setting

__all__ = ["TASKS", "Task", "arrays_of"]

TRAIN, TEST = "train", "test"
_BREAKING = 0.2  # ours: with 0.1, two layers see too few in a short training to learn any
_SPECIAL = 2  # tokens that a text has at its ends


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        what: for reports.
        shifts: names of its shifted sets.
        texts: setting and seed to texts by name of the set.
    """

    what: str
    shifts: tuple[str, ...]
    texts: Callable[[Setting, int], dict[str, Texts]]


def arrays_of(task: Task, setting: Setting, seed: int) -> tuple[dict[str, Encoded], Array]:
    """Its sets by name, with a vocabulary of their own, and the pretrained id of each word."""
    words = tokenizer()
    texts = task.texts(setting, seed)
    return small_vocabulary({name: encoded(t, words, setting.length) for name, t in texts.items()})


def _entailment(setting: Setting, seed: int) -> dict[str, Texts]:
    both = pairs(setting.training + setting.test, _BREAKING, seed)
    sets = {TRAIN: both[: setting.training], TEST: both[setting.training :]}
    known = set(both)
    for heuristic in HEURISTICS:
        fresh = [p for p in shifted(heuristic, 2 * setting.test, seed + 1) if p not in known]
        sets[heuristic] = fresh[: setting.test]
    return {name: _texts(found) for name, found in sets.items()}


def _texts(found: Sequence[Pair]) -> Texts:
    return Texts([p.premise for p in found], [p.label for p in found], [p.hypothesis for p in found])


def _sentiment(setting: Setting, seed: int) -> dict[str, Texts]:
    """Reviews of IMDB, cut to their ends, and of Rotten Tomatoes; all lengths are drawn from those of the latter."""
    draw, words = np.random.default_rng(seed), tokenizer()
    reviews = read_reviews(fetched(prepared(cache_home() / "spiritlevel", fresh=False)))
    known = reviews_of(reviews, IMDB, setting.training + setting.test, draw)
    other = reviews_of(reviews, ROTTEN_TOMATOES, setting.test, draw)
    tokens = words([r.text for r in other], add_special_tokens=False)["input_ids"]
    lengths = np.array([min(len(t), setting.length - _SPECIAL) for t in tokens])
    cut = ends(known, [int(n) for n in draw.choice(lengths, len(known))], words)
    n = setting.training
    return {
        TRAIN: Texts(cut.first[:n], cut.labels[:n]),
        TEST: Texts(cut.first[n:], cut.labels[n:]),
        ROTTEN_TOMATOES: ends(other, [int(n) for n in lengths], words),
    }


TASKS: dict[str, Task] = {  # what must be fetched comes first: if it cannot be, that shows before hours of training
    "sentiment": Task("film reviews: IMDB, shifted to Rotten Tomatoes", (ROTTEN_TOMATOES,), _sentiment),
    "entailment": Task("entailment from templates, synthetic, in the manner of HANS", HEURISTICS, _entailment),
}
