"""The 46 architectures of the measured table, as tiny random models in float64, and six LoRA variants.

Everything is generic: random biases, gains away from 1, more tokens than dimensions, fast rotary positions (a slow pair
hardly turns on six tokens and would look like a larger group).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers as tf
from torch import Tensor, nn

VOCABULARY = 24
TOKENS = 7


@dataclass(frozen=True)
class Spec:
    """A model, its data, and what its first attention layer must be found to have."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    layer: str
    """Name of the attention module whose blocks are counted (a prefix of theirs)."""
    groups: dict[str, str]
    """Blocks of that layer and their groups."""
    dimension: int
    """All of them together; also the nullity of the layer's Jacobian."""


def tokens(**more: Any) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(3, VOCABULARY, (3, TOKENS), generator=g), **more}


def both() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return tokens(decoder_input_ids=torch.randint(3, VOCABULARY, (3, 5), generator=g))


def pixels(size: int = 8) -> Callable[[], dict[str, Tensor]]:
    def batch() -> dict[str, Tensor]:
        g = torch.Generator().manual_seed(0)
        return {"pixel_values": torch.randn(3, 3, size, size, generator=g, dtype=torch.float64)}

    return batch


def sound() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "input_features": torch.randn(3, 8, 14, generator=g, dtype=torch.float64),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (3, 5), generator=g),
    }


