"""What all tests share: one thread, float64 where it is asked for, shapes checked at run time, and a tiny model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from jaxtyping import config, install_import_hook
from torch import Tensor, nn

# Before anything imports spiritlevel: shapes in signatures are checked in tests, and only there.
# Not the modules whose constructors refuse bad words themselves: there the user's error is what is tested.
_HOOK = install_import_hook(
    [f"spiritlevel.geometry.{m}" for m in ("base", "cross_geodesic", "gauge", "metrics")] + ["spiritlevel.solvers"],
    "beartype.beartype",
)

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Every test starts from the same seed and leaves torch's default precision and threads as they were."""
    dtype = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """No run-time check of signatures, for tests of our own errors: without it the wrong type is caught before them."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def build_vit(layers: int = 1, image: int = 8, hidden: int = 8, sharpen: float = 12.0, seed: int = 0) -> nn.Module:
    """A tiny ViT of transformers in float64, with query and key weights scaled up so that attention is not uniform."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        image_size=image,
        patch_size=image // 2,
        num_channels=1,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    model = ViTForImageClassification(config).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if any(key in name for key in ("query.weight", "key.weight", "q_proj.weight", "k_proj.weight")):
                p.mul_(sharpen**0.5)
            elif p.dim() == 1 and "layernorm" not in name.lower():
                p.normal_(std=0.1)  # biases start at 0, where the elementwise geometry does not move them
    return model


@pytest.fixture
def tiny_vit() -> nn.Module:
    return build_vit()


@pytest.fixture
def tiny_vit_deep() -> nn.Module:
    return build_vit(layers=2, image=4)


@pytest.fixture
def tiny_batch() -> tuple[Tensor, Tensor]:
    """Five images for `tiny_vit`, and their labels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(5, 1, 8, 8, generator=generator, dtype=torch.float64)
    return images, torch.tensor([0, 1, 2, 0, 1])
