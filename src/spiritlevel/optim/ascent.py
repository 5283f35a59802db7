"""The weights at the perturbed point, and the way back."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from spiritlevel.optim.held import Buffers, RandomState
from spiritlevel.optim.rules import Rule
from spiritlevel.optim.slots import Point, Slot, norm

__all__ = ["Ascent"]


class Ascent:
    """Moves the weights when it is made, and back when it is told to.

    Args:
        rule: where to.
        point: where the weights are; without slots they stay.
        model: whose buffers come back too.
        marked: the random state that the second pass starts from; None goes on with the present one.
        room: for copies of the weights, by index; kept from step to step, because fetching pages anew costs 2 % of one.

    Attributes:
        point: the one given, its gradients let go.
        radius: how far the weights moved.
    """

    def __init__(
        self, rule: Rule, point: Point, model: nn.Module | None, marked: RandomState | None, room: dict[int, Tensor]
    ) -> None:
        self.point, self._room = point, room
        self.radius: Tensor | None = None
        self._saved: list[tuple[Slot, Tensor]] = []
        self._buffers = Buffers(model)
        self._end = None if marked is None else RandomState({p.device for p in point.parameters})
        self._away = True
        if rule.keeps_first:
            point.first = {s.index: s.gradient for s in point.slots}
        try:
            self._climb(rule, point)
        except BaseException:
            self.come_back()
            raise
        point.slots = [s.released() for s in point.slots]
        if marked is not None:
            marked.bring_back()

    @torch.no_grad()
    def _climb(self, rule: Rule, point: Point) -> None:
        moves: Iterable[tuple[Slot, Tensor]] = rule.move(point) if point.slots else ()
        lengths = []
        for slot, weight in moves:  # one at a time: a whole perturbation is never held
            self._saved.append((slot.released(), self._copy(slot)))
            lengths.append(torch.linalg.vector_norm((weight - slot.weight).float()))
            slot.write(weight)
        self.radius = point.radius if point.radius is not None or not lengths else norm(lengths)

    def _copy(self, slot: Slot) -> Tensor:
        if slot.rows is not None:  # other rows at every step
            return slot.weight.clone()
        old = self._room.get(slot.index)
        new = slot.weight
        if old is None or (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            old = self._room[slot.index] = torch.empty_like(new)
        return old.copy_(slot.weight)

    @torch.no_grad()
    def come_back(self) -> None:
        """Weights, buffers and random state exactly as they were; does nothing the second time."""
        if not self._away:
            return
        self._away = False
        for slot, weight in self._saved:
            slot.write(weight)
        self._saved.clear()
        self._buffers.put_back()
        if self._end is not None:
            self._end.bring_back()
