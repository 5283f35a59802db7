"""The fine-tuned BERTs of McCoy, Min and Linzen (2020): TensorFlow checkpoints, made into Hugging Face folders.

Each ``bert_NN.zip`` holds what Google's ``run_classifier.py`` leaves behind: the variables of BERT, ``output_weights``
and ``output_bias``, and Adam's moments, which are two thirds of the file and are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from spiritlevel.core.progress import progress
from spiritlevel.errors import CheckpointError
from spiritlevel.experiments.zoos.tensor_bundle import read_bundle

__all__ = ["LABELS", "TANH", "convert_bert", "convert_berts"]

LABELS = ("contradiction", "entailment", "neutral")
"""The classes in the order of the networks' outputs."""

TANH = "gelu_pytorch_tanh"
_HEAD = 64  # width of a head in every BERT that Google published; a checkpoint does not say it
_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_CLASSIFIER = {"output_weights": "classifier.weight", "output_bias": "classifier.bias"}


def convert_berts(source: str | Path, target: str | Path) -> list[Path]:
    """Make a Hugging Face folder of every TensorFlow checkpoint one folder deep; those that are there are kept.

    Args:
        source: the folder with the unpacked ``bert_00``, ``bert_01`` and so on.
        target: where folders of the same names are written.

    Returns:
        All folders of the target that belong to a checkpoint of the source.
    """
    found = sorted(p for p in Path(source).iterdir() if p.is_dir() and _newest(p) is not None)
    if not found:
        raise CheckpointError(f"expected folders with model.ckpt-*.index in {source}, got none: unpack the archives")
    made = []
    with progress("converting", len(found)) as advance:
        for folder in found:
            made.append(Path(target) / folder.name)
            if not (made[-1] / "config.json").exists():
                convert_bert(folder, made[-1])
            advance(folder.name)
    return made


def convert_bert(source: str | Path, target: str | Path, *, heads: int | None = None, activation: str = TANH) -> Path:
    """Make one Hugging Face folder of a TensorFlow checkpoint.

    Args:
        source: the folder it lies in.
        target: the folder to write; ``config.json`` comes last, so that a half-written one is never taken for whole.
        heads: of each layer; by default one for 64 columns, as in all BERTs of Google's.
        activation: of the perceptrons, by transformers' name. Google's code has GELU by tanh from May 2019 on, and so
            in the version that these networks were made with; ``gelu`` for older ones.

    Raises:
        CheckpointError: where there is no checkpoint, or not one of a BERT with a classifier.
    """
    prefix = _newest(Path(source))
    if prefix is None:
        raise CheckpointError(f"expected model.ckpt-*.index in {source}, got none: unpack the archive there")
    raw = read_bundle(prefix, _wanted)
    weights = {_renamed(n): _turned(n, w) for n, w in raw.items()}
    target = Path(target)
    target.mkdir(parents=True, exist_ok=True)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(
        json.dumps(_config(weights, heads, activation), indent=1) + "\n", encoding="utf-8"
    )
    return target


def _newest(folder: Path) -> Path | None:
    """The checkpoint of the most steps."""
    found = {int(m[1]): p for p in folder.glob("*.index") if (m := re.fullmatch(r"model\.ckpt-(\d+)\.index", p.name))}
    return found[max(found)].with_suffix("") if found else None


def _wanted(name: str) -> bool:
    return name in _CLASSIFIER or (name.startswith("bert/") and not name.endswith(("/adam_m", "/adam_v")))


def _renamed(name: str) -> str:
    """From TensorFlow's names to those of transformers.

    >>> _renamed("bert/encoder/layer_3/attention/output/LayerNorm/gamma"), _renamed("output_weights")
    ('bert.encoder.layer.3.attention.output.LayerNorm.weight', 'classifier.weight')
    """
    if name in _CLASSIFIER:
        return _CLASSIFIER[name]
    name = _LAYER.sub(r"bert/encoder/layer/\1/", name)
    name = re.sub(r"/(kernel|gamma)$", "/weight", name)
    name = re.sub(r"/beta$", "/bias", name)
    return (name + "/weight" if name.endswith("_embeddings") else name).replace("/", ".")


def _turned(name: str, weight: Tensor) -> Tensor:
    """Kernels of TensorFlow have inputs first; the weights of the last layer are as torch has them."""
    return weight.T.contiguous() if name.endswith("/kernel") else weight


def _config(weights: Mapping[str, Tensor], heads: int | None, activation: str) -> dict[str, Any]:
    try:
        words = weights["bert.embeddings.word_embeddings.weight"]
        places, kinds = (weights[f"bert.embeddings.{n}_embeddings.weight"] for n in ("position", "token_type"))
        inner, classes = weights["bert.encoder.layer.0.intermediate.dense.weight"], weights["classifier.weight"]
    except KeyError as error:
        raise CheckpointError(f"expected a fine-tuned BERT with a classifier, but there is no {error}") from error
    named = dict(enumerate(LABELS if len(classes) == len(LABELS) else map(str, range(len(classes)))))
    return {
        "architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_act": activation,
        "hidden_size": words.shape[1], "vocab_size": words.shape[0], "intermediate_size": inner.shape[0],
        "num_hidden_layers": len({n.split(".")[3] for n in weights if n.startswith("bert.encoder.layer.")}),
        "num_attention_heads": heads or max(words.shape[1] // _HEAD, 1), "layer_norm_eps": 1e-12,
        "max_position_embeddings": places.shape[0], "type_vocab_size": kinds.shape[0], "pad_token_id": 0,
        "id2label": named, "label2id": {v: k for k, v in named.items()},
    }  # fmt: skip