BASE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
VISION = {**BASE, "image_size": 8, "patch_size": 4}
NO_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {**BASE, "vocab_size": VOCABULARY, "max_position_embeddings": 32, **NO_TOKENS}
GROUPED = {**TEXT, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
WIDE = {**TEXT, "hidden_size": 16}


def rope(theta: float = 10.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def of(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A model class with a config class, by name: some are loaded only when they are asked for."""

    def build() -> nn.Module:
        settings = getattr(tf, config)(**options)
        settings._attn_implementation = "eager"
        settings._experts_implementation = "eager"
        made: nn.Module = getattr(tf, model)(settings)
        return made

    return build


def causal(family: str, **options: Any) -> Callable[[], nn.Module]:
    return of(f"{family}ForCausalLM", f"{family}Config", **options)


def plain(heads: int, width: int, shifts: str = "kv") -> dict[str, str]:
    pairs = {"queries, keys": f"GL({width})^{heads}", "values, output": f"GL({width})^{heads}"}
    return pairs | shifted(shifts, heads * width)


def turned(pairs: int, heads: int, width: int, shifts: str = "") -> dict[str, str]:
    groups = {"queries, keys": f"GL(1,C)^{pairs}", "values, output": f"GL({width})^{heads}"}
    return groups | shifted(shifts, heads * width)


def shifted(shifts: str, count: int) -> dict[str, str]:
    names = {"k": "key bias", "v": "value bias, output bias"}
    return {names[x]: f"R^{count}" for x in shifts}


def partly(pairs: int, rest: str, values: str) -> dict[str, str]:
    return {
        "queries, keys (turned columns)": f"GL(1,C)^{pairs}",
        "queries, keys (plain columns)": rest,
        "values, output": values,
    }


T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 8,
    "d_kv": 4,
    "d_ff": 12,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}
LATENT = {
    **TEXT,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 4,
    "moe_intermediate_size": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "tie_word_embeddings": False,
}
SWIN = {"image_size": 8, "patch_size": 2, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_inner": 12, "n_positions": 32, **NO_TOKENS}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GAINS = "query gains, key gains"
MLA = {
    "queries, keys (plain columns)": "GL(4)^2",
    "queries, shared key (turned columns)": "GL(1,C)^2",
    "values, output": "GL(4)^2",
    "latent of keys, values": "O(8)",
    "gains of the latent of keys, values": "GL(1)^8",
    "latent of queries": "O(10)",
    "gains of the latent of queries": "GL(1)^10",
}

SPECS: dict[str, Spec] = {
    "vit": Spec(of("ViTModel", "ViTConfig", **VISION), pixels(), "layers.0.attention", plain(2, 4), 80),
    "deit": Spec(of("DeiTModel", "DeiTConfig", **VISION), pixels(), "layers.0.attention", plain(2, 4), 80),
    "dinov2": Spec(of("Dinov2Model", "Dinov2Config", **VISION), pixels(), "layer.0.attention", plain(2, 4), 80),
    "dinov2_swiglu": Spec(
        of("Dinov2Model", "Dinov2Config", **VISION, use_swiglu_ffn=True),
        pixels(),
        "layer.0.attention",
        plain(2, 4),
        80,
    ),
    "swin": Spec(of("SwinModel", "SwinConfig", **SWIN), pixels(), "layers.0.blocks.0.attention", plain(2, 4), 80),
    "beit": Spec(of("BeitModel", "BeitConfig", **VISION), pixels(), "layers.0.attention", plain(2, 4, "v"), 72),
    "clip_vision": Spec(
        of("CLIPVisionModel", "CLIPVisionConfig", **VISION), pixels(), "layers.0.self_attn", plain(2, 4), 80
    ),
    "clip_text": Spec(of("CLIPTextModel", "CLIPTextConfig", **TEXT), tokens, "layers.0.self_attn", plain(2, 4), 80),
    "siglip_vision": Spec(
        of("SiglipVisionModel", "SiglipVisionConfig", **VISION), pixels(), "layers.0.self_attn", plain(2, 4), 80
    ),
    "opt": Spec(
        causal("OPT", **TEXT, ffn_dim=12, word_embed_proj_dim=8), tokens, "layers.0.self_attn", plain(2, 4), 80
    ),
    "whisper": Spec(
        of(
            "WhisperModel",
            "WhisperConfig",
            vocab_size=VOCABULARY,
            num_mel_bins=8,
            d_model=8,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=12,
            decoder_ffn_dim=12,
            max_source_positions=7,
            max_target_positions=16,
            decoder_start_token_id=1,
            **NO_TOKENS,
        ),
        sound,
        "decoder.layers.0.encoder_attn",
        plain(2, 4, "v"),
        72,
    ),
    "bert": Spec(of("BertModel", "BertConfig", **TEXT), tokens, "layer.0.attention.self", plain(2, 4), 80),
    "roberta": Spec(of("RobertaModel", "RobertaConfig", **TEXT), tokens, "layer.0.attention.self", plain(2, 4), 80),
    "distilbert": Spec(
        of(
            "DistilBertModel",
            "DistilBertConfig",
            vocab_size=VOCABULARY,
            dim=8,
            n_layers=2,
            n_heads=2,
            hidden_dim=12,
            max_position_embeddings=32,
        ),
        tokens,
        "layer.0.attention",
        plain(2, 4),
        80,
    ),
    "deberta_v2": Spec(
        of(
            "DebertaV2Model",
            "DebertaV2Config",
            **TEXT,
            relative_attention=True,
            position_buckets=4,
            pos_att_type=["c2p", "p2c"],
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
        ),
        tokens,
        "layer.0.attention.self",
        plain(2, 4, "v"),
        72,
    ),
    "gpt2": Spec(
        of(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=VOCABULARY,
            n_embd=8,
            n_layer=2,
            n_head=2,
            n_inner=12,
            n_positions=32,
            **NO_TOKENS,
        ),
        tokens,
        "h.0.attn",
        plain(2, 4),
        80,
    ),
    "bloom": Spec(
        causal("Bloom", vocab_size=VOCABULARY, hidden_size=8, n_layer=2, n_head=2, **NO_TOKENS),
        tokens,
        "h.0.self_attention",
        plain(2, 4),
        80,
    ),
    "falcon_rw_alibi": Spec(
        causal("Falcon", **TEXT, alibi=True, new_decoder_architecture=False, multi_query=False, bias=True),
        tokens,
        "h.0.self_attention",
        plain(2, 4),
        80,
    ),
    "falcon_mqa": Spec(
        causal("Falcon", **TEXT, **rope(), alibi=False, new_decoder_architecture=False, multi_query=True, bias=False),
        tokens,
        "h.0.self_attention",
        {"queries, keys": "GL(1,C)^2", "values, output": "GL(4)"},
        20,
    ),
    "falcon_gqa": Spec(
        causal(
            "Falcon",
            **{**TEXT, "hidden_size": 16, "num_attention_heads": 4},
            **rope(),
            num_kv_heads=2,
            alibi=False,
            new_decoder_architecture=True,
            bias=False,
        ),
        tokens,
        "h.0.self_attention",
        turned(4, 2, 4),
        40,
    ),
    "t5": Spec(
        of("T5EncoderModel", "T5Config", **T5), tokens, "encoder.block.0.layer.0.SelfAttention", plain(2, 4, ""), 64
    ),
    "t5_encdec": Spec(
        of("T5Model", "T5Config", **T5), both, "decoder.block.0.layer.1.EncDecAttention", plain(2, 4, ""), 64
    ),
    "t5_gated": Spec(
        of("T5Model", "T5Config", **T5, feed_forward_proj="gated-gelu"),
        both,
        "decoder.block.0.layer.0.SelfAttention",
        plain(2, 4, ""),
        64,
    ),
    "llama": Spec(causal("Llama", **GROUPED, **rope()), tokens, "layers.0.self_attn", turned(4, 2, 4), 40),
    "llama_bias": Spec(
        causal("Llama", **GROUPED, **rope(), attention_bias=True),
        tokens,
        "layers.0.self_attn",
        turned(4, 2, 4, "v"),
        48,
    ),
    "mistral": Spec(causal("Mistral", **GROUPED, **rope()), tokens, "layers.0.self_attn", turned(4, 2, 4), 40),
    "qwen2": Spec(causal("Qwen2", **GROUPED, **rope()), tokens, "layers.0.self_attn", turned(4, 2, 4), 40),
    "gemma": Spec(causal("Gemma", **GROUPED, **rope(), head_dim=4), tokens, "layers.0.self_attn", turned(4, 2, 4), 40),
    "gemma2": Spec(
        causal("Gemma2", **GROUPED, **rope(), head_dim=4, query_pre_attn_scalar=4, sliding_window=16),
        tokens,
        "layers.0.self_attn",
        turned(4, 2, 4),
        40,
    ),
    "mixtral": Spec(
        causal("Mixtral", **GROUPED, **EXPERTS, **rope()), tokens, "layers.0.self_attn", turned(4, 2, 4), 40
    ),
    "gpt_oss": Spec(
        causal("GptOss", **GROUPED, **EXPERTS, **rope(), head_dim=4, sliding_window=16),
        tokens,
        "layers.0.self_attn",
        turned(4, 2, 4),
        40,
    ),
    "qwen2_moe": Spec(
        causal(
            "Qwen2Moe",
            **GROUPED,
            **rope(),
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=6,
            shared_expert_intermediate_size=6,
        ),
        tokens,
        "layers.0.self_attn",
        turned(4, 2, 4),
        40,
    ),
    # three by three patches: of two by two, the fastest positions turn by a whole circle, which is nothing
    "dinov3": Spec(
        of("DINOv3ViTModel", "DINOv3ViTConfig", **{**VISION, "image_size": 12}, num_register_tokens=1, rope_theta=10.0),
        pixels(12),
        "layer.0.attention",
        turned(4, 2, 4, "v"),
        48,
    ),
    "modernbert": Spec(
        of(
            "ModernBertModel",
            "ModernBertConfig",
            **TEXT,
            cls_token_id=1,
            sep_token_id=2,
            rope_parameters={
                k: {"rope_type": "default", "rope_theta": 10.0} for k in ("full_attention", "sliding_attention")
            },
        ),
        tokens,
        "layers.0.attn",
        turned(4, 2, 4),
        40,
    ),
    "phi3": Spec(causal("Phi3", **GROUPED, **rope()), tokens, "layers.0.self_attn", turned(4, 2, 4), 40),
    "cohere": Spec(causal("Cohere", **GROUPED, **rope()), tokens, "layers.0.self_attn", turned(4, 2, 4), 40),
    "gpt_neox": Spec(
        causal("GPTNeoX", **WIDE, **rope(partial_rotary_factor=0.5)),
        tokens,
        "layers.0.attention",
        {**partly(4, "GL(4)^2", "GL(8)^2"), "key bias": "R^8", "value bias, output bias": "R^16"},
        192,
    ),
    "phi": Spec(
        causal("Phi", **WIDE, **rope(partial_rotary_factor=0.5)),
        tokens,
        "layers.0.self_attn",
        {**partly(4, "GL(4)^2", "GL(8)^2"), "key bias": "R^8", "value bias, output bias": "R^16"},
        192,
    ),
    "gptj": Spec(
        causal(
            "GPTJ", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, rotary_dim=4, n_positions=32, **NO_TOKENS
        ),
        tokens,
        "h.0.attn",
        partly(4, "GL(4)^2", "GL(8)^2"),
        168,
    ),
    "smollm3": Spec(
        causal("SmolLM3", **GROUPED, **rope(), no_rope_layers=[0, 1]),
        tokens,
        "layers.0.self_attn",
        {"queries, keys": "GL(4)^2", "values, output": "GL(4)^2"},
        64,
    ),
    "deepseek_v2": Spec(causal("DeepseekV2", **LATENT, **rope()), tokens, "layers.0.self_attn", MLA, 159),
    "deepseek_v3": Spec(causal("DeepseekV3", **LATENT, **rope()), tokens, "layers.0.self_attn", MLA, 159),
    "qwen3": Spec(
        causal("Qwen3", **GROUPED, **rope(), head_dim=4),
        tokens,
        "layers.0.self_attn",
        {GAINS: "GL(1)^2", "values, output": "GL(4)^2"},
        34,
    ),
    "gemma3": Spec(
        of(
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            **GROUPED,
            head_dim=4,
            query_pre_attn_scalar=4,
            sliding_window=16,
            rope_parameters={
                k: {"rope_type": "default", "rope_theta": 10.0} for k in ("full_attention", "sliding_attention")
            },
        ),
        tokens,
        "layers.0.self_attn",
        {GAINS: "GL(1)^2", "values, output": "GL(4)^2"},
        34,
    ),
    "olmo2": Spec(
        causal("Olmo2", **GROUPED, **rope()),
        tokens,
        "layers.0.self_attn",
        {GAINS: "GL(1)^4", "values, output": "GL(4)^2"},
        36,
    ),
    "swinv2": Spec(
        of("Swinv2Model", "Swinv2Config", **SWIN),
        pixels(),
        "layers.0.blocks.0.attention.self",
        {
            "queries, keys": "O(4)^2",
            "queries": "R+^2",
            "keys": "R+^2",
            "values, output": "GL(4)^2",
            "value bias, output bias": "R^8",
        },
        56,
    ),
}


def fitted(model: nn.Module, config: str, **options: Any) -> nn.Module:
    """A model with an adapter of peft on some of its layers."""
    import peft

    with warnings.catch_warnings():  # it looks at every attribute of the model, deprecated ones included
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(model, getattr(peft, config)(**options))


def adapted(config: str, model: str = "bert", **options: Any) -> Callable[[], nn.Module]:
    """A model of the table with an adapter."""
    return lambda: fitted(SPECS[model].build(), config, **options)


BERT_TARGETS = {"target_modules": ["query", "value"]}
QUERY = "layer.0.attention.self.query"
LOW = {"low rank (default)": "GL(3)"}

LORA: dict[str, Spec] = {
    "lora": Spec(adapted("LoraConfig", r=3, lora_alpha=5, **BERT_TARGETS), tokens, QUERY, LOW, 9),
    "rslora": Spec(
        adapted("LoraConfig", r=3, use_rslora=True, lora_dropout=0.3, **BERT_TARGETS), tokens, QUERY, LOW, 9
    ),
    "dora": Spec(adapted("LoraConfig", r=3, use_dora=True, **BERT_TARGETS), tokens, QUERY, LOW, 9),
    "lora_gpt2": Spec(
        adapted("LoraConfig", "gpt2", r=3, fan_in_fan_out=True, target_modules=["c_attn"]),
        tokens,
        "h.0.attn.c_attn",
        LOW,
        9,
    ),
    "adalora": Spec(
        adapted("AdaLoraConfig", init_r=3, target_r=2, total_step=10, **BERT_TARGETS),
        tokens,
        QUERY,
        {"low rank (default)": "GL(1)^3", "singular values (default)": "GL(1)^3"},
        6,
    ),
    "vera": Spec(adapted("VeraConfig", r=3, **BERT_TARGETS), tokens, QUERY, {"scales (default)": "GL(1)"}, 1),
}


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Generic weights in float64: no zero bias, no gain of 1."""
    model = model.double().eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.is_floating_point() or (name.endswith(("ranknum", "logit_scale")) and p.numel() == 1):
                continue
            if p.dim() >= 2:
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) / p.shape[-1] ** 0.5)
            elif name.endswith("weight"):
                p.copy_(torch.rand(p.shape, generator=g, dtype=torch.float64) + 0.5)
            else:
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) / 2)
    return model


