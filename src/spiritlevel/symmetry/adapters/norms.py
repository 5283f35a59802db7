"""Queries and keys that are normalised: the gains of the two norms are what a group still acts on.

With ``q = gamma_q * n(W_q x)`` and ``k = gamma_k * n(W_k x)`` scores see the products ``gamma_q gamma_k`` of equal
columns only, so ``gamma_q -> gamma_q / c`` and ``gamma_k -> c gamma_k`` changes nothing: GL(1) for every column, or,
where rotary positions turn columns in pairs, for every pair. Norms over one head share their gains among all heads.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from spiritlevel.core.blocks import Block, Leftover, Pair
from spiritlevel.symmetry.adapters.base import join, label
from spiritlevel.symmetry.adapters.layers import weight_of
from spiritlevel.symmetry.adapters.slots import Part, Slot, gains

__all__ = ["NORMS", "gain_blocks", "is_rms", "norms_of", "offset_of"]

NORMS = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
    ("query_norm", "key_norm"),
    ("norm_q", "norm_k"),
    ("q_ln", "k_ln"),
)


def norms_of(module: nn.Module) -> tuple[str, str] | None:
    """The names of the norms of queries and keys, if the module has both."""
    children = dict(module.named_children())
    return next((pair for pair in NORMS if all(n in children for n in pair)), None)


def gain_blocks(
    module: nn.Module, name: str, norms: tuple[str, str], parts: list[Part], heads: int, group: int
) -> list[Block | Leftover]:
    """GL(1) on the gains, for every column or turned pair of columns."""
    width = parts[-1].stop
    sides = []
    for norm, count in zip(norms, (heads * group, heads), strict=True):
        slots = _slots(join(name, norm), getattr(module, norm), count, heads, width)
        if slots is None:
            own = tuple(join(name, f"{norm}.{n}") for n, _ in getattr(module, norm).named_parameters())
            return [Leftover(own, "gains of a norm that is not understood")] if own else []
        sides.append(slots)
    if not all(sides):  # norms without gains
        return []
    left, right = sides
    if (left[0].heads, right[0].heads) not in {(1, 1), (heads, heads)}:
        return []
    return [
        Pair(
            label(name, "query gains, key gains" + (f" ({p.start} to {p.stop})" if len(parts) > 1 else "")),
            gains(left, p),
            gains(right, p),
        )
        for p in parts
    ]


def _slots(name: str, norm: nn.Module, count: int, heads: int, width: int) -> tuple[Slot, ...] | None:
    """Gains and shifts of a norm over a head (shared by all) or over all of them; None if it is neither."""
    own = dict(norm.named_parameters())
    if not own:
        return ()
    if not set(own) <= {"weight", "bias"} or "weight" not in own:
        return None
    offset = offset_of(norm)
    if offset is None:
        return None
    size = own["weight"].numel()
    shared = size == width
    if not shared and size != count * width:
        return None
    shape, lead = ((1, width), 1) if shared else ((count, width), heads)
    group = 1 if shared else count // heads
    offsets = {"weight": offset, "bias": 0.0}
    return tuple(Slot(join(name, n), shape, (slice(None),), lead, group, None, offset=offsets[n]) for n in own)


def offset_of(norm: nn.Module) -> float | None:
    """What is added to the stored gain: 0, or 1 where a norm multiplies by ``1 + w``; None if it does neither.

    Asked of the norm itself: with all gains 0 its result is ``offset * n(x)``, with all gains 1 it is ``n(x)`` more.
    """
    weight = weight_of(norm)
    x = torch.linspace(-1.0, 2.0, weight.numel(), device=weight.device, dtype=torch.float32).reshape(1, *weight.shape)
    zeros = {n: torch.zeros_like(p, dtype=torch.float32) for n, p in norm.named_parameters()}
    with torch.no_grad():
        try:
            none = functional_call(norm, zeros, (x,))
            one = functional_call(norm, {**zeros, "weight": torch.ones_like(zeros["weight"])}, (x,))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):  # it wants to be called otherwise
            return None
    step = one - none
    if step.shape != x.shape or not float(step.abs().max()):
        return None
    for offset in (0.0, 1.0):
        if torch.allclose(none, offset * step, atol=1e-4):
            return offset
    return None


def is_rms(norm: nn.Module) -> bool:
    """Whether a norm divides by the length alone: with gains of 1 it commutes with every reflection (one is tried)."""
    offset, weight = offset_of(norm), weight_of(norm)
    if offset is None:
        return False
    x = torch.linspace(-1.0, 2.0, weight.numel(), device=weight.device, dtype=torch.float32).unsqueeze(0)
    axis = torch.linspace(1.0, 3.0, weight.numel(), device=weight.device, dtype=torch.float32)
    axis = axis / axis.norm()
    ones = {"weight": torch.full_like(weight, 1 - offset, dtype=torch.float32)}
    with torch.no_grad():
        before, after = (functional_call(norm, ones, (y,)) for y in (x, x - 2 * (x @ axis).unsqueeze(-1) * axis))
    return torch.allclose(after, before - 2 * (before @ axis).unsqueeze(-1) * axis, atol=1e-3)
