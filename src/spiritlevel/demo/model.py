"""The small vision transformer of the demonstration and the benchmarks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.core.progress import progress
from spiritlevel.demo.data import digits
from spiritlevel.demo.optional import optional

__all__ = ["small_vit", "train"]


def small_vit(
    hidden: int = 64, layers: int = 4, heads: int = 4, image: int = 8, patch: int = 2, spread: float = 0.02
) -> nn.Module:
    """A vision transformer of transformers' own class, with random weights.

    Args:
        hidden: width.
        layers: depth.
        heads: of each layer.
        image: pixels along each side.
        patch: pixels along each side of a patch.
        spread: standard deviation of the first weights (transformers' own is made for a width of 768).
    """
    transformers = optional("transformers")
    config = transformers.ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * hidden,
        image_size=image,
        patch_size=patch,
        num_channels=1,
        num_labels=10,
        initializer_range=spread,
    )
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


def train(seed: int = 0, epochs: int = 25, show_progress: bool | None = None, **shape: int) -> nn.Module:
    """A `small_vit` trained on the digits with AdamW and a one-cycle schedule; the same for the same seed."""
    (images, labels), _ = digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = small_vit(**shape)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * -(-len(labels) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    with progress("training", steps, show_progress) as advance:
        for _ in range(epochs):
            for rows in torch.randperm(len(labels), generator=generator).split(128):
                optimizer.zero_grad()
                F.cross_entropy(model(images[rows]).logits, labels[rows]).backward()
                optimizer.step()
                schedule.step()
                advance()
    return model.eval()
