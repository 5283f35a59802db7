"""MNLI and HANS for BERT, named in ``studies/feather_berts_mnli.yaml``.

Pairs of sentences are cut into word pieces by the vocabulary ``bert/vocab.txt`` of the data folder (uncased BERT), the
longer sentence shortened until both fit into 128 pieces, as Google's code does.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spiritlevel.errors import DataError, MissingDependencyError
from spiritlevel.experiments.zoos.feather_berts import LABELS
from spiritlevel.experiments.zoos.places import at, most

__all__ = ["hans", "hans_scores", "mismatched", "pairs", "tokenised", "train", "val"]

Pair = tuple[str, str, str]
"""Premise, hypothesis, label."""

LENGTH = 128  # word pieces, the separators included: McCoy et al. 2020, as in their run_classifier call
_LONGEST_WORD = 200  # characters; Google's tokenizer. A longer one is unknown
_TRAINING = 10_000  # ours: so many training pairs give the training error to within 0.4 % (one standard error)
_HANS = ("entailment", "non-entailment")


def train() -> dict[str, Tensor]:
    """10 000 training pairs, picked at random with a fixed seed."""
    return _arrays(_first("MNLI/train.tsv", "multinli_1.0/multinli_1.0_train.jsonl"), LABELS, most(_TRAINING))


def val() -> dict[str, Tensor]:
    """The matched development set, on which McCoy et al. report accuracy."""
    return _arrays(_first("MNLI/dev_matched.tsv", "multinli_1.0/multinli_1.0_dev_matched.jsonl"), LABELS, most())


def mismatched() -> dict[str, Tensor]:
    """The mismatched development set: other genres than the training pairs."""
    return _arrays(_first("MNLI/dev_mismatched.tsv", "multinli_1.0/multinli_1.0_dev_mismatched.jsonl"), LABELS, most())


def hans() -> dict[str, Tensor]:
    """HANS (McCoy, Pavlick and Linzen 2019): pairs in which overlap of words suggests entailment; two classes."""
    return _arrays(at("HANS/heuristics_evaluation_set.txt"), _HANS, most())


def hans_scores(scores: Tensor) -> Tensor:
    """Entailment against the higher of contradiction and neutral.

    So a network's answer is that for three classes, with two of them read as one, which is how HANS is scored. The loss
    is that of these two scores; it is not that of the summed probabilities, whose answers could be others.
    """
    no, yes, open_ = scores.unbind(-1)
    return torch.stack([yes, torch.maximum(no, open_)], -1)


def _first(*names: str) -> Path:
    """The GLUE file, or the same set as MultiNLI's authors publish it."""
    try:
        return at(names[0])
    except DataError as error:
        try:
            return at(names[1])
        except DataError:
            raise error from None


def pairs(path: Path, labels: Sequence[str]) -> list[Pair]:
    """The pairs of a ``.jsonl`` or tab-separated file with ``sentence1``, ``sentence2`` and ``gold_label``.

    Pairs without an agreed label (``-``) are left out; quotation marks are characters like others.

    Raises:
        DataError: where columns are missing or a label is another.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows: Iterable[dict[str, Any]]
            if path.suffix == ".jsonl":
                rows = (json.loads(line) for line in file)
            else:
                rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            found = [(r["sentence1"], r["sentence2"], r["gold_label"]) for r in rows if r["gold_label"] != "-"]
    except (OSError, UnicodeDecodeError, KeyError, ValueError, csv.Error) as error:
        raise DataError(
            f"expected columns sentence1, sentence2 and gold_label in {path}, but it cannot be read: {error!r}"
        ) from error
    strange = sorted({str(p[2]) for p in found} - set(labels))
    if strange or not found:
        raise DataError(f"expected pairs labelled {', '.join(labels)} in {path}, got {strange[:5] or 'no pair'}")
    return found


def tokenised(found: Sequence[Pair], labels: Sequence[str], vocabulary: Path) -> dict[str, Tensor]:
    """Word pieces ``[CLS] premise [SEP] hypothesis [SEP]``, padded to the longest pair, with masks and labels."""
    tokenizer = _tokenizer(vocabulary)
    first, last = (tokenizer.token_to_id(t) for t in ("[CLS]", "[SEP]"))
    sides = [[e.ids for e in tokenizer.encode_batch([p[i] for p in found], add_special_tokens=False)] for i in (0, 1)]
    both = [_shortened(a, b, LENGTH - 3) for a, b in zip(*sides, strict=True)]
    longest = max(len(a) + len(b) for a, b in both) + 3
    shape = len(both), longest
    ids, mask, kinds = (torch.zeros(shape, dtype=torch.long) for _ in range(3))  # [PAD] is the first of the vocabulary
    for i, (a, b) in enumerate(both):
        pieces = [first, *a, last, *b, last]
        ids[i, : len(pieces)], mask[i, : len(pieces)] = torch.tensor(pieces), 1
        kinds[i, len(a) + 2 : len(pieces)] = 1
    targets = torch.tensor([labels.index(p[2]) for p in found])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds, "labels": targets}


def _arrays(path: Path, labels: Sequence[str], wanted: int | None) -> dict[str, Tensor]:
    found = pairs(path, labels)
    if wanted is not None and wanted < len(found):
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
        found = [found[i] for i in sorted(order[:wanted].tolist())]
    return tokenised(found, labels, at("bert/vocab.txt"))


def _shortened(a: list[int], b: list[int], room: int) -> tuple[list[int], list[int]]:
    """Take the last piece off the longer side, off the second where both are as long, until they fit.

    >>> _shortened([1, 2, 3, 4], [5, 6, 7], 5)
    ([1, 2, 3], [5, 6])
    """
    keep_a, keep_b = len(a), len(b)
    while keep_a + keep_b > room:
        keep_a, keep_b = (keep_a - 1, keep_b) if keep_a > keep_b else (keep_a, keep_b - 1)
    return a[:keep_a], b[:keep_b]


@cache
def _tokenizer(vocabulary: Path) -> Any:
    """Uncased BERT's, from its list of word pieces."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'tokenizers' for sentences: pip install 'spiritlevel[transformers]'"
        ) from error
    words = vocabulary.read_text(encoding="utf-8").split("\n")
    table = {w: i for i, w in enumerate(words) if w}
    missing = [t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if t not in table]
    if missing or table["[PAD]"]:
        raise DataError(
            f"expected BERT's vocabulary with [PAD] first in {vocabulary}, missing {missing or '[PAD] there'}"
        )
    model = tokenizers.models.WordPiece(table, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer
