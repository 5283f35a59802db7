"""The default loss: cross-entropy, or the loss the model itself returns; and how many terms a loss averages over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.errors import DataError, LossError

__all__ = ["CrossEntropy", "TorchLoss", "logits_of", "targets_of"]

IGNORED = -100  # the label that torch and transformers leave out


def logits_of(output: Any) -> Tensor:
    """The tensor of scores in a model's output: itself, its ``.logits``, or the first of several."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):  # transformers' outputs are mappings too
        if isinstance(output.get("logits"), Tensor):
            scores: Tensor = output["logits"]
            return scores
        output = list(output.values())
    if isinstance(getattr(output, "logits", None), Tensor):
        scores = output.logits
        return scores
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise LossError(
        f"expected a tensor, or an output with .logits, from the model; got {type(output).__name__}: pass loss=, a "
        "function (output, batch) -> scalar"
    )


def targets_of(batch: Any) -> Any:
    """The targets of a batch: its ``labels``, or the second of two."""
    if isinstance(batch, Mapping):
        if batch.get("labels") is None:
            raise DataError(f"expected 'labels' in a dict batch, got the keys {sorted(map(str, batch))}: pass loss=")
        return batch["labels"]
    return batch[1]


@dataclass(frozen=True)
class CrossEntropy:
    """Mean cross-entropy over all targets that are not ignored (-100).

    Per-sample terms are summed in float64, so that differences of nearly equal losses keep their digits.

    Args:
        normalize_logits: subtract the mean over classes and divide by the norm first (Andriushchenko et al. 2023,
            Sec. 3), so that the measure does not change when the last layer is scaled.
    """

    normalize_logits: bool = False

    def __call__(self, output: Any, batch: Any) -> Tensor:
        """The mean over the batch."""
        if isinstance(batch, Mapping) and not self.normalize_logits:
            own = getattr(output, "loss", None)
            if isinstance(own, Tensor):
                return own
        logits, targets = logits_of(output), targets_of(batch)
        if self.normalize_logits:
            logits = _normalised(logits)
        if not targets.is_floating_point():
            logits, targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
            _check_labels(logits, targets)
        terms = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
        return terms.double().sum() / max(_count(targets), 1)

    def terms(self, batch: Any) -> int:
        """How many targets the mean runs over."""
        return _count(targets_of(batch))

    def each(self, output: Any, batch: Any, shift: int = 0) -> Tensor:
        """The terms of the mean one by one, without those that are ignored.

        Args:
            output: of the model.
            batch: with the targets.
            shift: by how many positions the targets of a language model lie ahead of its outputs.
        """
        logits, targets = logits_of(output), targets_of(batch)
        if self.normalize_logits:
            logits = _normalised(logits)
        if targets.is_floating_point():
            return F.cross_entropy(logits, targets, reduction="none").double()
        if shift:
            logits, targets = logits[..., :-shift, :], targets[..., shift:]
        logits, targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        _check_labels(logits, targets)
        return F.cross_entropy(logits, targets, reduction="none")[targets != IGNORED].double()


@dataclass(frozen=True)
class TorchLoss:
    """One of torch's loss modules, called with the model's scores and the targets."""

    module: torch.nn.Module

    def __post_init__(self) -> None:
        """Check that it gives a scalar."""
        if getattr(self.module, "reduction", "mean") != "mean":
            raise LossError(f"expected a loss with reduction='mean', got {self.module}: batches are weighted by size")

    def __call__(self, output: Any, batch: Any) -> Tensor:
        """The mean over the batch."""
        value: Tensor = self.module(logits_of(output), targets_of(batch))
        return value

    def terms(self, batch: Any) -> float:
        """What the module's mean divides by: targets that are not ignored, with the weights of their classes."""
        targets, weight = targets_of(batch), getattr(self.module, "weight", None)
        if weight is None or not self._classes(targets):
            return float(self.count(batch))
        return float(weight[targets[targets != self.module.ignore_index]].double().sum())

    def count(self, batch: Any) -> int:
        """How many targets there are, without those that are ignored."""
        targets = targets_of(batch)
        return int((targets != self.module.ignore_index).sum()) if self._classes(targets) else int(targets.shape[0])

    def _classes(self, targets: Tensor) -> bool:
        known = isinstance(self.module, torch.nn.CrossEntropyLoss | torch.nn.NLLLoss)
        return known and not targets.is_floating_point()


def _normalised(logits: Tensor) -> Tensor:
    """Centred, of norm one."""
    logits = logits - logits.mean(-1, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
    return logits / length.clamp_min(1e-10)  # floor: the public baseline's


def _count(targets: Tensor) -> int:
    if targets.is_floating_point():
        return int(targets.shape[0])
    return int((targets != IGNORED).sum())


def _check_labels(logits: Tensor, targets: Tensor) -> None:
    if logits.shape[0] != targets.shape[0]:
        raise DataError(f"expected one label for each of {logits.shape[0]} outputs, got {targets.shape[0]}")
    kept = targets[targets != IGNORED]
    if kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= logits.shape[-1]):
        raise DataError(
            f"expected labels from 0 to {logits.shape[-1] - 1} (the model has {logits.shape[-1]} classes), got "
            f"{int(kept.min())} to {int(kept.max())}: map the labels to classes first"
        )
