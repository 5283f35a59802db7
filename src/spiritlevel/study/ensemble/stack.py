"""Networks as one: weights stacked along a new first axis, and the forward pass mapped over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from spiritlevel.core.batches import model_inputs
from spiritlevel.core.evaluation import evaluating, explained, widen
from spiritlevel.core.tensors import natural_dtype
from spiritlevel.errors import LossError, ModelError, NondeterminismError
from spiritlevel.problem import Problem

__all__ = ["Ensemble"]

_AGREEMENT = 256.0  # as in Problem: two passes may differ by so many roundings


class Ensemble:
    """The losses of several networks of one architecture on the same data.

    Values, gradients and measures are those of each network by itself, up to rounding (a test holds them to 1e-6); the
    work of Python and of launching small kernels is done once for all. It pays where one network is too small to keep a
    processor busy, up to about ten thousand multiplications for each example; large ones are better measured one by
    one. Memory: all weights, and the activations of all networks on one batch.

    Args:
        models: networks of one architecture.
        batches: as for `Problem`, for all networks.
        loss: as for `Problem`.
        parameters: names to measure; by default all that require a gradient.
        normalize_logits: as for `Problem`.
        micro_batch: as for `Problem`.

    >>> models = [nn.Linear(2, 2) for _ in range(3)]
    >>> ensemble = Ensemble(models, [(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))])
    >>> len(ensemble), ensemble.weights["weight"].shape
    (3, torch.Size([3, 2, 2]))
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        batches: Iterable[Any],
        loss: Callable[[Any, Any], Tensor] | nn.Module | None = None,
        parameters: Iterable[str] | None = None,
        *,
        normalize_logits: bool = False,
        micro_batch: int | None = None,
    ) -> None:
        _check_alike(models)
        self.models = tuple(models)
        self.problem = Problem(
            models[0], batches, loss, parameters, normalize_logits=normalize_logits, micro_batch=micro_batch
        )
        with torch.no_grad():
            stacked, buffers = stack_module_state(list(models))
        state = {n: widen(t.detach()) for n, t in (*stacked.items(), *buffers.items())}
        names = tuple(self.problem.weights)
        self.weights = {n: state[n] for n in names}
        self._rest = {n: t for n, t in state.items() if n not in self.weights}
        self._checked = False

    def __len__(self) -> int:
        return len(self.models)

    def batches(self) -> Iterator[Any]:
        """The data, on the models' device."""
        return self.problem.batches()

    def values(self, weights: Mapping[str, Tensor], batch: Any) -> Tensor:
        """The loss of each network on a batch, at stacked weights; differentiable in them."""
        values: Tensor = self.judged(weights, batch, lambda output, loss: loss)
        return values

    def judged(self, weights: Mapping[str, Tensor], batch: Any, keep: Callable[[Any, Tensor], Any]) -> Any:
        """What ``keep(output, loss)`` gives for each network, stacked."""
        model, loss = self.models[0], self.problem.loss
        args, kwargs = model_inputs(batch, natural_dtype(weights.values()))

        def one(measured: dict[str, Tensor], rest: dict[str, Tensor]) -> Any:
            output = functional_call(model, {**rest, **measured}, args, kwargs, tie_weights=True)
            value = loss(output, batch)
            if not isinstance(value, Tensor) or value.numel() != 1:
                what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise LossError(f"expected a scalar loss, got {what}: average over the batch")
            return keep(output, value.reshape(()))

        # Fused attention has no rule for many networks at once and would run them one by one.
        with (
            evaluating(model),
            explained("the models and the loss, mapped over networks,"),
            sdpa_kernel(SDPBackend.MATH),
        ):
            return vmap(one)(dict(weights), self._rest)

    def losses(self, batch: Any, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The loss of each network on a batch, without derivatives, in micro-batches where asked for."""
        weights = self.weights if weights is None else weights
        with torch.no_grad():
            parts = [self.values(weights, part).double() * share for part, share in self.problem.parts(batch)]
        return torch.stack(parts).sum(0)

    def check(self) -> None:
        """Pass over the data twice and refuse what is not finite or not the same, as `Problem.check` does."""
        if self._checked:
            return
        first, second = ([self.losses(b) for b in self.batches()] for _ in range(2))
        eps = torch.finfo(natural_dtype(self.weights.values())).eps
        for a in first:
            bad = (~torch.isfinite(a)).nonzero().view(-1).tolist()
            if bad:
                raise LossError(
                    f"expected a finite loss at every network's own weights, got {float(a[bad[0]])} for number "
                    f"{bad[0]}: check data and weights, or leave it out"
                )
        apart = [float(((a - b).abs() / a.abs().clamp_min(1.0)).max()) for a, b in zip(first, second, strict=True)]
        if max(apart) > _AGREEMENT * eps:
            raise NondeterminismError(
                f"expected the same losses on each pass, but they differ by {max(apart):.2g}: turn off shuffling, "
                "augmentation and randomness in the models' evaluation mode, or pass fixed batches"
            )
        self._checked = True


def _check_alike(models: Sequence[nn.Module]) -> None:
    """Refuse what cannot be stacked, or what differs in more than its tensors."""
    if not models:
        raise ModelError("expected at least one network, got none")
    first = _shape_of(models[0])
    for i, model in enumerate(models[1:], 1):
        if not isinstance(model, nn.Module) or type(model) is not type(models[0]):
            raise ModelError(
                f"expected networks of one class, got {type(models[0]).__name__} and, as number {i}, "
                f"{type(model).__name__}: measure them one by one"
            )
        if _shape_of(model) != first:
            raise ModelError(
                f"expected networks of one architecture, but number {i} has other parameters or modules than the "
                "first: measure them one by one"
            )


def _shape_of(model: nn.Module) -> Any:
    """Names, shapes and kinds of all tensors, and the modules with their settings, printed or not.

    Numbers that a module keeps beside its tensors (the scaling of an adapter, say) are those of the first network when
    all run as one, so they must be the same.
    """
    tensors = [
        (n, tuple(t.shape), t.dtype, t.device, t.requires_grad)
        for n, t in (*model.named_parameters(), *model.named_buffers())
    ]
    kept = [{k: v for k, v in vars(m).items() if k != "training" and _numbers(v)} for m in model.modules()]
    return tensors, str(model), str(kept)


def _numbers(value: Any) -> bool:
    """Whether it is plain numbers all through."""
    if isinstance(value, Mapping):
        return all(_numbers(v) for v in value.values())
    return all(map(_numbers, value)) if isinstance(value, tuple | list) else isinstance(value, bool | int | float)
