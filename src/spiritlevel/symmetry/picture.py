"""A picture of what is redundant where: a heat map of layers and kinds, in the terminal and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.style import Style
from rich.table import Table
from rich.text import Text

from spiritlevel.core.blocks import Symmetries
from spiritlevel.core.display import Displayed
from spiritlevel.symmetry.certificate import Certificate

__all__ = ["LayerMap", "page"]

_OUTSIDE = "outside layers"
_LIGHT, _DARK = (226, 237, 248), (8, 81, 156)  # from no redundancy to all of it
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
.why { text-align: left; }
td.heat { min-width: 4.5rem; }
@media print { body { margin: 0; max-width: none; } td.heat { print-color-adjust: exact; } }
"""


@dataclass(frozen=True)
class LayerMap(Displayed):
    """Redundant dimensions by layer and kind, as shares of the layer's parameters.

    Attributes:
        layers: names, in the order of the model.
        kinds: kinds of symmetry found.
        sizes: measured parameters of each layer.
        removed: for each layer the redundant dimensions of each kind.
    """

    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    removed: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, found: Symmetries) -> LayerMap:
        """Sort the blocks of a model by layer: the part of a parameter's name up to its first number."""
        sizes: dict[str, int] = {}
        for name, size in found.sizes.items():
            sizes[_layer(name)] = sizes.get(_layer(name), 0) + size
        kinds = tuple(dict.fromkeys(b.kind for b in found))
        removed = {layer: dict.fromkeys(kinds, 0) for layer in sizes}
        for b in found:
            layers = {_layer(n) for n in b.parameters}
            home = layers.pop() if len(layers) == 1 else _OUTSIDE
            sizes.setdefault(home, 0)
            removed.setdefault(home, dict.fromkeys(kinds, 0))[b.kind] += b.dimension
        rows = tuple(tuple(removed[layer].values()) for layer in sizes)
        return cls(tuple(sizes), kinds, tuple(sizes.values()), rows)

    def share(self, row: int, column: int) -> float:
        """Redundant dimensions of one kind over the parameters of a layer."""
        return self.removed[row][column] / max(self.sizes[row], 1)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the layers without the dotted words that all of them begin with."""
        words = [layer.split(".") for layer in self.layers if layer != _OUTSIDE]
        common = 0
        while words and all(len(w) > common + 2 and w[common] == words[0][common] for w in words):
            common += 1
        return tuple(x if x == _OUTSIDE else ".".join(x.split(".")[common:]) for x in self.layers)

    def __rich__(self) -> Table:
        table = Table(title="Redundancy by layer (% of its parameters)", title_justify="left")
        table.add_column("layer", no_wrap=True)
        table.add_column("size", justify="right")
        for kind in (*self.kinds, "all"):
            table.add_column(kind, justify="right")
        for i, layer in enumerate(self.labels):
            shares = [self.share(i, j) for j in range(len(self.kinds))]
            cells = [_cell(s) for s in (*shares, sum(shares))]
            table.add_row(layer, f"{self.sizes[i]:,}", *cells)
        return table


def page(found: Symmetries, certificate: Certificate | None = None, title: str = "Weight symmetries") -> str:
    """One self-contained HTML page: totals, heat map, blocks with their certificate, and what stayed and why.

    Loads nothing and runs nothing; every name is escaped.
    """
    share = 100 * found.dimension / max(found.total, 1)
    held = "not tested on data" if certificate is None else certificate.summary
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{found.total:,} parameters, {found.dimension:,} of them redundant ({share:.1f} %). {escape(held)}</p>",
        _heat(LayerMap.of(found)),
        _blocks(found, certificate),
        _rows("Elementwise", ("parameters", "size", "why"), _leftovers(found)),
        _rows("Left out", ("group", "", "why"), [(n, "", r) for n, r in found.refused.items()]),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _layer(name: str) -> str:
    parts = name.split(".")
    number = next((i for i, p in enumerate(parts) if p.isdigit()), None)
    return _OUTSIDE if number is None else ".".join(parts[: number + 1])


def _colour(share: float) -> tuple[int, int, int]:
    t = min(max(share, 0.0), 1.0) ** 0.5  # small shares stay visible
    r, g, b = (round(x + t * (y - x)) for x, y in zip(_LIGHT, _DARK, strict=True))
    return r, g, b


def _cell(share: float) -> Text:
    if not share:
        return Text("")
    r, g, b = _colour(share)
    return Text(f" {100 * share:.1f} ", Style(bgcolor=f"rgb({r},{g},{b})", color="white" if share > 0.15 else "black"))


def _heat(heat: LayerMap) -> str:
    head = "".join(f"<th>{escape(k)}</th>" for k in ("layer", "parameters", *heat.kinds, "all"))
    rows = []
    for i, layer in enumerate(heat.labels):
        shares = [heat.share(i, j) for j in range(len(heat.kinds))]
        cells = "".join(_heat_cell(s) for s in (*shares, sum(shares)))
        rows.append(f"<tr><td>{escape(layer)}</td><td>{heat.sizes[i]:,}</td>{cells}</tr>")
    caption = "<caption>Redundant directions, % of a layer's parameters</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _heat_cell(share: float) -> str:
    if not share:
        return '<td class="heat"></td>'
    r, g, b = _colour(share)
    ink = "#fff" if share > 0.15 else "#000"
    return f'<td class="heat" style="background:rgb({r},{g},{b});color:{ink}">{100 * share:.1f}</td>'


def _blocks(found: Symmetries, certificate: Certificate | None) -> str:
    findings = {} if certificate is None else {f.name: f for f in certificate.findings}
    rows = []
    for b in found:
        tested = findings.get(b.name)
        held = ("", "") if tested is None else (f"{tested.moment:.1e}", str(tested.verdict))
        rows.append((b.name, b.kind, b.group, f"{b.dimension:,}", *held))
    return _rows("Blocks", ("block", "kind", "group", "removed", "moment map", "verdict"), rows)


def _leftovers(found: Symmetries) -> list[tuple[str, ...]]:
    return [
        (", ".join(x.parameters[:4]) + (", ..." if len(x.parameters) > 4 else ""),
         f"{sum(found.sizes.get(p, 0) for p in x.parameters):,}", x.reason)
        for x in found.leftovers
    ]  # fmt: skip


def _rows(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    kinds = ['class="why"' if h in ("why", "kind", "group", "verdict") else "" for h in head]
    titles = "".join(f"<th {k}>{escape(h)}</th>" for k, h in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {k}>{escape(c)}</td>" for k, c in zip(kinds, row, strict=True)) + "</tr>" for row in rows
    )
    return f"<table><caption>{caption}</caption><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
