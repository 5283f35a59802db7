"""Inner products of long vectors that may lie spread over processes, and decisions all processes take alike.

Solvers and estimators look at long vectors only through the few numbers made here. In one process they are what they
seem. Inside `agreeing` they are the same on every process, to the last bit: sums over processes where each holds a
stretch of the vectors, the first process's where each holds all of them. So no process takes another branch than the
others, and a solver needs not know that there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from spiritlevel.core import tensors

__all__ = ["Agreement", "agreeing", "all_finite", "any_entry", "dot", "most", "norm", "same", "total"]

Array = np.ndarray[Any, np.dtype[np.float64]]


class Agreement(Protocol):
    """How processes come to the same numbers."""

    def total(self, numbers: Array) -> Array:
        """Of numbers that each process made from its stretch of some vectors: those of the whole vectors."""

    def most(self, numbers: Array) -> Array:
        """The same for largest entries."""

    def same(self, numbers: Array) -> Array:
        """The first process's."""


_active: ContextVar[Agreement | None] = ContextVar("agreement", default=None)


@contextmanager
def agreeing(agreement: Agreement | None) -> Iterator[None]:
    """Numbers made inside are agreed on; None for a process by itself."""
    token = _active.set(agreement)
    try:
        yield
    finally:
        _active.reset(token)


def total(numbers: Array) -> Array:
    """Sums over the entries of long vectors, made from what this process holds of them."""
    at = _active.get()
    return numbers if at is None else at.total(numbers)


def most(number: float) -> float:
    """The largest of something over the entries of long vectors."""
    at = _active.get()
    return number if at is None else float(at.most(np.array([number]))[0])


def same(flag: bool) -> bool:
    """A decision that follows no agreed number, such as one by the clock: the first process takes it for all."""
    at = _active.get()
    return flag if at is None else bool(at.same(np.array([float(flag)]))[0])


def dot(x: Tensor, y: Tensor) -> float:
    """The inner product of two long vectors; see `spiritlevel.core.tensors.dot`.

    >>> import torch
    >>> dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    11.0
    """
    at = _active.get()
    return tensors.dot(x, y) if at is None else float(at.total(np.array([tensors.dot(x, y)]))[0])


def norm(x: Tensor) -> float:
    """The Euclidean norm of a long vector.

    >>> import torch
    >>> norm(torch.tensor([3.0, 4.0]))
    5.0
    """
    at = _active.get()
    return tensors.norm(x) if at is None else float(at.total(np.array([tensors.norm(x) ** 2]))[0]) ** 0.5


def any_entry(x: Tensor) -> bool:
    """Whether a long vector has an entry other than 0."""
    return most(float(x.ne(0).any())) > 0


def all_finite(vectors: Iterable[Tensor]) -> bool:
    """Whether no entry of any of these long vectors is NaN or infinite."""
    return most(float(not tensors.all_finite(vectors))) == 0
