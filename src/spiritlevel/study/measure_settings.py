"""Which measure, in which geometry, at which radii: the part of a study's settings that a column comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SkipValidation,
    TypeAdapter,
    model_validator,
)

from spiritlevel.geometry import METRICS, Elementwise, Euclidean, Geometry, Quotient
from spiritlevel.measures import CURVATURE, MEASURES, CurvatureOptions
from spiritlevel.solvers import SOLVERS, Solver
from spiritlevel.symmetry import KINDS

__all__ = ["CurvatureSettings", "GeometrySettings", "Measure", "Name", "RadiusRule", "Settings", "listed"]


class Settings(BaseModel):
    """Unknown keys are errors, and nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, validate_default=True)


def listed(value: Any) -> Any:
    """One of something where a list is expected."""
    return value if isinstance(value, list | tuple) else [value]


def _known(what: str, names: Mapping[str, Any]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"expected a {what} out of {', '.join(names)}; got {value!r}")
        return value

    return AfterValidator(check)


def _distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    if len({f"{v:g}" for v in values}) != len(values) or not values:
        raise ValueError(f"expected one or more numbers, no two alike in six digits, got {list(values)}")
    return values


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Numbers = Annotated[tuple[Positive, ...], BeforeValidator(listed), AfterValidator(_distinct)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]


class GeometrySettings(Settings):
    """What a unit length is. See `Quotient`, `Elementwise` and `Euclidean`.

    Attributes:
        kind: which geometry.
        metric: of a quotient.
        curve: of a quotient or the elementwise geometry.
        rest: what a quotient does with weights outside its blocks.
        symmetries: which kinds a quotient takes out: ``all``, or a list of them; by default the paper's, attention.
        norm: of a quotient, for the paper's ablation only.
        relaxation: of a quotient, for the paper's ablation only.
    """

    kind: Literal["quotient", "elementwise", "euclidean"]
    metric: Annotated[str, _known("metric", METRICS)] = "inverse_gram"
    curve: Literal["exact", "second_order", "first_order", "straight", "geodesic"] | None = None
    rest: Literal["elementwise", "euclidean"] = "elementwise"
    symmetries: Literal["all"] | tuple[Annotated[str, _known("kind of symmetry", dict.fromkeys(KINDS))], ...] | None = (
        None
    )
    norm: Literal["metric", "elementwise", "euclidean"] = "metric"
    relaxation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _check(self) -> GeometrySettings:
        curves = {"quotient": ("exact", "second_order", "first_order"), "elementwise": ("straight", "geodesic")}
        allowed = curves.get(self.kind, ())
        if self.curve is not None and self.curve not in allowed:
            raise ValueError(f"expected a curve of {self.kind} out of {', '.join(allowed) or 'none'}; got {self.curve}")
        own = {"metric", "rest", "symmetries", "norm", "relaxation"} & self.model_fields_set
        if self.kind != "quotient" and own:
            raise ValueError(
                f"expected metric and rest for the quotient only, got {', '.join(sorted(own))} for {self.kind}"
            )
        if self.relaxation and (self.metric, self.norm) != ("inverse_gram", "metric"):
            raise ValueError("expected relaxation with the norm of inverse_gram only: nothing else is inverted")
        return self

    def build(self) -> Geometry:
        """The geometry itself."""
        if self.kind == "euclidean":
            return Euclidean()
        if self.kind == "elementwise":
            return Elementwise(self.curve or "straight")  # type: ignore[arg-type]  # checked above
        rest = Elementwise() if self.rest == "elementwise" else Euclidean()
        return Quotient(
            self.metric,  # type: ignore[arg-type]  # checked above
            self.curve or "exact",  # type: ignore[arg-type]  # the same
            rest=rest,
            kinds=self.symmetries,
            norm=self.norm,
            relaxation=self.relaxation,
        )


class RadiusRule(Settings):
    """Radii chosen by rule: where the mean of the measure over a few checkpoints reaches given levels.

    Found once for a study, then fixed and recorded in its store.

    Attributes:
        rise: the levels.
        checkpoints: over how many, spread evenly over the zoo.
    """

    rise: Numbers
    checkpoints: PositiveInt = 3


_NUMBERS: TypeAdapter[tuple[float, ...]] = TypeAdapter(Numbers)


