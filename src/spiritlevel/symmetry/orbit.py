"""Moving along an orbit: other weights, the same function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from spiritlevel.core.blocks import Pair
from spiritlevel.core.tensors import adjoint
from spiritlevel.errors import ArgumentError

__all__ = ["act", "move_along_orbit", "random_element"]


def random_element(block: Pair, strength: float, generator: torch.Generator, condition: float | None = None) -> Tensor:
    """One random group element per head, (heads, h, h), in float64.

    Args:
        block: the pair whose group it is.
        strength: without ``condition``, the matrix is ``exp(strength N / sqrt(h))`` with Gaussian ``N``.
        generator: source of randomness, on the CPU.
        condition: if given, singular values run geometrically over this ratio, between random orthogonal matrices (for
            width 1, scales are drawn from that range).
    """
    h, heads = block.width, block.heads
    dtype = torch.complex128 if block.is_complex else torch.float64

    def noise() -> Tensor:
        return torch.randn(heads, h, h, generator=generator, dtype=dtype)

    if condition is None:
        mixed: Tensor = torch.matrix_exp(noise() * (strength / math.sqrt(h)))
        return mixed
    half = math.log(condition) / 2
    if h == 1:
        sizes = (torch.rand(heads, 1, generator=generator, dtype=torch.float64) * 2 - 1) * half
    else:
        sizes = torch.linspace(-half, half, h, dtype=torch.float64).expand(heads, h)
    left, right = (torch.linalg.qr(noise())[0] for _ in range(2))
    element: Tensor = (left * sizes.exp().unsqueeze(-2)) @ right
    return element


def act(block: Pair, weights: Mapping[str, Tensor], element: Tensor) -> tuple[Tensor, Tensor]:
    """``(G A^-1, H A^*)``, computed in float64 and given back in the precision of the weights."""
    g, h = block.read(weights)
    a = element.to(g.device)
    moved_g = torch.linalg.solve(a, g.to(a.dtype), left=False)
    moved_h = h.to(a.dtype) @ adjoint(a)
    return moved_g.to(g.dtype), moved_h.to(h.dtype)


def moved(
    weights: Mapping[str, Tensor],
    blocks: Sequence[Pair],
    strength: float,
    seed: int,
    condition: float | None = None,
) -> dict[str, Tensor]:
    """The parameters of the blocks after a random move; new tensors."""
    generator = torch.Generator().manual_seed(seed)
    names = dict.fromkeys(n for b in blocks for n in b.parameters)
    new = {n: weights[n].detach().clone(memory_format=torch.contiguous_format) for n in names}
    for block in blocks:
        element = random_element(block, strength, generator, condition)
        block.write(new, *act(block, weights, element))
    return new


def move_along_orbit(
    model: nn.Module,
    blocks: Sequence[Pair],
    strength: float = 1.0,
    seed: int = 0,
    *,
    condition: float | None = None,
) -> dict[str, Tensor]:
    """A state dict of the same function: every head of every block moved by a random group element.

    Load it into a copy of the model. The model itself is not changed.

    Args:
        model: the model the blocks were found in.
        blocks: from `find_symmetries`.
        strength: 0 is no move; 1 mixes thoroughly.
        seed: fixes the move.
        condition: instead of ``strength``, the condition number of the matrix each head is multiplied by.
    """
    if not math.isfinite(strength) or strength < 0:
        raise ArgumentError(f"expected a strength from 0 on, got {strength}")
    if condition is not None and not (math.isfinite(condition) and condition >= 1):
        raise ArgumentError(f"expected a condition number from 1 on, got {condition}")
    weights = {n: p.detach() for n, p in model.named_parameters()}
    new = moved(weights, blocks, strength, seed, condition)
    alias = {id(p): n for n, p in model.named_parameters()}
    state = model.state_dict(keep_vars=True)
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        first = alias.get(id(value), name)
        out[name] = new[first] if first in new else value.detach().clone()
    return out
