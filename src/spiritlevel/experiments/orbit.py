"""Measures along random moves of a trained network along its orbit: other weights, the same function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from spiritlevel.core.drawing import COLOURS, GREY, panels
from spiritlevel.demo.data import digits
from spiritlevel.demo.model import train
from spiritlevel.experiments.base import EXPERIMENTS, Claim, Experiment, Report
from spiritlevel.experiments.orbit_rows import (
    ASCENT,
    CONDITIONS,
    MEASURES,
    SCALES,
    Row,
    Size,
    along_the_orbit,
    invariant,
    radii_of_rise,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FLAT", "Network", "orbit"]

FLAT = {"float64": 1e-6, "float32": 1e-2}
"""Ours: up to this relative change a measure counts as flat. Far below what differs between trained networks."""
CHANGED = 0.1
"""Ours: from this relative change on a measure counts as changed."""
_LEAST = 1e-11  # smaller changes are drawn here: they are rounding of float64


@dataclass(frozen=True)
class Network:
    """The network and how it is measured. All of it is chosen.

    Attributes:
        hidden: width; four heads.
        layers: depth.
        epochs: of training on the digits.
        size: how much is measured.
    """

    hidden: int = 48
    layers: int = 3
    epochs: int = 25
    size: Size = field(default_factory=Size)


QUICK = Network(hidden=32, layers=2, epochs=20, size=Size(images=64, seeds=1, probes=4))


def orbit(quick: bool, seed: int) -> Report:
    """Run it: train, move, measure, judge."""
    network = QUICK if quick else Network()
    model = train(seed, network.epochs, hidden=network.hidden, layers=network.layers)
    images, labels = digits()[0]
    data = images[: network.size.images], labels[: network.size.images]
    radii = radii_of_rise(model, data, network.size.rise)
    rows = along_the_orbit(model, data, radii, network.size, seed)
    settings = {
        **asdict(network),
        "scales": SCALES,
        "conditions": CONDITIONS,
        "solver": str(ASCENT),
        "radii": radii,
        "flat": FLAT,
        "changed": CHANGED,
        "seed": seed,
        "chosen": "all of these: the paper proves the invariance and states no such run",
    }
    return Report(
        "orbit",
        "Measures along the orbit of a trained vision transformer",
        tuple(claims(rows)),
        settings,
        _data(rows),
        {"orbit": draw(rows)},
        reading(rows),
    )


def _data(rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers behind everything: the moves, and each measure before and after all of them."""
    keys = ("precision", "scale", "condition", "seed", "output", "dead")
    first = [r for r in rows if r.measure == rows[0].measure]
    values: dict[str, Any] = {}
    for r in rows:
        of = values.setdefault(r.measure, {"before": {}, "after": []})
        of["before"][r.precision] = r.before
        of["after"].append(r.after)
    return {"moves": {k: [getattr(r, k) for r in first] for k in keys}, "values": values}


def claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """Each measure: the largest change over all moves, in both precisions where it should be none."""
    for name in MEASURES:
        for precision in FLAT:
            found = [r for r in rows if r.measure == name and r.precision == precision]
            worst = max(found, key=lambda r: r.change)
            if invariant(name):
                note = f"{_at(worst)}; flat up to {FLAT[precision]:g}{_excuse(found)}"
                what, paper = f"{name}: largest relative change, {precision}", "0 (Sec. 5.2, App. F.2)"
                yield Claim(what, paper, worst.change, worst.change <= FLAT[precision], None, note)
            elif precision == "float64":
                ratios = [r.after / r.before for r in found]
                note = f"times {min(ratios):.3g} to {max(ratios):.3g}; {_at(worst)}; changed from {CHANGED:g} on"
                what = f"{name}: largest relative change, {precision}"
                yield Claim(what, "not invariant", worst.change, worst.change >= CHANGED, None, note)


def _at(row: Row) -> str:
    return f"at scale {row.scale:g}, condition {row.condition:g}"


def _excuse(found: Sequence[Row]) -> str:
    """What a lower precision does to the function itself."""
    output, dead = max(r.output for r in found), max(r.dead for r in found)
    lost = f", and {dead} singular values are lost in it" if dead else ""
    return f"; the move itself changes the logits by up to {output:.1g}{lost}"


