"""Version numbers against the ranges that this package states, without a package for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from operator import eq, ge, gt, le, lt, ne
from typing import Any

__all__ = ["Requirement", "within"]

_NAMED = re.compile(
    r"\s*(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^]]*)\])?\s*\(?(?P<range>[^;)]*)\)?\s*(?:;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_PART = re.compile(r"\s*(>=|<=|==|!=|~=|>|<)\s*v?(\d+(?:\.\d+)*)")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")

Release = tuple[int, ...]


@dataclass(frozen=True)
class Requirement:
    """A package that is asked for.

    Attributes:
        name: of the package, in small letters with dashes.
        range: of its versions, as ``>=1.2``; empty for any.
        extra: for which optional part; empty for all of the package.
        extras: which of its own optional parts.

    >>> Requirement.read("PyYAML>=6.0; extra == 'study'")
    Requirement(name='pyyaml', range='>=6.0', extra='study', extras=())
    """

    name: str
    range: str
    extra: str = ""
    extras: tuple[str, ...] = ()

    @classmethod
    def read(cls, line: str) -> Requirement:
        """From a line of a package's metadata."""
        found = _NAMED.match(line)
        assert found is not None  # every line of metadata begins with a name
        extra = _EXTRA.search(found["marker"] or "")
        name = re.sub(r"[-_.]+", "-", found["name"]).lower()
        extras = tuple(e.strip() for e in (found["extras"] or "").split(",") if e.strip())
        return cls(name, found["range"].strip(), extra[1] if extra else "", extras)


def within(version: str, stated: str) -> bool:
    """Whether a version lies in a range; of a version only its release counts, what cannot be read is no objection.

    >>> within("2.13.0+cpu", ">=2.4"), within("1.9", ">=1.10,<2"), within("2.0.1", "~=2.0.0")
    (True, False, True)
    """
    release = _RELEASE.match(version)
    if release is None:
        return True
    return all(_holds(_numbers(release[1]), sign, _numbers(bound)) for sign, bound in _PART.findall(stated))


def _numbers(text: str) -> Release:
    return tuple(map(int, text.split(".")))


def _holds(version: Release, sign: str, bound: Release) -> bool:
    if sign == "~=":  # at least this, and the same but for the last part
        return _holds(version, ">=", bound) and version[: len(bound) - 1] == bound[:-1]
    pairs = list(zip_longest(version, bound, fillvalue=0))
    compare: dict[str, Callable[[Any, Any], Any]] = {"==": eq, "!=": ne, ">=": ge, "<=": le, ">": gt, "<": lt}
    return bool(compare[sign]([a for a, _ in pairs], [b for _, b in pairs]))
