"""The set of blocks that a model has, and what stayed outside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from spiritlevel.core.blocks.base import Block
from spiritlevel.core.display import Displayed

__all__ = ["Leftover", "Symmetries"]


@dataclass(frozen=True)
class Leftover:
    """Parameters that are not quotiented, and why."""

    parameters: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Symmetries(Sequence[Block], Displayed):
    """The blocks found in a model, and what stayed outside them."""

    blocks: tuple[Block, ...]
    """What a quotient divides by."""
    leftovers: tuple[Leftover, ...] = ()
    total: int = 0
    """Entries of all measured parameters."""
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Entries of each measured parameter."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Groups that were proposed and left out, with the reason."""

    def __getitem__(self, index: Any) -> Any:
        return self.blocks[index]

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
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
                {
                    "name": b.name,
                    "kind": b.kind,
                    "group": b.group,
                    "dimension": b.dimension,
                    "parameters": list(b.parameters),
                }
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
            "refused": [{"name": name, "reason": reason} for name, reason in self.refused.items()],
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
        table.add_section()
        for name, reason in self.refused.items():
            table.add_row(f"{name}\n[dim]{reason}[/dim]", "left out", "", "0")
        return table


def _shorten(names: Sequence[str]) -> str:
    """A few names in full, many by their first and their number."""
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"