def reading(rows: Sequence[Row]) -> str:
    """What it means, from the numbers."""
    parts = []
    for precision in FLAT:
        found = [r for r in rows if r.precision == precision and invariant(r.measure)]
        worst = max(found, key=lambda r: r.change)
        tame = [r for r in found if r.dead == 0]
        calm = max(r.change for r in tame)
        text = f"In {precision} the measures of the quotient change by up to {worst.change:.1e} ({worst.measure}"
        text += f", {_at(worst)})"
        if worst.dead:
            text += (
                f": there the move leaves {worst.dead} singular values below the rounding of the stored weights, and "
                f"the function itself has moved by {worst.output:.1e}; without such moves by up to {calm:.1e}"
            )
        parts.append(text + ".")
    others = [r for r in rows if r.precision == "float64" and not invariant(r.measure)]
    spans = []
    for name in dict.fromkeys(r.measure for r in others):
        ratios = [r.after / r.before for r in others if r.measure == name]
        spans.append(f"{name} {min(ratios):.2g} to {max(ratios):.2g}")
    parts.append("Over the same moves the others are multiplied by: " + "; ".join(spans) + ".")
    turned = [r for r in others if r.scale == 1 and r.condition == 1]
    blind = [r.change for r in turned if "Euclidean" in r.measure and "trace" not in r.measure]
    seeing = [r.change for r in turned if "adaptive" in r.measure and "trace" not in r.measure]
    parts.append(
        f"Rotations alone (scale and condition 1) change the Euclidean ones by up to {max(blind):.1e} and the adaptive "
        f"ones by {min(seeing):.1e} to {max(seeing):.1e}; of a trace they change the estimate, from the same random "
        "vectors in turned coordinates."
    )
    return " ".join(parts)


def draw(rows: Sequence[Row]) -> Figure:
    """Above: values over those before the move; below: how flat the flat ones are, in both precisions."""
    figure, axes = panels(2, 2, 8.1, 5.3)
    sweeps = (("scale", [r for r in rows if r.condition == 1]), ("condition", [r for r in rows if r.scale == 1]))
    for column, (what, some) in enumerate(sweeps):
        wide = [r for r in some if r.precision == "float64"]
        _lines(axes[0, column], what, wide, lambda r: r.after / r.before, _STYLES)
        for precision, style in (("float64", "-"), ("float32", "--")):
            flat = [r for r in some if invariant(r.measure) and r.precision == precision]
            _lines(axes[1, column], what, flat, lambda r: max(r.change, _LEAST), dict.fromkeys(_STYLES, style))
            axes[1, column].axhline(FLAT[precision], color=GREY, lw=0.8, ls=style)
        axes[0, column].axhline(1, color=GREY, lw=0.5)
    axes[0, 0].set(ylabel="after the move / before (float64)")
    axes[1, 0].set(ylabel="change, quotient (1e-11: that or less)")
    _legends(figure)
    return figure


_STYLES = {"sharpness": "-", "gradient norm": ":", "Hessian trace": "--", "top eigenvalue": "-."}
_MARKERS = dict(zip(_STYLES, "os^v", strict=True))


_Value = Callable[[Row], float]


def _lines(axes: Axes, what: str, rows: Sequence[Row], value: _Value, styles: Mapping[str, str]) -> None:
    for name in dict.fromkeys(r.measure for r in rows):
        kind, space = name.split(", ", 1)
        points = _middle_over_seeds(what, [r for r in rows if r.measure == name], value)
        axes.plot(*points, styles[kind], marker=_MARKERS[kind], ms=3.5, color=COLOURS[_SPACES.index(space)], lw=1.2)
    axes.set(xscale="log", yscale="log", xlabel=_LABELS[what])


_SPACES = list(dict.fromkeys(name.split(", ", 1)[1] for name in MEASURES))


def _legends(figure: Figure) -> None:
    """Colours are geometries, markers measures, lines measures above and precisions below."""
    from matplotlib.lines import Line2D

    colours = [Line2D([], [], color=COLOURS[i], lw=3, label=space) for i, space in enumerate(_SPACES)]
    kinds = [Line2D([], [], color=GREY, ls=s, marker=_MARKERS[k], ms=4, label=k) for k, s in _STYLES.items()]
    lines = [Line2D([], [], color=GREY, ls=s, label=p) for p, s in (("float64", "-"), ("float32", "--"))]
    figure.legend(handles=[*colours, *kinds], loc="outside right upper", frameon=False, fontsize=8)
    limits = Line2D([], [], color=GREY, lw=0.8, label="limit of flat")
    figure.legend(handles=[*lines, limits], loc="outside right lower", frameon=False, fontsize=8, title="below")


_LABELS = {"scale": "scale of the matrices on the heads", "condition": "their condition number"}


def _middle_over_seeds(what: str, rows: Sequence[Row], value: _Value) -> tuple[list[float], list[float]]:
    """The median over seeds at each place."""
    places = sorted({getattr(r, what) for r in rows})
    middles = []
    for place in places:
        values = sorted(value(r) for r in rows if getattr(r, what) == place)
        middles.append(values[len(values) // 2])
    return places, middles


EXPERIMENTS.register("orbit")(Experiment("Hide & Seek, Sec. 5.2: measures along the orbit of a trained network", orbit))
