"""What the ablations switch off or vary, as measures of a study, and the study itself.

Hide & Seek, App. G: geodesic sharpness differs from adaptive sharpness in (a) the norm of horizontal vectors and (b)
the weights along the curve; each is switched off by itself. App. H: the relaxation of the metric. Here also: the exact
curve, the radius, the number of batches, and which symmetries are taken out. The paper states neither which norm takes
the place of the one that is off (here: that of adaptive sharpness, and the Euclidean one), nor radii or values of the
relaxation. A curve or a relaxation is compared at the radius of the number it varies; another norm, metric or set of
symmetries at a radius of its own, where the loss rises as much on average, for radii of different norms mean nothing
side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spiritlevel.errors import ArgumentError
from spiritlevel.experiments.zoo_folder import ZooFolder
from spiritlevel.study import StudyTable, read_config, run_study
from spiritlevel.symmetry import KINDS

__all__ = [
    "BASES",
    "CROSS",
    "EXACT",
    "RELAXATIONS",
    "VARIANTS",
    "Ablation",
    "Variant",
    "measured_ablations",
    "measured_batches",
]

EXACT, CROSS = "exact", "cross"
RELAXATIONS = (1e-4, 1e-2, 1.0)
"""Ours; squared singular values of the factors of a small ViT are of the order 0.1 to 10."""


@dataclass(frozen=True)
class Variant:
    """One number of every network.

    Attributes:
        name: of the measure in the study.
        words: what it is.
        geometry: settings of the study's geometry.
        base: the measure it is compared with; None for those that others are compared with.
        rise: a factor of the usual mean rise, at which it has a radius of its own; None for the radius of its base.
    """

    name: str
    words: str
    geometry: Mapping[str, Any]
    base: str | None = EXACT
    rise: float | None = None

    def measure(self, rho: Any) -> dict[str, Any]:
        """As settings of a study."""
        return {"measure": "worst-case", "name": self.name, "geometry": dict(self.geometry), "rho": rho}


_SECOND = {"kind": "quotient", "curve": "second_order"}
_KINDS = tuple(k for k in KINDS if k != "classifier")
"""Not the shifts of all scores together: 49 directions of 40,000, which cost as much as all the rest."""
_CROSS = {"kind": "quotient", "metric": "cross_gram", "curve": "second_order"}

BASES = (
    Variant(EXACT, "metric (15), exact geodesics", {"kind": "quotient"}, None, 1.0),
    Variant(CROSS, "metric (34), second-order curve", _CROSS, EXACT, 1.0),
)
VARIANTS = (
    *BASES,
    Variant("second-order", "(15), second-order curve", _SECOND),
    Variant("first-order", "(15), second order off", {"kind": "quotient", "curve": "first_order"}),
    Variant("norm-off", "(15), norm off: adaptive norm", {**_SECOND, "norm": "elementwise"}, EXACT, 1.0),
    Variant("norm-euclidean", "(15), norm off: Euclidean norm", {**_SECOND, "norm": "euclidean"}, EXACT, 1.0),
    *(Variant(f"relaxed-{e:g}", f"(15), relaxation {e:g}", {"kind": "quotient", "relaxation": e}) for e in RELAXATIONS),
    Variant("rise-quarter", "(15), radius of a quarter of the rise", {"kind": "quotient"}, EXACT, 0.25),
    Variant("rise-fourfold", "(15), radius of four times the rise", {"kind": "quotient"}, EXACT, 4.0),
    Variant("all-symmetries", "more kinds of symmetries out", {"kind": "quotient", "symmetries": _KINDS}, EXACT, 1.0),
    Variant("no-symmetries", "none out: adaptive sharpness", {"kind": "elementwise"}, EXACT, 1.0),
    Variant("cross-first-order", "(34), second order off", {**_CROSS, "curve": "first_order"}, CROSS),
    Variant("cross-norm-off", "(34), norm off: adaptive norm", {**_CROSS, "norm": "elementwise"}, CROSS, 1.0),
    Variant("cross-exact", "(34), exact geodesics", {**_CROSS, "curve": "exact"}, CROSS),
)


@dataclass(frozen=True)
class Ablation:
    """How much is measured. All of it is chosen.

    Attributes:
        networks: at most so many of each design, the first by name.
        designs: of the zoo (`spiritlevel.experiments.zoo_folder`).
        examples: training examples that the variants are taken on; None for those of the zoo's own study.
        many: training examples that the bases are taken on once more, for the number of batches; None for those above.
        rise: mean rise of the loss at which radii are compared.
        judges: networks that radii are found on.
        left_out: names of variants that are not measured.
    """

    networks: int
    designs: tuple[str, ...]
    examples: int | None = None
    many: int | None = None
    rise: float = 0.2
    judges: int = 3
    left_out: tuple[str, ...] = ()

    @property
    def variants(self) -> tuple[Variant, ...]:
        """All that are measured."""
        unknown = set(self.left_out) - {v.name for v in VARIANTS if v not in BASES}
        if unknown:
            raise ArgumentError(f"expected names of variants to leave out, got {', '.join(sorted(unknown))}")
        return tuple(v for v in VARIANTS if v.name not in self.left_out)


def measured_ablations(
    zoo: ZooFolder, ablation: Ablation, store: str | Path | None = None, *, show_progress: bool | None = None
) -> StudyTable:
    """The table of the study: stopped at any moment, it goes on from there.

    Args:
        zoo: that is prepared.
        ablation: how much.
        store: the file of the numbers; by default ``ablations.db`` beside the zoo's own study.
        show_progress: force the progress bar on or off.
    """
    path = _store(zoo, store)
    own = [v for v in ablation.variants if v.rise is not None]
    rules = [v.measure({"rise": [v.rise * ablation.rise], "checkpoints": ablation.judges}) for v in own if v.rise]
    table = _run(zoo, ablation, rules, path, show_progress)
    radii = {fact["measure"]: fact["rho"] for fact in table.facts["radii"]}
    others = [v.measure([radii[v.base]]) for v in ablation.variants if v.rise is None]
    return _run(zoo, ablation, [*rules, *others], path, show_progress)


def measured_batches(
    zoo: ZooFolder,
    ablation: Ablation,
    radii: Mapping[str, float],
    store: str | Path | None = None,
    *,
    show_progress: bool | None = None,
) -> StudyTable:
    """The bases on more examples, batch by batch, at the radii they have.

    Args:
        zoo: that is prepared.
        ablation: how much.
        radii: of the bases by name.
        store: as for `measured_ablations`; the file beside it ends in ``-batches.db``.
        show_progress: force the progress bar on or off.
    """
    path = _store(zoo, store)
    measures = [v.measure([radii[v.name]]) for v in BASES]
    whole = replace(ablation, examples=ablation.many)
    return _run(zoo, whole, measures, path.with_name(f"{path.stem}-batches.db"), show_progress, tests=False)


def _store(zoo: ZooFolder, store: str | Path | None) -> Path:
    return zoo.path / "ablations.db" if store is None else Path(store)


def _run(
    zoo: ZooFolder,
    ablation: Ablation,
    measures: Sequence[Mapping[str, Any]],
    store: Path,
    show: bool | None,
    *,
    tests: bool = True,
) -> StudyTable:
    config = read_config(zoo.study)
    chosen = [p for design in ablation.designs for p in zoo.checkpoints(design)[: ablation.networks]]
    if not chosen:
        raise ArgumentError(f"expected networks of the designs {', '.join(ablation.designs)} in {zoo.path}, got none")
    settings = config.model_dump(exclude_defaults=True)
    settings["name"] = "ablations"
    settings["zoo"] |= {"checkpoints": tuple(map(str, chosen)), "partial": True}
    settings["measures"] = list(measures)
    if not tests:
        settings["data"]["tests"] = {}
    if ablation.examples is not None:
        settings["data"]["subset"] = ablation.examples
    return run_study(type(config).model_validate(settings).placed(config.folder, {}), store, show_progress=show)
