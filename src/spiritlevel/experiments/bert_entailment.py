"""Entailment between sentences from templates, with test sets on which the word-overlap heuristics fail.

SYNTHETIC, in the manner of HANS (McCoy, Pavlick and Linzen 2019) with templates and words of our own. In training a
hypothesis is mostly entailed when the premise has all its words, and not when it brings a new one (a negation, as so
often in the real thing, or another noun or verb); a small share of the training pairs breaks that rule. On the
shifted sets every pair breaks it and none is entailed:

=================  ================================================================================================
heuristic          a pair that is not entailed, although ...
=================  ================================================================================================
lexical overlap    the premise has all the words: the nurse thanked the baker / the baker thanked the nurse
subsequence        they stand there in a row: the nurse near the baker laughed / the baker laughed
constituent        they are a whole clause there: if the nurse laughed, the baker waited / the nurse laughed
=================  ================================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["BREAKING", "HEURISTICS", "Pair", "pairs", "shifted"]

ENTAILED, NOT_ENTAILED = 1, 0
_NOUNS = (
    "baker", "dentist", "driver", "farmer", "gardener", "guard", "guest", "hunter", "merchant", "miner", "neighbor",
    "nurse", "painter", "pilot", "poet", "priest", "prince", "sailor", "singer", "soldier", "tailor", "teacher",
    "tourist", "writer",
)  # fmt: skip
_TRANSITIVE = (
    "admired", "blamed", "called", "followed", "greeted", "helped", "invited", "noticed", "praised", "thanked",
    "trusted", "visited", "warned", "watched",
)  # fmt: skip  # past tense and participle are one word: passives need no second list
_INTRANSITIVE = (
    "arrived", "cried", "fell", "hesitated", "laughed", "left", "shouted", "slept", "smiled", "spoke", "stumbled",
    "waited",
)  # fmt: skip
_PLACES = ("near", "behind", "beside", "opposite")
_SURE = ("because", "since", "when", "after")  # what follows is said to be so
_UNSURE = ("if", "unless", "in case", "whether or not")  # what follows is left open
_KNOWN = ("knew", "remembered", "forgot", "saw")
_DOUBTED = ("doubted", "hoped", "believed", "claimed")

# Of a, b, c, x (nouns), t, u (transitive), i, j, v (intransitive), p (places), s, o (conjunctions), k, d (verbs of
# clauses) no two draws in a pair are the same word.
_AGREEING = (
    ("the {a} and the {b} {i}", "the {b} {i}"),
    ("the {a} and the {b} {t} the {c}", "the {b} {t} the {c}"),
    ("the {a} was {t} by the {b}", "the {b} {t} the {a}"),
    ("the {a} {i} {p} the {b}", "the {a} {i}"),
    ("the {a} {t} the {b} {p} the {c}", "the {a} {t} the {b}"),
    ("the {a} who {t} the {b} {i}", "the {a} {t} the {b}"),
    ("{s} the {a} {i} , the {b} {j}", "the {a} {i}"),
    ("the {a} {k} that the {b} {i}", "the {b} {i}"),
    ("the {a} {i} , and the {b} {j}", "the {b} {j}"),
)
_NEW_WORDS = (
    ("the {a} and the {b} {i}", "the {b} never {i}"),
    ("the {a} and the {b} {t} the {c}", "the {b} {u} the {c}"),
    ("the {a} was {t} by the {b}", "nobody {t} the {a}"),
    ("the {a} {i} {p} the {b}", "the {a} {v}"),
    ("the {a} {t} the {b} {p} the {c}", "nobody {t} the {b}"),
    ("the {a} who {t} the {b} {i}", "the {x} {t} the {b}"),
    ("{s} the {a} {i} , the {b} {j}", "nobody {i}"),
    ("the {a} {k} that the {b} {i}", "the {x} {i}"),
    ("the {a} {i} , and the {b} {j}", "the {b} never {j}"),
    ("{s} the {a} {i} , the {b} {j}", "the {a} {v}"),
)
BREAKING: dict[str, tuple[tuple[str, str], ...]] = {
    "lexical_overlap": (
        ("the {a} {t} the {b}", "the {b} {t} the {a}"),
        ("the {a} was {t} by the {b}", "the {a} {t} the {b}"),
        ("the {a} and the {b} {t} the {c}", "the {a} {t} the {b}"),
        ("the {a} who {t} the {b} {i}", "the {b} {t} the {a}"),
    ),
    "subsequence": (
        ("the {a} {p} the {b} {i}", "the {b} {i}"),
        ("the {a} who {t} the {b} {i}", "the {b} {i}"),
        ("the {a} {p} the {b} {t} the {c}", "the {b} {t} the {c}"),
        ("the {a} {k} the {b} {i}", "the {a} {k} the {b}"),
    ),
    "constituent": (
        ("{o} the {a} {i} , the {b} {j}", "the {a} {i}"),
        ("the {a} {d} that the {b} {i}", "the {b} {i}"),
        ("the {a} {i} , or the {b} {j}", "the {b} {j}"),
        ("perhaps the {a} {t} the {b}", "the {a} {t} the {b}"),
    ),
}
HEURISTICS = tuple(BREAKING)


@dataclass(frozen=True)
class Pair:
    """Two sentences.

    Attributes:
        premise: what is given.
        hypothesis: does it follow?
        label: 1 where it does, 0 where not.
        kind: ``agreeing``, ``new words``, or the heuristic that fails.
    """

    premise: str
    hypothesis: str
    label: int
    kind: str


def pairs(count: int, breaking: float, seed: int) -> list[Pair]:
    """So many different pairs of the training distribution, in random order: half of them entailed.

    Args:
        count: of pairs.
        breaking: which share of the pairs that are not entailed breaks the heuristics.
        seed: fixes them.

    >>> found = pairs(100, 0.1, seed=0)
    >>> sum(p.label for p in found), sum(p.kind in HEURISTICS for p in found)
    (50, 5)
    """
    draw = random.Random(seed)
    rare = round(count / 2 * breaking)
    every = [template for heuristic in HEURISTICS for template in ((heuristic, t) for t in BREAKING[heuristic])]
    wanted = [("agreeing", _AGREEING[i % len(_AGREEING)], ENTAILED) for i in range(count - count // 2)]
    wanted += [(*every[i], NOT_ENTAILED) for i in (draw.randrange(len(every)) for _ in range(rare))]
    wanted += [("new words", _NEW_WORDS[i % len(_NEW_WORDS)], NOT_ENTAILED) for i in range(count // 2 - rare)]
    found = list(_different(draw, wanted))
    draw.shuffle(found)
    return found


def shifted(heuristic: str, count: int, seed: int) -> list[Pair]:
    """So many different pairs on which a heuristic fails, none of them entailed.

    >>> {p.label for p in shifted("subsequence", 8, seed=0)}
    {0}
    """
    templates = BREAKING[heuristic]
    wanted = [(heuristic, templates[i % len(templates)], NOT_ENTAILED) for i in range(count)]
    return list(_different(random.Random(seed), wanted))


def _different(draw: random.Random, wanted: list[tuple[str, tuple[str, str], int]]) -> Iterator[Pair]:
    """One pair for each template, no two alike."""
    seen = set()
    for kind, (premise, hypothesis), label in wanted:
        while True:
            words = _words(draw)
            pair = Pair(premise.format(**words), hypothesis.format(**words), label, kind)
            if pair not in seen:
                break
        seen.add(pair)
        yield pair


def _words(draw: random.Random) -> dict[str, str]:
    kinds = {"abcx": _NOUNS, "tu": _TRANSITIVE, "ijv": _INTRANSITIVE, "p": _PLACES, "s": _SURE, "o": _UNSURE,
             "k": _KNOWN, "d": _DOUBTED}  # fmt: skip
    return {name: word for names, words in kinds.items()
            for name, word in zip(names, draw.sample(words, len(names)), strict=True)}  # fmt: skip
