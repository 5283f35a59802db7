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

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from spiritlevel.errors import ConfigError
from spiritlevel.geometry import Geometry
from spiritlevel.study.cluster_settings import RaySettings
from spiritlevel.study.measure_settings import GeometrySettings, Measure, Name, RadiusRule, Settings, listed

__all__ = [
    "Batches",
    "Data",
    "GeometrySettings",
    "Loss",
    "Measure",
    "RadiusRule",
    "RaySettings",
    "StudyConfig",
    "Zoo",
    "config_of",
]

Hyperparameter = bool | int | float | str | None


class Zoo(Settings):
    """The checkpoints and what they were trained with.

    Attributes:
        checkpoints: a glob of Hugging Face folders or files of weights, several, or names with paths or with functions
            that return a model. Relative paths start at the folder of the configuration.
        builder: for files of weights: ``package.module:function``, or a function, that returns the model (see
            `load_checkpoint`).
        hyperparameters: a CSV or JSON file with a row for each checkpoint; the name of a JSON file that lies in each
            checkpoint's folder, as ``config.json``; or values by checkpoint and name.
        columns: which hyperparameters; by default all (from a JSON beside each checkpoint: all that vary).
        partial: leave out rows of ``hyperparameters`` without a checkpoint and checkpoints without a row.
        same_architecture: whether a checkpoint with other parameters than the first is an error.
    """

    checkpoints: str | dict[str, str | Path | Callable[..., Any]] | tuple[str | Path, ...]
    builder: str | Callable[..., Any] | None = None
    hyperparameters: str | Path | dict[str, dict[str, Hyperparameter]] | None = None
    columns: Annotated[tuple[str, ...], BeforeValidator(listed)] | None = None
    partial: bool = False
    same_architecture: bool = True


class Data(Settings):
    """What the networks are measured and tested on.

    Attributes:
        train: the training data: a file or ``package.module:function`` (see `load_data`); in Python also a function,
            arrays by name, or a pair (inputs, targets).
        subset: how many training examples the measures are taken on; by default all.
        subset_seed: which ones; None for the first, without a choice.
        tests: the test sets by name, the shifted ones among them.
        errors: whether targets are classes, so that there is a share of errors. False for regression.
        scores: for test sets whose classes are not the networks' own: ``package.module:function``, or a function, from
            a network's scores (the last axis) to those of the set's classes, on which loss and errors are then taken.
    """

    train: Any
    subset: PositiveInt | None = None
    subset_seed: int | None = 0
    tests: dict[Name, Any] = Field(default_factory=dict)
    errors: bool = True
    scores: dict[Name, str | Callable[..., Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Data:
        if "train" in self.tests:
            raise ValueError("expected another name for the test set 'train': it is the training data's")
        for name in self.scores:
            if name not in self.tests:
                raise ValueError(f"expected scores for test sets out of {', '.join(self.tests)}; got {name!r}")
        return self


class Batches(Settings):
    """How data are cut.

    Attributes:
        size: examples per batch: the m of m-sharpness.
        micro: most examples in one pass, to save memory.
    """

    size: PositiveInt = 128
    micro: PositiveInt | None = None


class Loss(Settings):
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


class StudyConfig(Settings):
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
        engine: ``serial``, or ``processes`` or ``ray`` with so many ``workers``; under torchrun ``ranks``, whatever
            stands here.
        workers: how many processes; by default one for each core, or on Ray as many as the cluster has room for.
        threads: of torch in each process; by default torch's own for ``serial``, the cores shared for ``processes``,
            and 1 for ``ray``. The last digits of a sum depend on it.
        ray: which cluster, and what each worker takes of it.
    """

    zoo: Zoo
    data: Data
    measures: Annotated[tuple[Measure, ...], BeforeValidator(listed), Field(min_length=1)]
    name: str = "study"
    store: Path = Path("study.db")
    loss: Loss = Loss()
    batches: Batches = Batches()
    seed: int = 0
    device: str = "cpu"
    engine: str = "serial"
    workers: PositiveInt | None = None
    threads: PositiveInt | None = None
    ray: RaySettings = RaySettings()

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
