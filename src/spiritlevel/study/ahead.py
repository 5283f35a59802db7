"""What small checkpoints get together, ahead of their turn: an `Ensemble` of up to 64 neighbours in the zoo.

Groups are cut by position in the zoo, and a group is always computed whole: a study that was stopped and goes on, in
whatever engine, sums in the same order and ends with the same bits. What a group cannot do (a loss that does not map, a
network that is not finite) is simply not there, and is measured one by one with its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spiritlevel.core.evaluation import measurable
from spiritlevel.core.losses import IGNORED, logits_of, targets_of
from spiritlevel.core.results import Measurement
from spiritlevel.geometry import Elementwise, Geometry, Quotient
from spiritlevel.problem import Problem
from spiritlevel.solvers import AutoPGD
from spiritlevel.study.ensemble import Ensemble, average_cases, gradient_norms, worst_cases
from spiritlevel.study.measure_settings import Measure
from spiritlevel.study.members import Checkpoint
from spiritlevel.study.session import MEASURED, Bench, Scores, Session, counted

__all__ = ["GROUP", "SMALL", "Ahead", "Known", "neighbours"]

GROUP = 64  # ours: a few hundred kilobytes of weights, and nothing more to gain from larger groups
FEWEST = 8  # ours: below, there is little time to save
SMALL = 5000  # ours, from bench ensemble: parameters up to which a network alone leaves a processor waiting
_AGREE = 1e-6  # relative; what does not agree so well with a network by itself is not used


@dataclass(frozen=True)
class Known:
    """What is known of one checkpoint before its turn.

    Attributes:
        digest: of the files it was read from.
        scores: of the sets by name.
        measured: for each measure by name, its measurements at rising radii.
    """

    digest: str
    scores: dict[str, Scores] = field(default_factory=dict)
    measured: dict[str, list[Measurement]] = field(default_factory=dict)


class Ahead:
    """One group at a time.

    Args:
        session: data, loss and device.
        zoo: all checkpoints, in order.
        architecture: as in `Plan`.
        measures: with the radii of each, from small to large.
    """

    def __init__(
        self,
        session: Session,
        zoo: Mapping[str, Checkpoint],
        architecture: tuple[str, str] | None,
        measures: Sequence[tuple[Measure, tuple[float, ...]]],
    ) -> None:
        self._session, self._architecture, self._measures = session, architecture, tuple(measures)
        self._zoo, self._order = zoo, list(zoo)
        self._position = {name: i for i, name in enumerate(zoo)}
        self._at, self._group = -1, dict[str, Known]()

    def of(self, name: str, digest: str, bench: Bench) -> Known | None:
        """What its group found out, if it is small and its files are those that the group read."""
        if sum(w.numel() for w in measurable(bench.model).values()) > SMALL:
            return None
        at = self._position[name] // GROUP
        if at != self._at:
            self._at, self._group = at, self._computed([self._zoo[n] for n in neighbours(self._order, at)])
        known = self._group.get(name)
        return known if known is not None and known.digest == digest else None

    def _computed(self, group: Sequence[Checkpoint]) -> dict[str, Known]:
        found: dict[str, Known] = {}
        models = []
        for checkpoint in group if len(group) >= FEWEST else ():
            try:
                digest, bench = checkpoint.digest(), self._session.load(checkpoint)
                bench.check(self._architecture)
            except Exception:  # its own row will say what is wrong
                continue
            found[checkpoint.name] = Known(digest)
            models.append(bench.model)
        if len(models) < FEWEST:
            return {}
        known = list(found.values())
        for name in self._session.sets:
            if name != MEASURED and name not in self._session.config.data.scores:
                self._fill(known, lambda name=name: self._scores(models, name))  # type: ignore[misc]
        self._fill(known, lambda: self._measured(models))
        return found

    def _fill(self, known: Sequence[Known], work: Callable[[], Any]) -> None:
        try:
            for put in work():
                for member, value in zip(known, put[1], strict=True):
                    getattr(member, put[0])[put[2]] = value
        except Exception:  # one by one it will work, or say why not
            return

    def _ensemble(self, models: Sequence[torch.nn.Module], name: str) -> Ensemble:
        """On one set; refused where it does not give the losses that each network has by itself."""
        session = self._session
        ensemble = Ensemble(
            models,
            session.sets[name],
            session.loss,
            normalize_logits=session.config.loss.normalize_logits,
            micro_batch=session.config.batches.micro,
        )
        batch = next(ensemble.batches())
        for model, together in zip(models, ensemble.losses(batch).tolist(), strict=True):
            problem = session.problem(model, session.sets[name])
            alone = problem.value(problem.weights, batch)
            if abs(together - alone) > _AGREE * max(abs(alone), 1.0):
                raise ArithmeticError(f"{together} together, {alone} alone")
        return ensemble

    def _scores(self, models: Sequence[torch.nn.Module], name: str) -> Any:
        ensemble, errors = self._ensemble(models, name), self._session.config.data.errors
        problem = ensemble.problem
        terms, losses, wrong = [], [], []
        with torch.no_grad():
            for batch in ensemble.batches():
                sizes, sums, misses = [], [], []
                for part, _ in problem.parts(batch):
                    keep = _missed(problem, part) if errors else _nothing
                    loss, missed = ensemble.judged(ensemble.weights, part, keep)
                    sizes.append(counted(problem, part))
                    if sizes[-1] != problem.terms(part):
                        raise ArithmeticError("classes of different weight: one by one")
                    sums.append(loss.double() * sizes[-1])
                    misses.append(missed.double())
                terms.append(sum(sizes))
                losses.append(torch.stack(sums).sum(0) / max(terms[-1], 1))
                wrong.append(torch.stack(misses).sum(0) / max(terms[-1], 1))
        return [("scores", _scores_of(terms, torch.stack(losses, 1), torch.stack(wrong, 1)), name)]

    def _measured(self, models: Sequence[torch.nn.Module]) -> Any:
        wanted = [(m, radii, _TOGETHER[m.measure]) for m, radii in self._measures if m.measure in _TOGETHER]
        ensemble = self._ensemble(models, MEASURED) if wanted else None
        for measure, radii, run in wanted:
            assert ensemble is not None
            seed = self._session.config.seed if measure.seed is None else measure.seed
            found = run(ensemble, measure, radii, seed)
            if found is not None:
                yield "measured", found, measure.name


def neighbours(order: Sequence[str], group: int) -> Sequence[str]:
    """The names in one group of a zoo."""
    return order[group * GROUP : (group + 1) * GROUP]


def _missed(problem: Problem, batch: Any) -> Callable[[Any, Tensor], tuple[Tensor, Tensor]]:
    """Loss and count of wrong answers; as in a study of single networks."""
    targets = targets_of(batch)

    def keep(output: Any, loss: Tensor) -> tuple[Tensor, Tensor]:
        scores = logits_of(output)
        if getattr(problem.model, "loss_type", None) == "ForCausalLM" or targets.is_floating_point():
            raise ArithmeticError("no plain classes to count")
        if scores.shape[:-1] != targets.shape:
            raise ArithmeticError("no class for each score")
        return loss, ((scores.argmax(-1) != targets) & (targets != IGNORED)).sum()

    return keep


def _nothing(output: Any, loss: Tensor) -> tuple[Tensor, Tensor]:
    del output
    return loss, torch.full_like(loss, torch.nan)


def _scores_of(terms: Sequence[int], losses: Tensor, wrong: Tensor) -> list[Scores]:
    weights = torch.tensor(terms, dtype=torch.float64, device=losses.device)
    means = [((x * weights).sum(1) / weights.sum()).tolist() for x in (losses, wrong)]
    rows = zip(*means, losses.tolist(), wrong.tolist(), strict=True)
    return [Scores(loss, error, tuple(a), tuple(b), sum(terms)) for loss, error, a, b in rows]


Together = Callable[[Ensemble, Measure, tuple[float, ...], int], list[list[Measurement]] | None]


def _space(measure: Measure) -> Geometry:
    return Quotient() if measure.space is None else measure.space


def _gradient_norms(ensemble: Ensemble, measure: Measure, radii: tuple[float, ...], seed: int) -> Any:
    del radii, seed
    return [[m] for m in gradient_norms(ensemble, _space(measure))]


def _average_cases(ensemble: Ensemble, measure: Measure, radii: tuple[float, ...], seed: int) -> Any:
    found = [average_cases(ensemble, _space(measure), r, measure.samples, seed) for r in radii]
    return [list(each) for each in zip(*found, strict=True)]


def _worst_cases(norm: str, name: str, geometry: Geometry | None = None) -> Together:
    def run(ensemble: Ensemble, measure: Measure, radii: tuple[float, ...], seed: int) -> Any:
        del seed  # Auto-PGD draws nothing
        solver = AutoPGD() if measure.search is None and norm == "linf" else measure.search
        if not isinstance(solver, AutoPGD):
            return None
        return [
            list(c) for c in worst_cases(ensemble, geometry or _space(measure), radii, solver, norm=norm, name=name)
        ]

    return run


_TOGETHER: dict[str, Together] = {
    "gradient-norm": _gradient_norms,
    "average-case": _average_cases,
    "worst-case": _worst_cases("l2", "worst-case sharpness"),
    "geodesic": _worst_cases("l2", "geodesic sharpness"),
    "adaptive": _worst_cases("l2", "adaptive sharpness (l2)", Elementwise()),
    "adaptive-linf": _worst_cases("linf", "adaptive sharpness (linf)", Elementwise()),
}
"""Measures that have a form for networks together; the others are measured one by one."""
