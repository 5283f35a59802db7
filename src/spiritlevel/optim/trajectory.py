"""SAF: stay close to the outputs of some epochs ago, at no further pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.optim.logits_store import LogitStore
from spiritlevel.optim.rules.base import check_positive

__all__ = ["TrajectoryLoss", "softened_divergence"]


class TrajectoryLoss(nn.Module):
    """The trajectory loss of SAF, to be added to the cross-entropy: ``lam tau^2 KL(past / tau || now / tau)``.

    ``past`` are the logits of the same example ``lag`` epochs ago, cut off (Du et al. 2022, Eq. 8). The factor
    ``tau^2`` is in the authors' code and not in their equation. Their change over the epochs stands for the sharpness
    along the trajectory, so no second pass is needed: a step costs what it costs without. ::

        extra = TrajectoryLoss(len(data), classes)
        for epoch in range(epochs):
            extra.set_epoch(epoch)
            for x, y, indices in loader:  # the data set gives the index of every example
                logits = model(x)
                loss = F.cross_entropy(logits, y) + extra(logits, indices)

    Rows that were not written ``lag`` epochs ago are left out of the mean over the batch (the published code reads
    zeros there, which on several ranks is most of them). With several processes the logits are shared: through the
    file at ``path``, or, without one, by gathering every batch from all ranks, which then each hold all of them.
    Nothing is stored or added in evaluation mode. Past logits come from another augmentation; with mixed images
    (mixup) they are of another image, so do not. Not to be called in both passes of `SAM`.

    Memory: ``samples (lag + 1) (2 classes + 4)`` bytes in half precision.

    Args:
        samples: examples in the data set.
        classes: length of the logits.
        lag: how many epochs back (3 in the paper; 2 in the authors' scripts).
        tau: temperature.
        lam: weight.
        start: first epoch with the loss; logits are stored before.
        dtype: of the stored logits.
        path: a file for them, mapped into memory, on a disk all processes see.
        resume: go on with a file that exists.
    """

    def __init__(
        self,
        samples: int,
        classes: int,
        *,
        lag: int = 3,
        tau: float = 5.0,
        lam: float = 0.3,
        start: int = 5,
        dtype: torch.dtype = torch.float16,
        path: str | Path | None = None,
        resume: bool = False,
    ) -> None:
        super().__init__()
        check_positive(samples=samples, classes=classes, lag=lag, tau=tau, lam=lam)
        self.lag, self.tau, self.lam, self.start = lag, tau, lam, start
        self.store = LogitStore(samples, classes, lag, dtype, path, resume)
        self._samples, self._gathers = samples, path is None
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch it is, counted from 0."""
        if epoch < 0:
            raise ArgumentError(f"expected epochs from 0 on, got {epoch!r}")
        self._epoch = epoch

    def forward(self, logits: Tensor, indices: Tensor) -> Tensor:
        """The loss of a batch (0 where there is none yet); stores its logits.

        Args:
            logits: of the model, (batch, classes).
            indices: of the examples in the data set, (batch,).
        """
        if not self.training:
            return logits.new_zeros(())
        if self._epoch is None:
            raise ArgumentError("expected set_epoch(epoch) before the first batch of every epoch, got none")
        indices = indices.detach().cpu()
        if indices.shape != logits.shape[:1] or not bool(((indices >= 0) & (indices < self._samples)).all()):
            raise DataError(
                f"expected the index of each of {len(logits)} examples, from 0 to {self._samples - 1}; got shape "
                f"{tuple(indices.shape)}: let the data set return it with every example"
            )
        past, there = self.store.read(indices, self._epoch)
        self._keep(indices, logits.detach().cpu())
        if self._epoch < max(self.start, self.lag) or not bool(there.any()):
            return logits.new_zeros(())
        there = there.to(logits.device)
        past = past.to(logits.device, logits.dtype)[there]
        return self.lam * softened_divergence(past, logits[there], self.tau)

    def _keep(self, indices: Tensor, logits: Tensor) -> None:
        assert self._epoch is not None
        if self._gathers and torch.distributed.is_available() and torch.distributed.is_initialized():
            parts: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(parts, (indices, logits))
            indices, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        self.store.write(indices, logits, self._epoch)

    def get_extra_state(self) -> dict[str, Any]:
        """For ``state_dict``: the stored logits and the epoch."""
        return {**self.store.state(), "epoch": self._epoch}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """For ``load_state_dict``."""
        self.store.load(state)
        self._epoch = state["epoch"]


def softened_divergence(past: Tensor, now: Tensor, tau: float) -> Tensor:
    """``tau^2 KL(softmax(past / tau) || softmax(now / tau))``, mean over the batch; gradients in ``now`` alone.

    >>> softened_divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]]), 5.0)
    tensor(0.)
    """
    target, guess = F.log_softmax(past.detach() / tau, dim=-1), F.log_softmax(now / tau, dim=-1)
    return F.kl_div(guess, target, log_target=True, reduction="batchmean") * tau**2
