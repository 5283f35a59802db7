"""What a process needs to work on a study: its data, its loss, its device; and one checkpoint at a time."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.batches import tensors_in
from spiritlevel.core.evaluation import measurable
from spiritlevel.core.launched import device_of_rank
from spiritlevel.core.losses import IGNORED, TorchLoss, logits_of, targets_of
from spiritlevel.core.ranks import Crew
from spiritlevel.core.results import Measurement
from spiritlevel.core.tensors import all_finite, norm
from spiritlevel.errors import ArgumentError, CheckpointError, DataError
from spiritlevel.problem import DistributedProblem, Problem
from spiritlevel.study.config import StudyConfig
from spiritlevel.study.data import ArrayBatches, Examples, load_data
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.references import is_reference, load_function

__all__ = ["MEASURED", "TRAIN", "Bench", "Scores", "Session", "counted", "importable", "usable"]

TRAIN, MEASURED = "train", "measured"


@dataclass(frozen=True)
class Scores:
    """How well a network does on one set.

    Attributes:
        loss: mean over examples.
        error: the share of examples that it gets wrong; NaN where targets are no classes.
        losses: of each batch.
        errors: of each batch.
        size: how many examples (loss terms) there are.
        uncounted: why errors could not be counted; None where they were.
    """

    loss: float
    error: float
    losses: tuple[float, ...]
    errors: tuple[float, ...]
    size: int
    uncounted: DataError | None = None


class Session:
    """The data, loss and device of a study, loaded once.

    Args:
        config: of the study.
        device: another one than the configuration's, for a process that plans what others do.
    """

    def __init__(self, config: StudyConfig, device: str | None = None) -> None:
        self.config = config
        self.crew: Crew | None = None  # the ranks of torchrun, and whether checkpoints are measured by all of them
        self.shared = False
        self.device = _device(config) if device is None else torch.device(device)
        self.sets: dict[str, Iterable[Any]] = {TRAIN: self._load("train", config.data.train)}
        self.sets |= {name: self._load(f"tests.{name}", source) for name, source in config.data.tests.items()}
        self.sets[MEASURED] = self._measured()
        self.loss = _function(config.loss.function)
        self._scores = {name: _function(given) for name, given in config.data.scores.items()}

    def _load(self, key: str, source: Any) -> Iterable[Any]:
        if isinstance(source, Path) or (isinstance(source, str) and not is_reference(source)):
            source = self.config.folder / source
        try:
            return load_data(source, self.config.batches.size)
        except (ArgumentError, DataError) as error:
            raise DataError(f"{self.config.at('data', *key.split('.'))}: {error}") from error

    def _measured(self) -> Iterable[Any]:
        """The part of the training data that measures are taken on."""
        data, train = self.config.data, self.sets[TRAIN]
        if data.subset is None:
            return train
        if isinstance(train, ArrayBatches | Examples):
            return train.chosen(data.subset, data.subset_seed)
        return load_data(train, self.config.batches.size, data.subset)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """A hash of the content of each set: numbers from other data are other numbers."""
        return {name: _fingerprint(batches) for name, batches in self.sets.items()}

    def problem(self, model: nn.Module, batches: Iterable[Any]) -> Problem:
        """Model, data and the study's loss, in this process."""
        return self._problem(Problem, model, batches)

    def shared_problem(self, model: nn.Module, batches: Iterable[Any]) -> Problem:
        """The same, by all ranks together where there are several."""
        return self._problem(DistributedProblem if self.shared else Problem, model, batches)

    def _problem(self, kind: type[Problem], model: nn.Module, batches: Iterable[Any]) -> Problem:
        config = self.config
        return kind(
            model,
            batches,
            self.loss,
            normalize_logits=config.loss.normalize_logits,
            micro_batch=config.batches.micro,
        )

    def judge(self, model: nn.Module, name: str) -> Problem:
        """A model on one of the sets, with scores for the classes of that set."""
        scores = self._scores.get(name)
        return self.problem(model if scores is None else _Rescored(model, scores), self.sets[name])

    def load(self, checkpoint: Checkpoint) -> Bench:
        """A checkpoint, ready to be measured."""
        torch.manual_seed(self.config.seed)  # for what a builder leaves to chance
        return Bench(self, checkpoint.load(self.config.zoo.builder).to(self.device))