@contextmanager
def exact() -> Iterator[None]:
    """float64 throughout: casts to float32 inside transformers (norms, rotary positions, softmax) become float64.

    Without it a drift in float64 reads exactly 0 (the rounding hides it) or 3e-7, and neither says anything.
    """
    narrow = (torch.float32, torch.float16, torch.bfloat16)

    def wide(value: Any) -> Any:
        return torch.float64 if value in narrow and isinstance(value, torch.dtype) else value

    to, kind, softmax, default = Tensor.to, Tensor.type, F.softmax, torch.get_default_dtype()

    def new_to(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return to(self, *(wide(a) for a in args), **{k: wide(v) for k, v in kwargs.items()})

    def new_type(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return kind(self, *(wide(a) for a in args), **kwargs)

    def new_softmax(input: Tensor, dim: int | None = None, *rest: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return softmax(input, dim, *rest, dtype=wide(dtype), **kwargs)

    patches = {
        (Tensor, "to"): new_to,
        (Tensor, "type"): new_type,
        (Tensor, "float"): Tensor.double,
        (F, "softmax"): new_softmax,
    }
    before = {key: getattr(*key) for key in patches}
    try:
        torch.set_default_dtype(torch.float64)
        for (holder, name), new in patches.items():
            setattr(holder, name, new)
        yield
    finally:
        for (holder, name), old in before.items():
            setattr(holder, name, old)
        torch.set_default_dtype(default)
