"""Tiny files in the formats of the real zoos and their data: the same names, smaller shapes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331")
BUNDLE = Path(__file__).parent / "bundles" / "bert_00"
_VOCABULARY = """
[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] the a doctor lawyer actor judge saw helped near danced ran who and if because
believed artist ##s ##ed ##ing student paid slept in . , was by man woman happy sad book read wrote senator never always
"""
WORDS = tuple(_VOCABULARY.split())


def soup_weights(seed: int, layers: int = 2, classes: int = len(WNIDS)) -> dict[str, Tensor]:
    """A state dict as a model soup's file has it: CLIP without its text transformer below ``model.``, and a head.

    Two heads (width 128), patches of 32 pixels on 224, and the left-overs of the text side.
    """
    g, width, patch, features = torch.Generator().manual_seed(seed), 128, 32, 24

    def draw(*shape: int, scale: float = 0.1) -> Tensor:
        return scale * torch.randn(*shape, generator=g)

    w = {
        "model.positional_embedding": draw(7, 16),
        "model.text_projection": draw(16, features),
        "model.logit_scale": torch.tensor(4.6),
        "model.visual.class_embedding": draw(width),
        "model.visual.positional_embedding": draw(50, width),
        "model.visual.proj": draw(width, features),
        "model.visual.conv1.weight": draw(width, 3, patch, patch, scale=0.02),
        **_norm("model.visual.ln_pre", draw(width), draw(width)),
    }
    for i in range(layers):
        block = f"model.visual.transformer.resblocks.{i}"
        w |= {
            f"{block}.attn.in_proj_weight": draw(3 * width, width, scale=0.2),
            f"{block}.attn.in_proj_bias": draw(3 * width),
            f"{block}.attn.out_proj.weight": draw(width, width),
            f"{block}.attn.out_proj.bias": draw(width),
            **_norm(f"{block}.ln_1", draw(width), draw(width)),
            f"{block}.mlp.c_fc.weight": draw(4 * width, width),
            f"{block}.mlp.c_fc.bias": draw(4 * width),
            f"{block}.mlp.c_proj.weight": draw(width, 4 * width),
            f"{block}.mlp.c_proj.bias": draw(width),
            **_norm(f"{block}.ln_2", draw(width), draw(width)),
        }
    return {
        **w,
        **_norm("model.visual.ln_post", draw(width), draw(width)),
        "model.token_embedding.weight": draw(9, 16),
        **_norm("model.ln_final", draw(16), draw(16)),
        "classification_head.weight": draw(classes, features, scale=3.0),
        "classification_head.bias": draw(classes),
    }


def _norm(name: str, gain: Tensor, shift: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": 1 + gain, f"{name}.bias": shift}


def soup_logits(w: dict[str, Tensor], images: Tensor) -> Tensor:
    """The forward pass of OpenAI's image encoder and the soups' head, written out from a state dict, in float64."""
    w = {n: t.double() for n, t in w.items()}
    v, x = "model.visual.", images.double()
    width, patch = w[v + "conv1.weight"].shape[0], w[v + "conv1.weight"].shape[-1]
    n, side = len(x), x.shape[-1] // patch
    tiles = x.reshape(n, 3, side, patch, side, patch).permute(0, 2, 4, 1, 3, 5).reshape(n, side * side, -1)
    x = tiles @ w[v + "conv1.weight"].reshape(width, -1).T
    x = torch.cat([w[v + "class_embedding"].repeat(n, 1, 1), x], 1) + w[v + "positional_embedding"]
    x = _normed(x, w, v + "ln_pre")
    layers = sum(name.endswith("attn.in_proj_weight") for name in w)
    for i in range(layers):
        b = f"{v}transformer.resblocks.{i}."
        x = x + _attention(_normed(x, w, b + "ln_1"), w, b + "attn.")
        inner = _normed(x, w, b + "ln_2") @ w[b + "mlp.c_fc.weight"].T + w[b + "mlp.c_fc.bias"]
        inner = inner / (1 + torch.exp(-1.702 * inner))
        x = x + inner @ w[b + "mlp.c_proj.weight"].T + w[b + "mlp.c_proj.bias"]
    features = _normed(x[:, 0], w, v + "ln_post") @ w[v + "proj"]
    features = features / features.square().sum(-1, keepdim=True).sqrt()
    return features @ w["classification_head.weight"].T + w["classification_head.bias"]


def _normed(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name + ".weight"] + w[name + ".bias"]


def _attention(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    n, tokens, width = x.shape
    q, k, v = (x @ w[name + "in_proj_weight"].T + w[name + "in_proj_bias"]).split(width, -1)
    out = torch.empty_like(x)
    for h in range(width // 64):
        at = slice(64 * h, 64 * h + 64)
        share = torch.softmax(q[..., at] @ k[..., at].mT / 8, -1)
        out[..., at] = share @ v[..., at]
    assert out.shape == (n, tokens, width)
    return out @ w[name + "out_proj.weight"].T + w[name + "out_proj.bias"]


def write_soups(folder: Path, count: int) -> None:
    """``model_0.pt`` and so on, and the hyperparameters as they are published: none for the first."""
    folder.mkdir(parents=True, exist_ok=True)
    table: dict[str, dict[str, object]] = {"model_0": {"info": "LP initialization"}}
    for i in range(count):
        torch.save(soup_weights(i), folder / f"model_{i}.pt")
        if i:
            aug = None if i % 2 else "rand-m1-n0"
            table[f"model_{i}"] = {"aug": aug, "wd": 0.1 * i, "lr": 1e-5 * i, "mix": 0, "smoothing": 0, "epochs": i + 3}
    table["model_71"] = {"aug": None, "wd": 0.1, "lr": 1e-5, "mix": 0.5, "smoothing": 0, "epochs": 9}
    (folder / "hparam_info.json").write_text(json.dumps(table))


def write_images(folder: Path, classes: Sequence[str], each: int, seed: int) -> None:
    """A folder of small JPEG images for each class, of all shapes, and a file beside them that is none."""
    g = np.random.default_rng(seed)
    for i, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(each):
            size = (300, 256) if k % 2 else (230, 280)
            colour = np.linspace(0, 255, size[0] * size[1]).reshape(*size, 1) * [1, i / 6, 0.5] + g.normal(
                0, 9, (1, 1, 3)
            )
            Image.fromarray(np.clip(colour, 0, 255).astype(np.uint8)).save(folder / name / f"{name}_{k}.JPEG")
    (folder / "README.txt").write_text("no class")


def write_imagenets(data: Path, each: int = 4) -> None:
    """ImageNet and its shifted test sets with six classes; ImageNet-R and -A have three and two of them."""
    for i, (name, classes) in enumerate(
        {
            "imagenet/train": WNIDS,
            "imagenet/val": WNIDS,
            "sketch": WNIDS,
            "imagenet-r": (WNIDS[4], WNIDS[1], WNIDS[2]),
            "imagenet-a": (WNIDS[5], WNIDS[0]),
        }.items()
    ):
        write_images(data / name, classes, each if i else 2 * each, i)


PAIRS = [
    ("The doctor helped the lawyer .", "The lawyer helped the doctor .", "contradiction"),
    ('" The actor ran , and the judge slept .', "The judge slept .", "entailment"),
    ("The student paid .", "The student paid in the book .", "neutral"),
    ("A man danced .", "A woman danced .", "-"),
    ("The artist who saw the judge ran .", "The judge ran .", "neutral"),
    ("The senator never slept .", "The senator slept .", "contradiction"),
    ("The doctors walked .", "A doctor was walking zzz .", "entailment"),
]


def write_mnli(data: Path) -> None:
    """GLUE's MNLI (with its quotation marks as they come), HANS, and a vocabulary of 48 word pieces."""
    assert len(WORDS) <= 48
    (data / "MNLI").mkdir(parents=True)
    heads = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"]
    heads += ["sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1"]
    for name, judges in (("train", 1), ("dev_matched", 5), ("dev_mismatched", 5)):
        extra = [f"label{i}" for i in range(2, judges + 1)]
        lines = ["\t".join([*heads, *extra, "gold_label"])]
        for i, (a, b, label) in enumerate(PAIRS):
            lines.append("\t".join([str(i), "1", "1e", "fiction", *["( x )"] * 4, a, b, *["neutral"] * judges, label]))
        (data / "MNLI" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    (data / "HANS").mkdir()
    heads = ["gold_label", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse"]
    heads += ["sentence1", "sentence2", "pairID", "heuristic", "subcase", "template"]
    lines = ["\t".join(heads)]
    for i, (a, b, label) in enumerate(PAIRS):
        gold = "entailment" if label == "entailment" else "non-entailment"
        lines.append("\t".join([gold, *["( x )"] * 4, a, b, f"ex{i}", "lexical_overlap", "ln_passive", "temp1"]))
    (data / "HANS" / "heuristics_evaluation_set.txt").write_text("\n".join(lines) + "\n")
    (data / "bert").mkdir()
    (data / "bert" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
