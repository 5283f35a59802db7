"""CLIP vision transformers with a linear head, as model soups (Wortsman et al. 2022) publishes them.

A file ``model_7.pt`` is a plain state dict. Its keys are those of OpenAI's CLIP without the text transformer below
``model.`` (the image encoder is ``model.visual.``; token embedding, text projection and the like are left-overs that no
image passes through) and ``classification_head.weight`` and ``.bias``. Features have norm one before the head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spiritlevel.errors import CheckpointError

__all__ = ["CLIPClassifier", "clip_classifier"]

_HEAD = 64  # width of a head in every CLIP vision transformer of OpenAI's; the file does not say it
_VISUAL = "model.visual."
_LEFTOVER = re.compile(
    r"model\.(positional_embedding|text_projection|logit_scale|token_embedding\.weight|ln_final\.(weight|bias))"
)


class QuickGELU(nn.Module):
    """``x sigmoid(1.702 x)``."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """Attention and a perceptron, both with the norm in front."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, inner))
        self.mlp.add_module("gelu", QuickGELU())
        self.mlp.add_module("c_proj", nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Visual(nn.Module):
    """The image encoder: patches, a class token, blocks, and a projection of the class token."""

    def __init__(self, width: int, layers: int, heads: int, inner: int, patch: int, grid: int, features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros(grid * grid + 1, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.Sequential(*(Block(width, heads, inner) for _ in range(layers)))
        self.proj = nn.Parameter(torch.zeros(width, features))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images).flatten(2).mT
        first = self.class_embedding.expand(len(images), 1, -1)
        x = self.ln_pre(torch.cat([first, patches], 1) + self.positional_embedding)
        x = self.transformer.resblocks(x)  # type: ignore[operator]  # a Sequential
        out: Tensor = self.ln_post(x[:, 0]) @ self.proj
        return out


class CLIPClassifier(nn.Module):
    """An image encoder, features of norm one, a linear head; parameters have the names they have in the files.

    Args:
        width: of the tokens; heads are 64 wide.
        layers: how many.
        inner: of the perceptrons.
        patch: pixels along each side.
        grid: patches along each side.
        features: of an image.
        classes: of the head.
    """

    def __init__(
        self, *, width: int, layers: int, inner: int, patch: int, grid: int, features: int, classes: int
    ) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.visual = Visual(width, layers, width // _HEAD, inner, patch, grid, features)
        self.classification_head = nn.Linear(features, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images of ``patch * grid`` pixels along each side, preprocessed as CLIP's are."""
        features = self.model.visual(images)  # type: ignore[operator]  # a module
        out: Tensor = self.classification_head(features / features.norm(dim=-1, keepdim=True))
        return out


def clip_classifier(weights: Mapping[str, Tensor]) -> CLIPClassifier:
    """The model of a file, in float32; every size is read off its tensors. For ``zoo.builder``.

    Text weights, which no image passes through, are left out: they would count in norms and radii.

    Raises:
        CheckpointError: where tensors are missing, or there are others.
    """
    kept = {n: w.float() for n, w in weights.items() if not _LEFTOVER.fullmatch(n)}
    try:
        sizes = _sizes(kept)
    except KeyError as error:
        raise CheckpointError(
            f"expected a fine-tuned CLIP vision transformer with {_VISUAL}* and classification_head.*, but there is "
            f"no {error}; got {', '.join(list(weights)[:4])} and so on"
        ) from error
    if sizes["width"] % _HEAD:
        raise CheckpointError(f"expected a width that is a multiple of {_HEAD}, got {sizes['width']}")
    model = CLIPClassifier(**sizes)
    try:
        model.load_state_dict(kept)
    except RuntimeError as error:
        raise CheckpointError(f"expected the weights of a CLIP vision transformer of sizes {sizes}: {error}") from error
    return model.eval()


def _sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    conv, head = weights[_VISUAL + "conv1.weight"], weights["classification_head.weight"]
    layers = {m[1] for n in weights if (m := re.match(re.escape(_VISUAL) + r"transformer\.resblocks\.(\d+)\.", n))}
    return {
        "width": conv.shape[0],
        "layers": len(layers),
        "inner": weights[_VISUAL + "transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "patch": conv.shape[-1],
        "grid": round((weights[_VISUAL + "positional_embedding"].shape[0] - 1) ** 0.5),
        "features": head.shape[1],
        "classes": head.shape[0],
    }
