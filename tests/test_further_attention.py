"""Attention that the measured table does not name: certified, or elementwise with a reason; never claimed wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from architectures import (
    BASE,
    GROUPED,
    NO_TOKENS,
    TEXT,
    VISION,
    VOCABULARY,
    WIDE,
    exact,
    of,
    pixels,
    randomise,
    rope,
    tokens,
)
from architectures import causal as causal_model


def waves() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {"input_values": torch.randn(2, 400, generator=g, dtype=torch.float64)}


def shuffled() -> dict[str, Tensor]:
    """The order in which ViT-MAE looks at patches is random, unless it is given."""
    return {**pixels()(), "noise": torch.rand(3, 4, generator=torch.Generator().manual_seed(0))}


WAVE = {
    **BASE,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
BLOCKS = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1, "max_position_embeddings": 64}

CERTIFIED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], set[str]]] = {
    "electra": (of("ElectraModel", "ElectraConfig", **TEXT, embedding_size=8), tokens, {"GL(4)^2", "R^8"}),
    "albert": (of("AlbertModel", "AlbertConfig", **TEXT, embedding_size=8), tokens, {"GL(4)^2", "R^8"}),
    "xlm_roberta": (of("XLMRobertaModel", "XLMRobertaConfig", **TEXT), tokens, {"GL(4)^2", "R^8"}),
    "mpt": (
        of("MptModel", "MptConfig", d_model=8, n_heads=2, n_layers=2, vocab_size=VOCABULARY, max_seq_len=32),
        tokens,
        {"GL(4)^2"},
    ),
    "starcoder2": (causal_model("Starcoder2", **GROUPED, **rope()), tokens, {"GL(1,C)^4", "GL(4)^2", "R^8"}),
    "stablelm": (
        causal_model("StableLm", **WIDE, num_key_value_heads=2, **rope(partial_rotary_factor=0.5)),
        tokens,
        {"GL(1,C)^4", "GL(4)^2", "GL(8)^2"},
    ),
    "persimmon": (
        causal_model("Persimmon", **WIDE, **rope(partial_rotary_factor=0.5), qk_layernorm=True),
        tokens,
        {"GL(1)^2", "GL(1)^4", "GL(8)^2", "R^16"},
    ),
    "gpt_bigcode": (
        of("GPTBigCodeModel", "GPTBigCodeConfig", vocab_size=VOCABULARY, n_embd=8, n_layer=2, n_head=2, n_positions=32),
        tokens,
        {"GL(4)", "R^4"},
    ),
    "gpt_neo": (
        of(
            "GPTNeoModel",
            "GPTNeoConfig",
            vocab_size=VOCABULARY,
            hidden_size=8,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=32,
            window_size=4,
        ),
        tokens,
        {"GL(4)^2"},
    ),
    "glm": (causal_model("Glm", **GROUPED, **rope(partial_rotary_factor=0.5), head_dim=4), tokens, {"GL(1,C)^2"}),
    "cohere2": (
        causal_model("Cohere2", **GROUPED, **rope(), layer_types=["sliding_attention", "full_attention"]),
        tokens,
        {"GL(1,C)^4", "GL(4)^2"},
    ),
    "phi3_partial": (
        causal_model("Phi3", **{**GROUPED, "hidden_size": 32}, **rope(partial_rotary_factor=0.75)),
        tokens,
        {"GL(1,C)^6", "GL(2)^2", "GL(8)^2"},
    ),
    "vit_mae": (of("ViTMAEModel", "ViTMAEConfig", **VISION), shuffled, {"GL(4)^2", "R^8"}),
    "blip": (of("BlipVisionModel", "BlipVisionConfig", **VISION), pixels(), {"GL(4)^2", "R^8"}),
    "esm": (
        of("EsmModel", "EsmConfig", **TEXT, mask_token_id=3, position_embedding_type="rotary"),
        tokens,
        {"GL(1,C)^4", "GL(4)^2", "R^8"},
    ),
    "data2vec": (of("Data2VecTextModel", "Data2VecTextConfig", **TEXT), tokens, {"GL(4)^2", "R^8"}),
    "wav2vec2": (of("Wav2Vec2Model", "Wav2Vec2Config", **WAVE), waves, {"GL(4)^2", "R^8"}),
    "big_bird": (of("BigBirdModel", "BigBirdConfig", **{**TEXT, **BLOCKS}), tokens, {"GL(4)^2", "R^8"}),
    "deberta_v2_positions": (
        of(
            "DebertaV2Model",
            "DebertaV2Config",
            **TEXT,
            relative_attention=True,
            position_buckets=4,
            pos_att_type=["c2p", "p2c"],
            share_att_key=False,
        ),
        tokens,
        {"GL(4)^2", "R^8"},
    ),
    "biogpt": (of("BioGptModel", "BioGptConfig", **TEXT), tokens, {"GL(4)^2", "R^8"}),
}

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "longformer": (
        of("LongformerModel", "LongformerConfig", **TEXT, attention_window=4),
        "further part 'query_global'",
    ),
    "conv_bert": (of("ConvBertModel", "ConvBertConfig", **TEXT, embedding_size=8), "key_conv_attn_layer"),
    "code_gen": (
        of(
            "CodeGenModel",
            "CodeGenConfig",
            vocab_size=VOCABULARY,
            n_embd=16,
            n_layer=2,
            n_head=4,
            rotary_dim=4,
            **NO_TOKENS,
        ),
        "order of queries, keys and values could not be told",
    ),
    "bit_net": (causal_model("BitNet", **GROUPED, **rope()), "attn_sub_norm"),
    "bros": (of("BrosModel", "BrosConfig", **TEXT), "multiplies queries or keys with something else"),
    "diff_llama": (causal_model("DiffLlama", **GROUPED, **rope()), "groupnorm"),
    "qwen3_next": (
        causal_model(
            "Qwen3Next",
            **GROUPED,
            **rope(),
            head_dim=4,
            layer_types=["full_attention", "full_attention"],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=6,
            shared_expert_intermediate_size=6,
        ),
        "attention",
    ),
    "ibert": (of("IBertModel", "IBertConfig", **TEXT), "QuantLinear, not a plain Linear"),
    "nystromformer": (of("NystromformerModel", "NystromformerConfig", **TEXT, num_landmarks=4), "conv"),
}

ABSENT = {
    "mamba": of("MambaModel", "MambaConfig", vocab_size=VOCABULARY, hidden_size=8, state_size=4, num_hidden_layers=2),
    "fnet": of("FNetModel", "FNetConfig", **{k: v for k, v in TEXT.items() if k != "num_attention_heads"}),
}


def everything(model: nn.Module) -> list[Any]:
    return [b for kind in ("attention", "translation") for b in sl.find_symmetries(model, kinds=kind)]


@pytest.mark.parametrize("name", CERTIFIED)
def test_what_is_claimed_of_other_attention_holds(name: str) -> None:
    """Kills: an adapter that goes by names of models; a rule that holds for the table alone."""
    build, batch, groups = CERTIFIED[name]
    torch.manual_seed(0)
    model = randomise(build())
    blocks = everything(model)
    assert groups <= {b.group for b in blocks}
    with exact():
        drifts = sl.verify_symmetries(model, batch(), blocks, seed=5)
    assert max(drifts.values()) <= 1e-12


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_listed_with_the_reason(name: str) -> None:
    """Kills: claiming whatever has queries, keys and values."""
    build, reason = REFUSED[name]
    found = sl.find_symmetries(build())
    assert len(found) == 0
    assert any(reason in x.reason for x in found.leftovers), {x.reason for x in found.leftovers}


@pytest.mark.parametrize("name", ABSENT)
def test_where_there_is_no_attention_nothing_is_claimed(name: str) -> None:
    assert len(everything(ABSENT[name]())) == 0
