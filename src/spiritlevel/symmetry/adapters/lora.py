"""Low-rank adapters of peft, by their structure: LoRA, rsLoRA, DoRA, AdaLoRA, VeRA.

- LoRA and rsLoRA, ``W + s B A``: GL(r), as ``(B C^-1, C A)``;
- DoRA, ``m (W + s B A) / |W + s B A|``: the same, and the magnitudes ``m`` are outside;
- AdaLoRA, ``W + s B (E * A)``: GL(1)^{2r}, a scale for every row of A and one for every entry of E, undone in B;
- VeRA, ``W + (l_b * B) (l_d * A)`` with frozen B and A: GL(1), one scale between ``l_b`` and ``l_d``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from spiritlevel.core.blocks import Block, Gain, Pair
from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters.base import ADAPTERS, Answer, Refusal, join, label

__all__ = ["low_rank", "vector_scales"]

_KNOWN = ("lora_A", "lora_B", "lora_E", "lora_embedding_A", "lora_embedding_B", "lora_dropout")
_MAGNITUDE = "lora_magnitude_vector"


@ADAPTERS.register("low-rank adapters")
def low_rank(name: str, module: nn.Module, parent: nn.Module | None) -> Answer:
    """LoRA, rsLoRA and DoRA on linear, convolutional and embedding layers; AdaLoRA where there is a ``lora_E``."""
    del parent
    children = dict(module.named_children())
    if not {"lora_A", "lora_B"} <= set(children):
        return None
    strange = [n for n, x in children.items() if n.startswith("lora_") and n not in (*_KNOWN, _MAGNITUDE) and _any(x)]
    if strange:
        return Refusal(f"a low-rank adapter with a further part {strange[0]!r}")
    blocks: list[Block] = []
    for a, b in (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B")):
        for (down, one), (up, other) in zip(_weights(name, a, children), _weights(name, b, children), strict=True):
            rank = one.shape[0]
            if other.dim() < 2 or other.shape[1] != rank:
                return Refusal(f"a low-rank adapter of shapes {tuple(one.shape)} and {tuple(other.shape)}")
            key = down.removeprefix(join(name, a) + ".").removesuffix(".weight")
            title = label(name, f"low rank ({key})")
            rows, columns = (rank, one[0].numel()), (other.shape[0], rank, other[0, 0].numel())
            if "lora_E" in children and _any(children["lora_E"]):
                left = Factor((Piece(up, columns, batch=(1,), rows=(0, 2), column=None),))
                right = Factor((Piece(down, rows, batch=(0,), rows=(1,), column=None),))
                middle = Factor((Piece(down.replace("lora_A", "lora_E"), (rank, 1), (0,), (1,), None),))
                blocks.append(Gain(label(name, f"singular values ({key})"), middle, left, kind="lora"))
            else:
                left = Factor((Piece(up, (1, *columns), batch=(0,), rows=(1, 3), column=2),))
                right = Factor((Piece(down, (1, *rows), batch=(0,), rows=(2,), column=1),))
            blocks.append(Pair(title, left, right, kind="lora"))
    return blocks


@ADAPTERS.register("vector scales")
def vector_scales(name: str, module: nn.Module, parent: nn.Module | None) -> Answer:
    """VeRA: two vectors of scales around frozen matrices."""
    del parent
    children = dict(module.named_children())
    if not {"vera_lambda_b", "vera_lambda_d"} <= set(children):
        return None
    sides = (_weights(name, f"vera_lambda_{x}", children) for x in "bd")
    return [
        Pair(label(name, f"scales ({up.rpartition('.')[2]})"), _column(up, one), _column(down, other), kind="lora")
        for (up, one), (down, other) in zip(*sides, strict=True)
    ]


def _column(name: str, vector: Tensor) -> Factor:
    """A vector as one column."""
    return Factor((Piece(name, (1, vector.numel()), batch=(0,), rows=(1,), column=None),))


def _any(module: nn.Module) -> bool:
    """Whether a container holds parameters."""
    return next(module.parameters(), None) is not None


def _weights(name: str, which: str, children: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """The matrices of one side, one for each adapter, with their full names; biases are outside."""
    if which in children:
        for n, p in children[which].named_parameters():
            if not n.endswith("bias"):
                yield join(name, f"{which}.{n}"), p
