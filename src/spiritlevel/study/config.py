"""The settings of a study: which checkpoints, which data, which measures at which radii.

They come from a YAML file (`spiritlevel.study.read_config`) or are made in Python:

>>> config = StudyConfig(
...     zoo=Zoo(checkpoints="runs/*", hyperparameters="runs.csv"),
...     data=Data(train="train.npz", tests={"rotated": "rotated.npz"}),
...     measures=[Measure(measure="geodesic", rho=[0.1, 0.2]), "adaptive"],
... )
>>> [m.name for m in config.measures]
['geodesic', 'adaptive']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from spiritlevel.errors import ConfigError
from spiritlevel.geometry import METRICS, Elementwise, Euclidean, Geometry, Quotient
from spiritlevel.measures import MEASURES
from spiritlevel.solvers import SOLVERS, Solver

__all__ = ["Batches", "Data", "GeometrySettings", "Loss", "Measure", "RadiusRule", "StudyConfig", "Zoo", "config_of"]

Hyperparameter = bool | int | float | str | None


class _Settings(BaseModel):
    """Unknown keys are errors, and nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, validate_default=True)


def _listed(value: Any) -> Any:
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
Numbers = Annotated[tuple[Positive, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]


class Zoo(_Settings):
    """The checkpoints and what they were trained with.

    Attributes:
        checkpoints: a glob of Hugging Face folders or files of weights, several, or names with paths or with functions
            that return a model. Relative paths start at the folder of the configuration.
        builder: for files of weights: ``package.module:function``, or a function, that returns the model.
        hyperparameters: a CSV or JSON file with a row for each checkpoint; the name of a JSON file that lies in each
            checkpoint's folder, as ``config.json``; or values by checkpoint and name.
        columns: which hyperparameters; by default all (from a JSON beside each checkpoint: all that vary).
        partial: leave out rows of ``hyperparameters`` without a checkpoint and checkpoints without a row.
        same_architecture: whether a checkpoint with other parameters than the first is an error.
    """

    checkpoints: str | dict[str, str | Path | Callable[..., Any]] | tuple[str | Path, ...]
    builder: str | Callable[..., Any] | None = None
    hyperparameters: str | Path | dict[str, dict[str, Hyperparameter]] | None = None
    columns: Annotated[tuple[str, ...], BeforeValidator(_listed)] | None = None
    partial: bool = False
    same_architecture: bool = True


class Data(_Settings):
    """What the networks are measured and tested on.

    Attributes:
        train: the training data: a file or ``package.module:function`` (see `load_data`); in Python also a function,
            arrays by name, or a pair (inputs, targets).
        subset: how many training examples the measures are taken on; by default all.
        subset_seed: which ones; None for the first, without a choice.
        tests: the test sets by name, the shifted ones among them.
        errors: whether targets are classes, so that there is a share of errors. False for regression.
    """

    train: Any
    subset: PositiveInt | None = None
    subset_seed: int | None = 0
    tests: dict[Name, Any] = Field(default_factory=dict)
    errors: bool = True

    @model_validator(mode="after")
    def _check(self) -> Data:
        if "train" in self.tests:
            raise ValueError("expected another name for the test set 'train': it is the training data's")
        return self


class Batches(_Settings):
    """How data are cut.

    Attributes:
        size: examples per batch: the m of m-sharpness.
        micro: most examples in one pass, to save memory.
    """

    size: PositiveInt = 128
    micro: PositiveInt | None = None


class Loss(_Settings):
    """What is measured. By default cross-entropy, or the loss the model itself returns.

    Attributes:
        function: ``package.module:function``, or a function, ``(output, batch) -> scalar``.
        normalize_logits: centre the logits of the cross-entropy and divide them by their norm.
    """

    function: str | Callable[..., Any] | None = None
    normalize_logits: bool = False

    @model_validator(mode="after")
    def _check(self) -> Loss:
        if self.function is not None and self.normalize_logits:
            raise ValueError("expected either a function or normalize_logits: normalise inside the function")
        return self


class GeometrySettings(_Settings):
    """What a unit length is. See `Quotient`, `Elementwise` and `Euclidean`."""

    kind: Literal["quotient", "elementwise", "euclidean"]
    metric: Annotated[str, _known("metric", METRICS)] = "inverse_gram"
    curve: Literal["exact", "second_order", "first_order", "straight", "geodesic"] | None = None
    rest: Literal["elementwise", "euclidean"] = "elementwise"

    @model_validator(mode="after")
    def _check(self) -> GeometrySettings:
        curves = {"quotient": ("exact", "second_order", "first_order"), "elementwise": ("straight", "geodesic")}
        allowed = curves.get(self.kind, ())
        if self.curve is not None and self.curve not in allowed:
            raise ValueError(f"expected a curve of {self.kind} out of {', '.join(allowed) or 'none'}; got {self.curve}")
        if self.kind != "quotient" and {"metric", "rest"} & self.model_fields_set:
            raise ValueError(f"expected metric and rest for the quotient only, got them for {self.kind}")
        return self

    def build(self) -> Geometry:
        """The geometry itself."""
        if self.kind == "euclidean":
            return Euclidean()
        if self.kind == "elementwise":
            return Elementwise(self.curve or "straight")  # type: ignore[arg-type]  # checked above
        rest = Elementwise() if self.rest == "elementwise" else Euclidean()
        return Quotient(self.metric, self.curve or "exact", rest=rest)  # type: ignore[arg-type]  # checked above


class RadiusRule(_Settings):
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


class Measure(_Settings):
    """One measure, in one geometry, at one or more radii.

    Attributes:
        measure: one of `spiritlevel.measures.MEASURES`.
        name: its name in the table; by default the measure's, with the geometry's where one is given.
        geometry: for measures that leave it open; for ``geodesic`` a quotient.
        rho: the radii, or a `RadiusRule`; by default the measure's own grid.
        solver: for worst cases.
        steps: most gradient evaluations for each batch and radius.
        samples: for averages and traces.
        seed: by default the study's.
    """

    measure: Annotated[str, _known("measure", MEASURES)]
    name: Name = ""
    geometry: Annotated[GeometrySettings | Geometry | None, SkipValidation, BeforeValidator(_geometry)] = None
    rho: Annotated[RadiusRule | Sequence[float] | float | None, SkipValidation, BeforeValidator(_radii)] = None
    solver: Annotated[str, _known("solver", SOLVERS)] = "sphere"
    steps: PositiveInt = 20
    samples: Annotated[int, Field(ge=2)] = 20
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


class StudyConfig(_Settings):
    """A whole study.

    Attributes:
        zoo: the checkpoints.
        data: what they are measured and tested on.
        measures: what is measured.
        name: for the report.
        store: the file that holds the results, as ``study.db`` beside the configuration.
        loss: what the measures are taken of.
        batches: how data are cut.
        seed: fixes everything random, for every checkpoint alike.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        engine: ``serial``, or ``processes`` with so many ``workers``.
        workers: how many processes; by default one for each core.
        threads: of torch in each process; by default torch's own for ``serial``, the cores shared for ``processes``.
            The last digits of a sum depend on it.
    """

    zoo: Zoo
    data: Data
    measures: Annotated[tuple[Measure, ...], BeforeValidator(_listed), Field(min_length=1)]
    name: str = "study"
    store: Path = Path("study.db")
    loss: Loss = Loss()
    batches: Batches = Batches()
    seed: int = 0
    device: str = "cpu"
    engine: str = "serial"
    workers: PositiveInt | None = None
    threads: PositiveInt | None = None

    _folder: Path = PrivateAttr(default=Path())
    _places: Mapping[tuple[str | int, ...], str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> StudyConfig:
        names = [m.name for m in self.measures]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"expected measures of different names, got {name!r} twice: give one a name")
        if "parameter-norm" in names:
            raise ValueError("expected another name than 'parameter-norm', which every study has")
        return self

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self._folder

    def placed(self, folder: Path, places: Mapping[tuple[str | int, ...], str]) -> StudyConfig:
        """The same, with the folder it belongs to and the line and column of each setting."""
        other = self.model_copy()
        other._folder, other._places = folder, places
        return other

    def at(self, *keys: str | int) -> str:
        """Where a setting stands, to begin a message with: ``study.yaml:4:3: zoo.builder``."""
        dotted = ".".join(map(str, keys))
        place = self._places.get(keys)
        return dotted if place is None else f"{place}: {dotted}"

    def summary(self) -> dict[str, Any]:
        """What the numbers depend on, as plain data, without what is in memory only."""
        shown = self.model_dump(include={"zoo", "data", "measures", "loss", "batches", "seed"}, exclude_defaults=True)
        return {key: _summed_up(value) for key, value in shown.items()}


def _summed_up(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _summed_up(v) for k, v in value.items()}
    if isinstance(value, list | tuple) and all(isinstance(v, bool | int | float | str | Mapping | Path) for v in value):
        return [_summed_up(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path | Geometry):
        return str(value)
    return getattr(value, "__qualname__", type(value).__name__)


def config_of(given: StudyConfig | Mapping[str, Any]) -> StudyConfig:
    """A configuration made in Python, checked."""
    if isinstance(given, StudyConfig):
        return given
    try:
        return StudyConfig.model_validate(given)
    except ValidationError as error:
        raise ConfigError(explained(error)) from error


def explained(error: ValidationError, place: Callable[[tuple[str | int, ...]], str] = lambda keys: "") -> str:
    """What is wrong, one line for each mistake."""
    lines = []
    for e in error.errors(include_url=False, include_context=False):
        keys = tuple(e["loc"])
        said = e["msg"].removeprefix("Value error, ")
        came = "" if said.startswith("expected") or e["type"] == "missing" else f", got {_short(e['input'])}"
        lines.append(f"{place(keys)}{'.'.join(map(str, keys)) or 'study'}: {_expected(e['type'], said)}{came}")
    return "\n".join(dict.fromkeys(lines))


def _expected(kind: str, said: str) -> str:
    if kind == "missing":
        return "expected this setting, got none"
    if kind == "extra_forbidden":
        return "expected a setting of this place, not this key"
    return said[0].lower() + said[1:]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