def _geometry(value: Any) -> GeometrySettings | Geometry | None:
    if value is None or isinstance(value, Geometry | GeometrySettings):
        return value
    return GeometrySettings.model_validate({"kind": value} if isinstance(value, str) else value)


def _radii(value: Any) -> RadiusRule | tuple[float, ...] | None:
    if value is None or isinstance(value, RadiusRule):
        return value
    return RadiusRule.model_validate(value) if isinstance(value, Mapping) else _NUMBERS.validate_python(value)


class CurvatureSettings(Settings):
    """What the measures of curvature take; see `CurvatureOptions`. What is left out keeps the measure's default."""

    matrix: Literal["hessian", "gauss_newton", "fisher", "empirical_fisher"] | None = None
    over: Literal["union", "batches"] | None = None
    estimator: Literal["hutchinson", "hutch++", "xtrace"] | None = None
    vectors: PositiveInt | None = None
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    steps: PositiveInt | None = None
    probes: PositiveInt | None = None
    alpha: Positive | None = None
    damping: Positive | None = None

    def build(self) -> CurvatureOptions:
        """The options themselves."""
        return CurvatureOptions(**self.model_dump(exclude_none=True))


class Measure(Settings):
    """One measure, in one geometry, at one or more radii.

    Attributes:
        measure: one of `spiritlevel.measures.MEASURES`.
        name: its name in the table; by default the measure's, with the geometry's where one is given.
        geometry: for measures that leave it open; for ``geodesic`` a quotient.
        rho: the radii, or a `RadiusRule`; by default the measure's own grid.
        solver: for worst cases.
        steps: most gradient evaluations for each batch and radius.
        samples: for averages.
        curvature: for measures of curvature.
        seed: by default the study's.
    """

    measure: Annotated[str, _known("measure", MEASURES)]
    name: Name = ""
    geometry: Annotated[GeometrySettings | Geometry | None, SkipValidation, BeforeValidator(_geometry)] = None
    rho: Annotated[RadiusRule | Sequence[float] | float | None, SkipValidation, BeforeValidator(_radii)] = None
    solver: Annotated[str, _known("solver", SOLVERS)] = "sphere"
    steps: PositiveInt = 20
    samples: Annotated[int, Field(ge=2)] = 20
    curvature: CurvatureSettings | None = None
    seed: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """A plain word is a measure; the name is made of what was given."""
        value = {"measure": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or value.get("name") or not isinstance(value.get("measure"), str):
            return value
        geometry = value.get("geometry")
        if isinstance(geometry, GeometrySettings):
            kind: Any = geometry.kind
        elif isinstance(geometry, Geometry):
            kind = type(geometry).__name__.lower()
        else:
            kind = geometry.get("kind") if isinstance(geometry, Mapping) else geometry
        metric = geometry.get("metric") if isinstance(geometry, Mapping) else getattr(geometry, "metric", None)
        parts = [value["measure"], None if value["measure"] == "geodesic" else kind]
        parts.append(metric if metric not in (None, "inverse_gram") else None)
        return {**value, "name": "-".join(str(p) for p in parts if p)}

    @model_validator(mode="after")
    def _check(self) -> Measure:
        if not self.takes_radii and self.rho is not None:
            raise ValueError(f"expected no rho for {self.measure}, which has no radius")
        if self.measure.startswith("adaptive") and self.geometry is not None:
            raise ValueError(f"expected no geometry for {self.measure}: take worst-case with one")
        if self.measure == "geodesic" and self.geometry is not None and not isinstance(self.space, Quotient):
            raise ValueError("expected a quotient for geodesic: take worst-case for other geometries")
        if self.curvature is not None and self.measure not in CURVATURE:
            raise ValueError(f"expected curvature for measures of curvature only, got it for {self.measure}")
        if self.measure == "average-case" and self.samples % 2:
            raise ValueError(f"expected an even number of samples (antithetic pairs), got {self.samples}")
        return self

    @property
    def takes_radii(self) -> bool:
        """Whether there is a radius at all."""
        return bool(MEASURES[self.measure].radii)

    @property
    def space(self) -> Geometry | None:
        """The geometry, where one is given."""
        return self.geometry.build() if isinstance(self.geometry, GeometrySettings) else self.geometry

    @property
    def search(self) -> Solver | None:
        """The solver, where it is not the measure's own."""
        return None if (self.solver, self.steps) == ("sphere", 20) else SOLVERS[self.solver].limited(self.steps)
