"""Symmetry blocks, and the set of them that a model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from torch import Tensor

from spiritlevel.core.display import Displayed
from spiritlevel.core.views import Factor
from spiritlevel.errors import ModelError

__all__ = ["Leftover", "Pair", "Symmetries"]


@dataclass(frozen=True)
class Pair:
    """Two factors a model uses only through ``M = G H^*``, one such product per head.

    An invertible ``A`` acts as ``(G A^-1, H A^*)`` and leaves the function as it is: the group is GL(h) per head, over
    the reals or, where columns are pairs of real ones (rotary positions), over the complex numbers.
    """

    name: str
    left: Factor
    right: Factor

    def __post_init__(self) -> None:
        """Check that one group can act on both factors."""
        shapes = [(f.heads, f.columns, f.is_complex) for f in (self.left, self.right)]
        if shapes[0] != shapes[1]:
            raise ModelError(
                f"expected equal heads, columns and field in both factors of {self.name}, "
                f"got {shapes[0]} and {shapes[1]}"
            )

    @property
    def heads(self) -> int:
        """How many heads, each with a group of its own."""
        return self.left.heads

    @property
    def width(self) -> int:
        """The h of GL(h)."""
        return self.left.columns

    @property
    def is_complex(self) -> bool:
        """Whether the group is over the complex numbers."""
        return self.left.is_complex

    @property
    def group(self) -> str:
        """The group in words.

        One head: ``GL(8)``; several: ``GL(8)^4``.
        """
        one = f"GL({self.width},C)" if self.is_complex else f"GL({self.width})"
        return one if self.heads == 1 else f"{one}^{self.heads}"

    @property
    def dimension(self) -> int:
        """Real dimension of the group, which is the number of redundant directions at full rank."""
        return self.heads * self.width**2 * (2 if self.is_complex else 1)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters it acts on."""
        return tuple(dict.fromkeys(self.left.parameters + self.right.parameters))

    def read(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Both factors, each (heads, rows, columns)."""
        return self.left.read(weights), self.right.read(weights)

    def write(self, weights: Mapping[str, Tensor], left: Tensor, right: Tensor) -> None:
        """Put both factors back into contiguous parameters, in place."""
        self.left.write(weights, left)
        self.right.write(weights, right)


@dataclass(frozen=True)
class Leftover:
    """Parameters that are not quotiented, and why."""

    parameters: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Symmetries(Sequence[Pair], Displayed):
    """The blocks found in a model, and what stayed outside them."""

    blocks: tuple[Pair, ...]
    leftovers: tuple[Leftover, ...] = ()
    total: int = 0
    """Entries of all measured parameters."""
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Entries of each measured parameter."""

    def __getitem__(self, index: Any) -> Any:
        return self.blocks[index]

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.blocks)

    @property
    def dimension(self) -> int:
        """Redundant directions, all blocks together."""
        return sum(b.dimension for b in self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "parameters": self.total,
            "redundant": self.dimension,
            "blocks": [
                {"name": b.name, "group": b.group, "dimension": b.dimension, "parameters": list(b.parameters)}
                for b in self.blocks
            ],
            "elementwise": [
                {
                    "reason": x.reason,
                    "parameters": list(x.parameters),
                    "size": sum(self.sizes.get(p, 0) for p in x.parameters),
                }
                for x in self.leftovers
            ],
        }

    def __rich__(self) -> Table:
        """A table: block, group, parameters, dimension removed; then what stayed elementwise and why."""
        share = f" ({100 * self.dimension / self.total:.1f} %)" if self.total else ""
        table = Table(
            title="Weight symmetries",
            caption=f"{self.total:,} parameters, {self.dimension:,} redundant directions quotiented{share}",
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("block")
        table.add_column("group", no_wrap=True)
        table.add_column("parameters", justify="right")
        table.add_column("removed", justify="right")
        for b in self.blocks:
            size = sum(self.sizes.get(p, 0) for p in b.parameters)
            table.add_row(b.name, b.group, f"{size:,}", f"{b.dimension:,}")
        table.add_section()
        for x in self.leftovers:
            size = sum(self.sizes.get(p, 0) for p in x.parameters)
            table.add_row(_shorten(x.parameters) + f"\n[dim]{x.reason}[/dim]", "elementwise", f"{size:,}", "0")
        return table


def _shorten(names: Sequence[str]) -> str:
    """A few names in full, many by their first and their number."""
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"
