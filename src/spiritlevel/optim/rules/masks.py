"""Rules that move only some of the weights: SSAM-F, SSAM-D, SAM-ON, ESAM.

SSAM divides by the norm of the whole gradient and masks afterwards, so that its step is shorter than rho; SAM-ON
divides by the norm of what it moves. The two are not comparable at one rho.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.optim.rules.ascent import ASAM, Plain
from spiritlevel.optim.rules.base import RULES, Perturbation, Rule, check_share, ratio
from spiritlevel.optim.slots import Point, Role, Slot, norm, roles_of

__all__ = ["ESAM", "SSAMD", "SSAMF", "NormOnly"]


@RULES.register("SSAM-F")
@dataclass(frozen=True)
class SSAMF(Plain):
    """Sparse SAM by Fisher information: ``epsilon = rho (g / |g|) * m`` (Mi et al. 2022, Alg. 1).

    ``m`` is 1 on the ``(1 - sparsity)`` of all weights with the largest ``sum_i (d loss_i)^2`` over single examples.
    Set it with ``SAM.update_mask`` before the first step and every few epochs. (In the authors' code the mask starts
    at 0, so that the first steps are plain ones; here a step without a mask is an error.) Nothing is faster for it.

    Args:
        rho: the radius before masking.
        sparsity: share of weights that do not move.
    """

    sparsity: float = 0.5

    def _check(self) -> None:
        check_share(sparsity=self.sparsity)
        if self.sparsity == 1:
            raise ArgumentError("expected a sparsity below 1: at 1 nothing moves, which is the base optimizer")

    def masks(self, scores: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """True on the largest scores, counted over all parameters together."""
        flat = torch.cat([s.reshape(-1) for s in scores.values()])
        kept = int(flat.numel() * (1 - self.sparsity))
        return _split(flat.topk(kept).indices, scores)

    def perturbation(self, point: Point) -> Iterator[Tensor]:
        masks = point.memory.get("masks")
        if masks is None:
            raise ArgumentError(
                "expected a mask before the first step, got none: call sam.update_mask([...]) with one closure for "
                "each of some examples, and again every few epochs"
            )
        scale = ratio(self.rho, norm(point.gradients))
        for slot in point.slots:
            yield scale.to(slot.gradient) * slot.gradient * _mask(masks, slot)


@RULES.register("SSAM-D")
@dataclass(frozen=True)
class SSAMD(Plain):
    """Sparse SAM with a mask that moves: ``epsilon = rho (g / |g|) * m`` (Mi et al. 2022, Alg. 2).

    ``m`` starts at random with ``(1 - sparsity)`` of the weights. At every ``every``-th step the share
    ``drop (1 + cos(pi t / T)) / 2`` of the live weights, those with the smallest ``|g|``, dies, and as many of the
    others, at random, come to life. As in the authors' code the new mask is in force from the next step on.

    Args:
        rho: the radius before masking.
        sparsity: share of weights that do not move.
        every: steps between two masks.
        steps: T, the steps of the whole training.
        drop: share of live weights exchanged at first.
    """

    sparsity: float = 0.5
    every: int = 100
    steps: int = 10_000
    drop: float = 0.5

    def _check(self) -> None:
        check_share(sparsity=self.sparsity, drop=self.drop)
        if self.sparsity == 1:
            raise ArgumentError("expected a sparsity below 1: at 1 nothing moves, which is the base optimizer")
        if min(self.every, self.steps) < 1:
            raise ArgumentError(f"expected every and steps from 1 on, got {self.every!r} and {self.steps!r}")

    def _start(self, point: Point) -> dict[int, Tensor]:
        moving = {i: p for i, p in enumerate(point.parameters) if p.requires_grad}
        scores = {i: point.draw(p, i) for i, p in moving.items()}
        flat = torch.cat([s.reshape(-1) for s in scores.values()])
        live = flat.numel() - math.ceil(flat.numel() * self.sparsity)
        return _split(flat.topk(live).indices, scores)

    def exchanged(self, point: Point, masks: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The next mask."""
        live = torch.cat([m.reshape(-1) for m in masks.values()])
        sizes = dict.fromkeys(masks, torch.tensor(0.0)) | {s.index: _whole(s) for s in point.slots}
        size = torch.cat([sizes[i].expand_as(m).reshape(-1).to(live.device) for i, m in masks.items()])
        chance = torch.cat([point.draw(m, i).reshape(-1) for i, m in masks.items()])
        share = self.drop * (1 + math.cos(math.pi * min(point.step / self.steps, 1.0))) / 2
        count = min(int(int(live.sum()) * share), int((~live).sum()))
        dying = torch.where(live, size, math.inf).topk(count, largest=False).indices
        coming = torch.where(live, -1.0, chance).topk(count).indices
        live = live.clone()
        live[dying], live[coming] = False, True
        return _split(live.nonzero().squeeze(1), masks)

    def perturbation(self, point: Point) -> Iterator[Tensor]:
        masks: dict[int, Tensor] = point.memory.get("masks") or self._start(point)
        scale = ratio(self.rho, norm(point.gradients))
        point.memory["masks"] = self.exchanged(point, masks) if point.step % self.every == 0 else masks
        for slot in point.slots:
            yield scale.to(slot.gradient) * slot.gradient * _mask(masks, slot)


