"""A named set of things of one kind, so that command line and contract tests find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from spiritlevel.errors import ArgumentError

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping with a decorator that adds to it.

    >>> shapes = Registry[type]("shape")
    >>> @shapes.register("square")
    ... class Square: ...
    >>> list(shapes)
    ['square']
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Add the decorated thing under ``name``."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ArgumentError(f"expected a new {self._what} name, got {name!r}, which is registered already")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise ArgumentError(f"expected a {self._what} out of {', '.join(self._entries)}; got {name!r}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