class Bench:
    """One checkpoint with the data of its study.

    Args:
        session: the data, loss and device.
        model: the network.

    Attributes:
        measured: what is known before its turn, for each measure by name at rising radii (see `Ahead`).
    """

    def __init__(self, session: Session, model: nn.Module) -> None:
        self.session, self.model = session, model
        self.measured: dict[str, list[Measurement]] = {}
        self._scores: dict[str, Scores] = {}

    @cached_property
    def problem(self) -> Problem:
        """What the measures are taken of."""
        return self.session.shared_problem(self.model, self.session.sets[MEASURED])

    @property
    def architecture(self) -> str:
        """A hash of names and shapes of all parameters and buffers."""
        shapes = sorted((n, tuple(t.shape)) for n, t in self.model.state_dict().items() if isinstance(t, Tensor))
        return hashlib.sha256(repr(shapes).encode()).hexdigest()[:20]

    def check(self, architecture: tuple[str, str] | None) -> None:
        """Refuse a network of other parameters than the first of the zoo (hash and name), and one that diverged."""
        if architecture is not None and self.architecture != architecture[0]:
            raise CheckpointError(
                f"expected the architecture of {architecture[1]}, got other parameters: leave this checkpoint out of "
                "the glob, or set zoo.same_architecture to false"
            )
        bad = [n for n, w in measurable(self.model).items() if not all_finite([w])]
        if bad:
            raise CheckpointError(
                f"expected finite weights, got NaN or infinity in {', '.join(bad[:5])}: is this a diverged run?"
            )

    @property
    def norm(self) -> float:
        """The Euclidean norm of all parameters."""
        return math.sqrt(math.fsum(norm(w) ** 2 for w in measurable(self.model).values()))

    def know(self, scores: Mapping[str, Scores], measured: Mapping[str, list[Measurement]]) -> None:
        """Take over numbers that were found ahead."""
        self._scores |= scores
        self.measured |= measured

    def scores(self, name: str) -> Scores:
        """Loss and errors on one set; one pass, the first time."""
        if name not in self._scores:
            problem = self.session.judge(self.model, name)
            self._scores[name] = _scores(problem, self.session.config.data.errors)
        return self._scores[name]


class _Rescored(nn.Module):
    """A network whose scores are turned into those of other classes; a loss of its own it is not asked for."""

    def __init__(self, model: nn.Module, scores: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._scores = model, scores

    def forward(self, *inputs: Any, labels: Any = None, **named: Any) -> Tensor:
        del labels
        out: Tensor = self._scores(logits_of(self.model(*inputs, **named)))
        return out


def _scores(problem: Problem, errors: bool) -> Scores:
    weights = problem.weights
    terms, numbers, losses, wrong = [], [], [], []
    uncounted: DataError | None = None
    with torch.no_grad():
        for batch in problem.batches():
            sizes, sums, misses, counts = [], [], [], []
            for part, _ in problem.parts(batch):
                output, loss = problem.judged(weights, part)
                sizes.append(problem.terms(part))
                sums.append(float(loss) * sizes[-1])
                counts.append(counted(problem, part))
                try:
                    misses.append(_misses(problem, output, part) if errors else math.nan)
                except DataError as error:  # there is a loss all the same
                    misses.append(math.nan)
                    uncounted = error
            terms.append(sum(sizes))
            numbers.append(sum(counts))
            losses.append(math.fsum(sums) / (terms[-1] or 1))
            wrong.append(math.fsum(misses) / max(numbers[-1], 1))
    total = sum(terms)
    if not total:
        raise DataError("expected at least one target that is not ignored, got none")
    mean_loss = math.fsum(v * t for v, t in zip(losses, terms, strict=True)) / total
    mean_error = math.fsum(v * n for v, n in zip(wrong, numbers, strict=True)) / max(sum(numbers), 1)
    return Scores(mean_loss, mean_error, tuple(losses), tuple(wrong), sum(numbers), uncounted)


def counted(problem: Problem, batch: Any) -> int:
    """How many targets a batch has: its loss terms, but for the weights of classes."""
    return problem.loss.count(batch) if isinstance(problem.loss, TorchLoss) else int(problem.terms(batch))


def _misses(problem: Problem, output: Any, batch: Any) -> int:
    """How many targets the highest score misses."""
    scores, targets = logits_of(output), targets_of(batch)
    if not isinstance(targets, Tensor) or targets.is_floating_point() or scores.shape[:-1] != targets.shape:
        got = f"{targets.dtype} of shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets)
        raise DataError(
            f"expected one class for each score of shape {tuple(scores.shape)} to count errors, got {got}: set "
            "data.errors to false where targets are no classes"
        )
    if getattr(problem.model, "loss_type", None) == "ForCausalLM":
        scores, targets = scores[..., :-1, :], targets[..., 1:]
    return int(((scores.argmax(-1) != targets) & (targets != IGNORED)).sum())


def _function(given: str | Callable[..., Any] | None) -> Callable[..., Any] | None:
    return load_function(given) if isinstance(given, str) else given


def usable(device: str) -> bool:
    """Whether torch can use a device here.

    >>> usable("cpu")
    True
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True


def _device(config: StudyConfig) -> torch.device:
    name = device_of_rank(config.device)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        short = str(error).strip().splitlines()[0]
        raise ArgumentError(
            f"{config.at('device')}: expected a device that torch can use here, got {config.device!r}: {short}"
        ) from error
    return torch.device(name)


def _fingerprint(batches: Iterable[Any]) -> str:
    if isinstance(batches, Examples):
        return batches.fingerprint
    total = hashlib.sha256()
    for batch in batches:
        keys = sorted(map(str, batch)) if isinstance(batch, Mapping) else []
        total.update(repr(keys).encode())
        for t in tensors_in(batch):
            total.update(f"{t.dtype}{tuple(t.shape)}".encode())
            total.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:20]


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Code beside the configuration can be named in it."""
    here = str(folder.absolute())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
