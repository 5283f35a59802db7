"""A model, a loss and data: the loss at any weights, without touching the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.bare import bare, is_sharded
from spiritlevel.core.batches import batch_size, cut, to_device
from spiritlevel.core.blocks import Block, Symmetries
from spiritlevel.core.evaluation import explained, forward, measurable, movable
from spiritlevel.core.losses import CrossEntropy, TorchLoss
from spiritlevel.core.recompute import checkpointed
from spiritlevel.core.tensors import all_finite, natural_dtype, same_device
from spiritlevel.errors import ArgumentError, DataError, LossError, ModelError, NondeterminismError
from spiritlevel.geometry import Chart, Geometry
from spiritlevel.symmetry import check_blocks, find_symmetries

__all__ = ["Problem"]

Loss = Callable[[Any, Any], Tensor]
Weights = Mapping[str, Tensor]

_AGREEMENT = 256.0  # ours: two passes may differ by this many roundings (threads change the order of sums)


class Problem:
    """The loss of a model on data, as a function of its weights.

    The model is never changed: not its weights, gradients, mode, buffers or hooks. It is evaluated in evaluation mode
    (no dropout, running batch statistics), half-precision weights in float32.

    Args:
        model: any module. Compiled ones too, as long as ``torch.func.functional_call`` takes them. What is measured of
            one inside DistributedDataParallel or loaded with a ``device_map`` is the model inside, without the
            wrapping; weights that lie on disk are read into memory.
        batches: a list or DataLoader of ``(inputs, targets)``, or of dicts with ``labels`` (transformers). It is read
            anew for each measure and must give the same batches each time (no shuffling, no augmentation).
        loss: ``(output, batch) -> scalar``, or a torch loss module. By default the loss the model returns for a dict
            batch, else cross-entropy on its output or its ``.logits``.
        parameters: names to measure, or a function of a name; by default all that require a gradient.
        normalize_logits: measure the cross-entropy of centred logits of norm one.
        micro_batch: at most so many examples in one pass; larger batches are cut and added up exactly.
        max_batches: stop after so many batches.
        checkpointing: compute each layer (a child of a ModuleList) anew on the way back instead of keeping its
            activations; for measures of first order.

    >>> problem = Problem(nn.Linear(2, 2), [(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))])
    >>> sorted(problem.weights)
    ['bias', 'weight']
    """

    _shares_weights = False
    sharded = False
    """Whether coordinates lie spread over processes (`DistributedProblem`)."""

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        loss: Loss | nn.Module | None = None,
        parameters: Iterable[str] | Callable[[str], bool] | None = None,
        *,
        normalize_logits: bool = False,
        micro_batch: int | None = None,
        max_batches: int | None = None,
        checkpointing: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
        for name, value in (("micro_batch", micro_batch), ("max_batches", max_batches)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ArgumentError(f"expected {name} to be a whole number from 1 on, got {value!r}")
        if loss is not None and normalize_logits:
            raise ArgumentError("expected either loss= or normalize_logits=True: normalise inside your own loss")
        self.model = bare(model)
        if is_sharded(self.model) and not self._shares_weights:
            raise ModelError(
                "expected weights that are whole in this process, got parameters sharded over ranks: make a "
                "spiritlevel.DistributedProblem on every rank"
            )
        self.micro_batch, self.max_batches = micro_batch, max_batches
        self.loss: Loss = _as_loss(loss, normalize_logits)
        self._batches = list(batches) if isinstance(batches, Iterator) else batches
        self._plain = self.model
        if checkpointing:
            self.model = checkpointed(self.model)
        self._names = _chosen(self.model, parameters)
        self._checked = False
        self._verified: Sequence[Block] | None = None
        self._of_kinds: dict[str | tuple[str, ...], Symmetries] = {}
        self.self_checked: float | None = None  # error of a Hessian product, see `check_second_derivatives`

    @property
    def weights(self) -> dict[str, Tensor]:
        """The measured parameters as they are now, in float32 or better."""
        named = measurable(self.model, set(self._names))
        return {n: named[n] for n in self._names}

    @cached_property
    def symmetries(self) -> Symmetries:
        """What the geometry quotients by when it is not told."""
        return find_symmetries(self._plain, parameters=self._names)

    def blocks_of(self, geometry: Geometry) -> Sequence[Block]:
        """What a geometry quotients by: its own blocks, or the kinds it asks for, or the model's default."""
        if geometry.blocks is not None:
            return geometry.blocks
        if geometry.kinds is None:
            return self.symmetries
        if geometry.kinds not in self._of_kinds:
            batch = next(self.batches())
            found = find_symmetries(self.model, parameters=self._names, kinds=geometry.kinds, batch=batch)
            self._of_kinds[geometry.kinds] = found
        return self._of_kinds[geometry.kinds]

    @property
    def settings(self) -> dict[str, Any]:
        """What fixes the function, as plain data."""
        loss = self.loss.module if isinstance(self.loss, TorchLoss) else self.loss
        name = (
            loss if isinstance(loss, CrossEntropy | nn.Module) else getattr(loss, "__qualname__", type(loss).__name__)
        )
        return {
            "model": type(self.model).__name__,
            "parameters": self.size,
            "loss": str(name),
            "precision": str(self.dtype).removeprefix("torch."),
        }

    @property
    def size(self) -> int:
        """How many weights are measured."""
        return sum(w.numel() for w in self._stored.values())

    @property
    def dtype(self) -> torch.dtype:
        """The precision they are measured in."""
        return natural_dtype(self._stored.values())

    @property
    def _stored(self) -> dict[str, Tensor]:
        """The measured parameters as they are stored."""
        named = movable(self.model)
        return {n: named[n] for n in self._names}

    def batches(self) -> Iterator[Any]:
        """The data, on the model's device."""
        device, count = same_device(dict(self.model.named_parameters())), 0
        for batch in self._batches:
            if self.max_batches is not None and count >= self.max_batches:
                break
            count += 1
            yield to_device(batch, device)
        if count == 0:
            raise DataError("expected at least one batch, got an empty loader: does drop_last drop all?")

    def count(self) -> int | None:
        """How many batches there are, where the loader knows."""
        try:
            count = len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            return self.max_batches
        return count if self.max_batches is None else min(count, self.max_batches)

    def check(self) -> list[float]:
        """Pass over the data twice at the user's weights and refuse what is not finite or not the same.

        Done once, before the first measurement. Returns the loss of each batch. Costs two forward passes.
        """
        weights = self.weights
        bad = self.together("weights that are not finite", [n for n, w in weights.items() if not all_finite([w])])
        if bad:
            raise ModelError(
                f"expected finite weights, got NaN or infinity in {', '.join(bad[:5])}: is this a diverged run?"
            )
        if self._checked:
            return []
        first, second = ([self.value(weights, b) for b in self.batches()] for _ in range(2))
        if len(first) != len(second):
            raise NondeterminismError(f"expected the same batches on each pass, got {len(first)}, then {len(second)}")
        eps = torch.finfo(self.dtype).eps
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            if abs(a - b) > _AGREEMENT * eps * max(abs(a), 1.0):
                raise NondeterminismError(
                    f"expected the same loss on each pass, but batch {i} gave {a:.9g}, then {b:.9g}: turn off "
                    "shuffling, augmentation and randomness in the model's evaluation mode, or pass fixed batches"
                )
        self._checked = True
        return first

    def chart(self, geometry: Geometry) -> Chart:
        """Coordinates at the model's weights, after the checks that a first measurement makes.

        Symmetries the model is asked for are verified on a few examples; one that does not hold is an error.
        """
        self.check()
        if not geometry.needs_blocks:
            return geometry.chart(self.weights)
        blocks = self.blocks_of(geometry)
        self.verify(blocks)
        return geometry.chart(self.weights, blocks)

    def verify(self, blocks: Sequence[Block]) -> None:
        """Refuse symmetries that do not hold on a few examples; once for the same blocks."""
        if self._verified is not blocks:
            check_blocks(self.model, self.sample(), blocks, loss=self.tensor)
            self._verified = blocks

    def need_whole(self, what: str) -> None:
        """Refuse what cannot be had from coordinates that lie spread over processes."""
        if self.sharded:
            raise ArgumentError(
                f"expected coordinates that are whole on every rank for {what}, got a sharded state: take "
                "Ranks(state='whole') where the model fits, or hutchinson, eigenvalues or a density"
            )

    def sample(self) -> Any:
        """A batch with examples to test something on."""
        return next(self.batches())

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        """Around one measurement: where processes share it, they agree on all decisions.

        Args:
            what: the measurement and its settings, in words.
        """
        del what
        yield

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        """Around a gradient whose graph is kept."""
        yield

    def joined(self, what: str, total: float, vector: Tensor | None = None) -> tuple[float, Any]:
        """A loss and a vector of coordinates as they come from `shares`: here they are whole already."""
        del what
        return total, vector

    def together(self, what: str, items: list[Any]) -> list[Any]:
        """What all processes found; there is one."""
        del what
        return items

    def output(self, weights: Weights, batch: Any) -> Any:
        """What the model returns for a batch at the given weights."""
        return forward(self.model, weights, batch)

    def tensor(self, weights: Weights, batch: Any) -> Tensor:
        """The loss of one batch as a scalar tensor, differentiable in the weights."""
        return self.judged(weights, batch)[1]

    def judged(self, weights: Weights, batch: Any) -> tuple[Any, Tensor]:
        """What the model returns for a batch, and the loss of it as a scalar tensor."""
        output = self.output(weights, batch)
        with explained("the loss"):
            value = self.loss(output, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise LossError(f"expected a scalar loss, got {what}: average over the batch")
        return output, value.reshape(())

    def value(self, weights: Weights, batch: Any) -> float:
        """The loss of one batch, without derivatives; always finite."""
        with torch.no_grad():
            total = sum(share * float(self.tensor(weights, part)) for part, share in self.shares(batch))
        return _finite(self.joined("a loss", total)[0])

    def parts(self, batch: Any) -> list[tuple[Any, float]]:
        """The micro-batches of a batch and the share each has in its mean, by number of loss terms."""
        size = batch_size(batch)
        if self.micro_batch is None or size <= self.micro_batch:
            return [(batch, 1.0)]
        parts = [cut(batch, i, i + self.micro_batch, size) for i in range(0, size, self.micro_batch)]
        terms = [self.terms(p) for p in parts]
        return [(p, t / sum(terms)) for p, t in zip(parts, terms, strict=True) if t]

    def shares(self, batch: Any = None) -> Iterator[tuple[Any, float]]:
        """Micro-batches of one batch, or of all (None), and the share each has in the mean over loss terms."""
        if batch is not None:
            yield from self.parts(batch)
            return
        total = self._all_terms
        for one in self.batches():
            weight = self.terms(one) / total
            yield from ((part, share * weight) for part, share in self.parts(one))

    @cached_property
    def _all_terms(self) -> float:
        return sum(self.terms(b) for b in self.batches())

    def terms(self, batch: Any) -> float:
        """How many terms the loss of a batch averages over (the loss's own ``terms(batch)``, else its examples)."""
        count = getattr(self.loss, "terms", None)
        if count is None:
            return batch_size(batch)
        if getattr(self.model, "loss_type", None) == "ForCausalLM" and isinstance(batch, Mapping):
            batch = {**batch, "labels": batch["labels"][..., 1:]}  # transformers shifts the labels by one
        return float(count(batch))


def _as_loss(loss: Loss | nn.Module | None, normalize_logits: bool) -> Loss:
    if loss is None:
        return CrossEntropy(normalize_logits)
    if isinstance(loss, nn.modules.loss._Loss):
        return TorchLoss(loss)
    if not callable(loss):
        raise ArgumentError(f"expected loss to be a function (output, batch) -> scalar, got {type(loss).__name__}")
    return loss


def _chosen(model: nn.Module, parameters: Iterable[str] | Callable[[str], bool] | None) -> tuple[str, ...]:
    """Names of the parameters to measure."""
    named = movable(model)
    if parameters is None:
        chosen = [n for n, p in model.named_parameters() if p.requires_grad and n in named]
    elif callable(parameters):
        chosen = [n for n in named if parameters(n)]
    else:
        wanted: Sequence[str] = [parameters] if isinstance(parameters, str) else list(parameters)
        unknown = [n for n in wanted if n not in named]
        if unknown:
            raise ArgumentError(
                f"expected names of the model's parameters, got {unknown[:3]}: see model.named_parameters()"
            )
        chosen = [n for n in named if n in set(wanted)]
    if not chosen:
        raise ModelError(
            "expected at least one parameter to measure, got none: unfreeze some, or name them in parameters="
        )
    return tuple(chosen)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise LossError(
            f"expected a finite loss at the model's own weights, got {value}: check the data and the weights"
        )
    return value
