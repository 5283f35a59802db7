"""The networks of the toy experiments: ``x -> <x, u * v>``, with a rescaling symmetry in every coordinate."""

from __future__ import annotations

from torch import Tensor, nn

from spiritlevel.core.blocks import Pair
from spiritlevel.core.views import Factor, Piece
from spiritlevel.errors import ArgumentError
from spiritlevel.problem import Problem

__all__ = ["ProductNet", "pairs", "problem_of"]


class ProductNet(nn.Module):
    """A diagonal linear network; with one coordinate, the two scalar weights G and H of the paper's appendix D.

    Args:
        u: the first weights, (d,).
        v: the second.

    >>> import torch
    >>> ProductNet(torch.tensor([2.0, 1.0]), torch.tensor([3.0, 4.0]))(torch.tensor([[1.0, 10.0]])).item()
    46.0
    """

    def __init__(self, u: Tensor, v: Tensor) -> None:
        super().__init__()
        if u.shape != v.shape or u.dim() != 1:
            raise ArgumentError(f"expected two vectors of one length, got shapes {tuple(u.shape)} and {tuple(v.shape)}")
        self.u, self.v = nn.Parameter(u.detach().clone()), nn.Parameter(v.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """``<x, u * v>`` for each row of ``x``."""
        out: Tensor = x @ (self.u * self.v)
        return out


def pairs(width: int) -> list[Pair]:
    """The symmetry of a `ProductNet`: ``(u_i, v_i) -> (u_i / a_i, a_i v_i)``, a GL(1) for each coordinate.

    >>> pairs(200)[0].group
    'GL(1)^200'
    """
    u, v = (Factor((Piece(name, (width,), batch=(0,), rows=(), column=None),)) for name in ("u", "v"))
    return [Pair("u * v", u, v, kind="diagonal network")]


def problem_of(u: Tensor, v: Tensor, x: Tensor, y: Tensor, *, average: bool = False) -> Problem:
    """``|x (u * v) - y|^2`` as a function of the weights, or its mean over the rows of ``x``."""

    def squares(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        errors = (output - batch[1]).square()
        return errors.mean() if average else errors.sum()

    return Problem(ProductNet(u, v), [(x, y)], squares)
