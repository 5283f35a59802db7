"""Factor views: the matrices a symmetry acts on, as they lie inside a model's parameters.

A group acts on tall matrices ``G`` (rows x columns), one per head. In a model they are slices of parameters: rows or
columns of a projection, a third of a fused one, with a bias as one more row. A `Piece` describes one such slice by a
reshape, an index and a choice of axes, so one description serves every layout; a `Factor` stacks pieces along the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spiritlevel.errors import ModelError

__all__ = ["Factor", "Piece"]


@dataclass(frozen=True)
class Piece:
    """Where some rows of a factor lie in one parameter.

    The parameter is viewed as ``shape``, indexed by ``index``, its axes split further into the shape ``split`` (empty:
    left as they are), and the axes of the result are named: ``batch`` axes run over heads, ``rows`` axes over the rows
    of the factor, ``column`` is the axis the group mixes (None: a single column), ``pair`` an axis of length two that
    holds real and imaginary part of a complex column (None: real). The group acts on the parameter plus ``offset``
    (norms that store a gain as its difference from 1).

    >>> weight = torch.arange(6.0).reshape(2, 3)  # one head of width 2 on 3 inputs: rows of the weight are columns of G
    >>> Piece("w", shape=(1, 2, 3), batch=(0,), rows=(2,), column=1).read({"w": weight})
    tensor([[[0., 3.],
             [1., 4.],
             [2., 5.]]])
    """

    parameter: str
    shape: tuple[int, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    column: int | None
    index: tuple[int | slice, ...] = ()
    pair: int | None = None
    split: tuple[int, ...] = ()
    offset: float = 0.0

    def _view(self, parameter: Tensor) -> Tensor:
        """(*batch, *rows, column, pair), without flattening: a view of a contiguous parameter."""
        t = parameter.reshape(self.shape)[self.index]
        t = t.view(self.split) if self.split else t
        order = self.batch + self.rows
        if self.column is None:
            order, t = (*order, t.dim()), t.unsqueeze(-1)
        else:
            order = (*order, self.column)
        return t.permute(order if self.pair is None else (*order, self.pair))

    @cached_property
    def size(self) -> tuple[int, int, int]:
        """Heads, rows and columns."""
        sizes = self._view(torch.empty(self.shape, device="meta")).shape
        count, heads, rows = len(self.batch), 1, 1
        for n in sizes[:count]:
            heads *= n
        for n in sizes[count : count + len(self.rows)]:
            rows *= n
        return heads, rows, sizes[count + len(self.rows)]

    def read(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The rows as a tensor (heads, rows, columns), complex where there is a pair axis."""
        t = self.read_tangent(weights)
        return t + self.offset if self.offset else t

    def read_tangent(self, tangent: Mapping[str, Tensor]) -> Tensor:
        """The same of a tangent vector or a gradient, which know no offset."""
        t = self._view(tangent[self.parameter])
        if self.pair is not None:
            t = torch.view_as_complex(t.contiguous())
        return t.reshape(self.size)

    def write(self, weights: Mapping[str, Tensor], value: Tensor) -> None:
        """Put the rows into a contiguous parameter, in place."""
        self.write_tangent(weights, value - self.offset if self.offset else value)

    def write_tangent(self, tangent: Mapping[str, Tensor], value: Tensor) -> None:
        """The same for a tangent vector."""
        target = self._view(tangent[self.parameter])
        value = torch.view_as_real(value.resolve_conj()) if self.pair is not None else value
        target.copy_(value.reshape(target.shape))

    def clear(self, mask: Mapping[str, Tensor]) -> None:
        """Set every entry it covers of a contiguous mask to False, in place."""
        self._view(mask[self.parameter]).fill_(False)

    def mark(self, counts: Mapping[str, Tensor]) -> None:
        """Add one to every entry it covers of a contiguous count, in place."""
        self._view(counts[self.parameter]).add_(1)


@dataclass(frozen=True)
class Factor:
    """One factor of a block: pieces stacked along the rows, all heads at once."""

    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        """Check that the pieces fit together."""
        if len({(p.size[0], p.size[2], p.pair is None) for p in self.pieces}) != 1:
            sizes = {p.parameter: p.size for p in self.pieces}
            raise ModelError(f"expected pieces of equal heads and columns in one factor, got {sizes}")

    @property
    def heads(self) -> int:
        """How many heads."""
        return self.pieces[0].size[0]

    @property
    def columns(self) -> int:
        """The width the group mixes."""
        return self.pieces[0].size[2]

    @property
    def rows(self) -> int:
        """Rows of one head, biases included."""
        return sum(p.size[1] for p in self.pieces)

    @property
    def is_complex(self) -> bool:
        """Whether columns are complex."""
        return self.pieces[0].pair is not None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters it reads."""
        return tuple(dict.fromkeys(p.parameter for p in self.pieces))

    def read(self, weights: Mapping[str, Tensor]) -> Tensor:
        """(heads, rows, columns)."""
        return _stacked([p.read(weights) for p in self.pieces])

    def read_tangent(self, tangent: Mapping[str, Tensor]) -> Tensor:
        """The same of a tangent vector or a gradient."""
        return _stacked([p.read_tangent(tangent) for p in self.pieces])

    def write(self, weights: Mapping[str, Tensor], value: Tensor) -> None:
        """Put (heads, rows, columns) back into contiguous parameters, in place."""
        for piece, part in zip(self.pieces, self._cut(value), strict=True):
            piece.write(weights, part)

    def write_tangent(self, tangent: Mapping[str, Tensor], value: Tensor) -> None:
        """The same for a tangent vector."""
        for piece, part in zip(self.pieces, self._cut(value), strict=True):
            piece.write_tangent(tangent, part)

    def _cut(self, value: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = value.split([p.size[1] for p in self.pieces], dim=1)
        return parts


def _stacked(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
