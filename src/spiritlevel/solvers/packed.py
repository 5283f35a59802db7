"""Vectors that need not be exact, in a byte or half a byte per entry."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Packed"]

_BLOCK = 64  # entries that share a scale


class Packed:
    """A vector in 8 or 4 bits for each entry: blocks share a scale, entries are off by 0.4 or 7 % of it at most.

    Written and read by slices that begin at a multiple of the block.

    Args:
        like: a vector of the same length, precision and device.
        bits: 8 or 4.

    >>> packed = Packed(torch.zeros(3), 4)
    >>> packed[slice(0, 3)] = torch.tensor([7.0, -1.0, 0.2])
    >>> packed[slice(0, 3)]
    tensor([ 7., -1.,  0.])
    """

    def __init__(self, like: Tensor, bits: int) -> None:
        self._most, blocks = 127 if bits == 8 else 7, -(-like.numel() // _BLOCK)
        self._codes = torch.zeros(blocks, _BLOCK * bits // 8, dtype=torch.int8, device=like.device)
        self._scales = like.new_zeros(blocks, 1)

    def __setitem__(self, at: slice, x: Tensor) -> None:
        rows = slice(at.start // _BLOCK, -(-at.stop // _BLOCK))
        blocks = torch.nn.functional.pad(x, (0, -len(x) % _BLOCK)).view(-1, _BLOCK)
        scale = blocks.abs().amax(1, keepdim=True) / self._most
        codes = (blocks / scale.clamp(min=torch.finfo(x.dtype).tiny)).round().to(torch.int8)
        if self._most == 7:
            low, high = codes.chunk(2, 1)
            codes = low + 16 * high  # from -119 to 119
        self._scales[rows], self._codes[rows] = scale, codes

    def __getitem__(self, at: slice) -> Tensor:
        rows = slice(at.start // _BLOCK, -(-at.stop // _BLOCK))
        codes = self._codes[rows]
        if self._most == 7:
            high = torch.div(codes + 8, 16, rounding_mode="floor")
            codes = torch.cat([codes - 16 * high, high], 1)
        return (codes * self._scales[rows]).view(-1)[: at.stop - at.start]