def _whole(slot: Slot) -> Tensor:
    """|g| in the shape of the parameter."""
    if slot.rows is None:
        return slot.gradient.abs()
    return torch.zeros_like(slot.parameter).index_copy_(0, slot.rows, slot.gradient.abs())


def _mask(masks: Mapping[int, Tensor], slot: Slot) -> Tensor:
    if slot.index not in masks:
        raise ArgumentError(
            "expected a mask for every parameter, got none for one that was added or unfrozen later: update the mask"
        )
    return slot.part(masks[slot.index].to(slot.gradient.device)).to(slot.gradient.dtype)


def _split(chosen: Tensor, like: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Masks from positions in all parameters laid end to end."""
    flat = torch.zeros(sum(t.numel() for t in like.values()), dtype=torch.bool, device=chosen.device)
    flat[chosen] = True
    pieces = flat.split([t.numel() for t in like.values()])
    return {i: piece.view(t.shape) for (i, t), piece in zip(like.items(), pieces, strict=True)}


@RULES.register("SAM-ON")
@dataclass(frozen=True)
class NormOnly(Rule):
    """SAM-ON: another rule, on gains and shifts of normalisation layers alone (Müller et al. 2023).

    The norm in the rule runs over what moves. Layers are found by their type, whatever they are called. Radii are 2 to
    10 times those of the same rule on all weights. Needs ``model=``.

    Args:
        rule: what to do there. Its radius counts.
        types: further types of normalisation layers.
    """

    rho: float = field(default=0.5, init=False, repr=False)
    rule: Perturbation = field(default_factory=lambda: ASAM(rho=0.5))
    types: tuple[type[nn.Module], ...] = ()

    def _check(self) -> None:
        if not isinstance(self.rule, Perturbation) or self.rule.joins or self.rule.selects:
            raise ArgumentError(f"expected a rule that only adds a vector to the weights, got {self.rule!r}")
        object.__setattr__(self, "rho", self.rule.rho)

    def prepare(self, parameters: Sequence[Tensor], roles: Mapping[int, Role], model: nn.Module | None) -> set[int]:
        if model is None:
            raise ArgumentError("expected the model, because layers are told by their type: pass model= to SAM")
        roles = roles_of(model, self.types)
        found = {i for i, p in enumerate(parameters) if p.requires_grad and id(p) in roles and roles[id(p)].norm}
        if not found:
            raise ModelError(
                "expected normalisation layers with trainable gains or shifts, got none: name their types in "
                "NormOnly(types=...), or take another rule"
            )
        return found

    def move(self, point: Point) -> Iterator[tuple[Slot, Tensor]]:
        slots = [s for s in point.slots if s.index in point.fixed]
        yield from self.rule.move(replace(point, slots=slots))


@RULES.register("ESAM")
@dataclass(frozen=True)
class ESAM(Perturbation):
    """Efficient SAM: perturb a random part of the weights, learn from a part of the examples (Du et al. 2022).

    ``epsilon = (rho / beta) (g / |g|) * m`` with ``m`` 1 for a share ``beta`` of the weights, drawn anew each step, so
    that the mean is SAM's; and the second backward pass runs over the share ``gamma`` of examples whose loss rose most.
    The closure returns one loss for each example, and takes ``rows``: ``None`` for all, or the ones wanted. A step
    takes a forward-backward pass, a forward pass, and ``gamma`` of another forward-backward pass.

    Args:
        rho: the radius.
        beta: share of weights that move, above 0.
        gamma: share of examples in the second pass, above 0; 1 takes all, and any closure.
    """

    beta: float = 0.6
    gamma: float = 0.5

    def _check(self) -> None:
        check_share(beta=self.beta, gamma=self.gamma)
        if min(self.beta, self.gamma) == 0:
            raise ArgumentError("expected beta and gamma above 0: nothing would be perturbed or learnt")

    def perturbation(self, point: Point) -> Iterator[Tensor]:
        scale = ratio(self.rho / self.beta, norm(point.gradients))
        for s in point.slots:
            yield scale.to(s.gradient) * s.gradient * (s.part(point.draw(s.parameter, s.index)) < self.beta)

    @property
    def selects(self) -> bool:
        return self.gamma < 1

    def chosen(self, before: Tensor, after: Tensor) -> Tensor:
        """The examples whose loss rose most, in ascending order."""
        count = max(1, math.ceil(self.gamma * before.numel()))
        return (after - before).topk(count).indices.sort().values
