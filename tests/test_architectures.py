"""The measured table of 46 architectures, and LoRA: what is found, that it holds, that nothing is missing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from architectures import LORA, SPECS, exact, randomise
from completeness import nullity
from spiritlevel.core.blocks import Block
from spiritlevel.errors import SymmetryError
from spiritlevel.symmetry import check_blocks
from spiritlevel.symmetry.adapters import attention, rotary
from spiritlevel.symmetry.adapters.slots import Pairing, Part, Slot, factor

ALL = {**SPECS, **LORA}
TURNED = ("cohere", "dinov3", "falcon_gqa", "falcon_mqa", "gpt_neox", "gptj", "llama", "modernbert", "phi", "phi3")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """transformers logs what it thinks of tiny configurations."""
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@cache
def built(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return randomise(ALL[name].build()), ALL[name].batch()


@cache
def claimed(name: str) -> tuple[Block, ...]:
    return claims(built(name)[0])


def claims(model: nn.Module) -> tuple[Block, ...]:
    """Every block of every kind that is found by structure, each by itself."""
    return tuple(b for kind in ("attention", "lora", "translation") for b in sl.find_symmetries(model, kinds=kind))


def of_layer(name: str) -> list[Block]:
    return [b for b in claimed(name) if f"{ALL[name].layer}: " in b.name]


def test_the_table_is_whole() -> None:
    assert len(SPECS) == 46


@pytest.mark.parametrize("name", ALL)
def test_the_predicted_groups_are_found(name: str) -> None:
    """Kills: a layout read wrongly, a block left out, one group for all heads or one per query of a group."""
    blocks = of_layer(name)
    assert {b.name.partition(": ")[2]: b.group for b in blocks} == ALL[name].groups
    assert sum(b.dimension for b in blocks) == ALL[name].dimension


@pytest.mark.parametrize("name", ALL)
def test_every_block_holds_in_float64(name: str) -> None:
    """Kills: a bias left out of a factor, queries in the wrong order, an offset of 1 forgotten (Gemma)."""
    model, batch = built(name)
    blocks = claimed(name)  # found in the model as it is
    with exact():
        drifts = sl.verify_symmetries(model, batch, blocks, seed=3)
    assert len(drifts) == len(blocks) > 0
    assert max(drifts.values()) <= 1e-12


@pytest.mark.parametrize("name", ALL)
def test_every_block_holds_in_float32_as_the_model_is(name: str) -> None:
    model, batch = built(name)
    drifts = sl.verify_symmetries(copy.deepcopy(model).float(), batch, claimed(name), seed=4)
    assert max(drifts.values()) <= 1e-5


@pytest.mark.parametrize("name", SPECS)
def test_nothing_is_missing(name: str) -> None:
    """The null space of the layer's Jacobian has the predicted dimension. Kills: a symmetry that nobody looks for."""
    model, batch = built(name)
    first = of_layer(name)[0]
    outputs = [b for b in of_layer(name) if b.name.endswith("values, output")]
    output = outputs[0].right.parameters[0].removesuffix(".weight")
    found = nullity(model, batch, first.name.partition(": ")[0], output)
    assert found.count == ALL[name].dimension
    assert found.largest_null < 1e-14
    assert found.smallest_other > 1e-10


@pytest.mark.parametrize("name", TURNED)
def test_wrong_rotary_pairs_are_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: neighbours for halves and halves for neighbours; a gate that lets them pass."""
    model, batch = built(name)
    right = rotary.turned_pairs

    def wrong(*args: Any) -> Pairing:
        return Pairing.HALVES if right(*args) is Pairing.NEIGHBOURS else Pairing.NEIGHBOURS

    monkeypatch.setattr(rotary, "turned_pairs", wrong)
    found = [b for b in sl.find_symmetries(model) if "queries, keys" in b.name]
    rejected(model, batch, [b for b in found if "(plain columns)" not in b.name])


@pytest.mark.parametrize("name", TURNED)
def test_the_full_group_is_rejected_where_positions_turn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's GL(h) on queries and keys, as it would be applied to a rotary model."""
    model, batch = built(name)
    monkeypatch.setattr(attention, "parts_of", lambda module, width: [Part(0, width)])
    rejected(model, batch, [b for b in sl.find_symmetries(model) if "queries, keys" in b.name])


def test_a_group_for_each_query_of_a_shared_key_is_rejected() -> None:
    """SmolLM3's layers without positions: the queries of a key-value head move together or not at all."""
    name = "model.layers.0.self_attn"
    q = Slot(f"{name}.q_proj.weight", (2, 2, 4, 16), (slice(None), slice(0, 1)), 2, 1, 16)
    k = Slot(f"{name}.k_proj.weight", (2, 4, 16), (slice(None),), 2, 1, 16)
    one = sl.Pair("one query of two", factor([q], Part(0, 4)), factor([k], Part(0, 4)))
    rejected(*built("smollm3"), [one])


@pytest.mark.parametrize("role", ["key", "value"])
def test_heads_that_do_not_belong_together_are_rejected(role: str) -> None:
    name = "encoder.layer.0.attention"
    first = Slot(f"{name}.self.{role}.weight", (2, 4, 8), (slice(0, 1),), 1, 1, 8)
    if role == "key":
        other = Slot(f"{name}.self.query.weight", (2, 4, 8), (slice(1, 2),), 1, 1, 8)
    else:
        other = Slot(f"{name}.output.dense.weight", (8, 2, 4), (slice(None), slice(1, 2)), 1, 1, 8, True)
    rejected(*built("bert"), [sl.Pair("crossed", factor([other], Part(0, 4)), factor([first], Part(0, 4)))])


def test_adalora_has_no_full_group() -> None:
    """Kills: GL(r) for AdaLoRA, whose singular values stand between the two factors."""
    model, batch = built("adalora")
    layer = "base_model.model.encoder.layer.0.attention.self.query"
    up, down = (
        sl.Piece(f"{layer}.lora_{x}.default", shape, batch=(), rows=(rows,), column=1 - rows)
        for x, shape, rows in (("B", (8, 3), 0), ("A", (3, 8), 1))
    )
    rejected(model, batch, [sl.Pair("full", sl.Factor((up,)), sl.Factor((down,)))])


def rejected(model: nn.Module, batch: Any, blocks: list[Block]) -> None:
    assert blocks
    with exact():
        assert min(sl.verify_symmetries(model, batch, blocks).values()) >= 1e-2
        with pytest.raises(SymmetryError, match="along the orbit"):
            check_blocks(model, batch, blocks)


def test_frozen_weights_under_an_adapter_are_left_out_with_the_reason() -> None:
    """Kills: a pair on the base weight of a layer that has an adapter beside it."""
    model, _ = built("lora")
    assert {b.kind for b in sl.find_symmetries(model)} == {"lora"}
    found = sl.find_symmetries(model, parameters=[n for n, _ in model.named_parameters()])
    assert {b.kind for b in found} == {"lora"}
    assert any("query is peft.tuners.lora.layer.Linear, not a plain Linear" in x.reason for x in found.leftovers)
