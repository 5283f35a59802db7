"""Small networks with a known symmetry of each kind, in float64, with generic weights, and data for them."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


def generic(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights without structure: gains between 0.5 and 1.5, biases other than 0, statistics other than the first."""
    g = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            gain = p.dim() == 1 and not name.endswith("bias")
            p.copy_(torch.rand(p.shape, generator=g) + 0.5 if gain else torch.randn(p.shape, generator=g) * 0.5)
        for name, b in model.named_buffers():
            if "running" in name:
                b.copy_(torch.rand(b.shape, generator=g) + 0.5)
    return model


def images(size: int = 8, channels: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, channels, size, size, generator=g, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 1])


def tokens() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randint(1, 20, (6, 7), generator=g)
    return {"input_ids": x, "labels": x}


def vectors(width: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, width, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0, 2])


def sequences() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, 5, 8, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0, 2])


def _llama() -> nn.Module:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL, num_key_value_heads=1, vocab_size=20, rope_theta=10.0))


def _mixtral() -> nn.Module:
    config = tf.MixtralConfig(**SMALL, num_key_value_heads=1, vocab_size=20, num_local_experts=3)
    config._experts_implementation = "eager"
    return tf.MixtralForCausalLM(config)


def _dinov2() -> nn.Module:
    shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
    return tf.Dinov2ForImageClassification(tf.Dinov2Config(**shape, image_size=8, patch_size=4))


def _t5() -> nn.Module:
    config = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "vocab_size": 20}
    return tf.T5ForConditionalGeneration(tf.T5Config(**config, decoder_start_token_id=0, pad_token_id=0))


def _opt() -> nn.Module:
    shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 12}
    return tf.OPTForCausalLM(
        tf.OPTConfig(**shape, vocab_size=20, word_embed_proj_dim=8, max_position_embeddings=32, pad_token_id=0)
    )


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), vectors),
    "linear chain": (lambda: nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)), vectors),
    "convolutional": (_convolutional, images),
    "encoder": (_encoder, sequences),
    "vit": (lambda: tf.ViTForImageClassification(tf.ViTConfig(**SMALL, image_size=8, patch_size=4)), images),
    "dinov2": (_dinov2, images),
    "llama": (_llama, tokens),
    "mixtral": (_mixtral, tokens),
    "t5": (_t5, tokens),
    "opt": (_opt, tokens),
}


@cache
def network(name: str) -> tuple[nn.Module, Any]:
    """One of them with its data; not to be changed."""
    build, data = NETWORKS[name]
    torch.manual_seed(0)
    return generic(build()), data()
