"""The logits of earlier epochs, by example: in memory, or in one file that all processes share."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from spiritlevel.errors import DataError

__all__ = ["LogitStore"]


class LogitStore:
    """A ring of epochs: what was written ``lag`` epochs ago can be read, and is known to be from then.

    Each row carries the epoch it was written in, so that a row that was left out (by ``drop_last``, by a sampler) is
    reported missing instead of being read as something else. Memory: ``(lag + 1) n (k + 2)`` numbers of ``dtype`` and
    int32.

    Args:
        rows: n, examples in the data set.
        columns: k, classes.
        lag: how many epochs back.
        dtype: of the stored logits.
        path: a file to map into memory; None for memory of this process. A new one takes no space until it is written.
        resume: go on with a file that exists.
    """

    def __init__(
        self, rows: int, columns: int, lag: int, dtype: torch.dtype, path: str | Path | None, resume: bool
    ) -> None:
        self.rows, self.lag = rows, lag
        count = (lag + 1) * rows
        if path is None:
            self._logits, self._epochs = torch.zeros(count, columns, dtype=dtype), torch.zeros(count, dtype=torch.int32)
        else:
            logits, epochs = Path(path), Path(f"{path}.epochs")
            size = count * columns * torch.empty(0, dtype=dtype).element_size()
            _create({logits: size, epochs: count * 4}, resume)
            self._logits = torch.from_file(str(logits), shared=True, size=count * columns, dtype=dtype)
            self._logits = self._logits.view(count, columns)
            self._epochs = torch.from_file(str(epochs), shared=True, size=count, dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        """Memory or file size."""
        return self._logits.nbytes + self._epochs.nbytes

    def _places(self, indices: Tensor, epoch: int) -> Tensor:
        return indices + (epoch % (self.lag + 1)) * self.rows

    def write(self, indices: Tensor, logits: Tensor, epoch: int) -> None:
        """Keep the logits of some examples."""
        places = self._places(indices, epoch)
        self._logits[places] = logits.to(self._logits.dtype)
        self._epochs[places] = epoch + 1  # 0 is never

    def read(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Logits of ``lag`` epochs before ``epoch``, and which of them there are."""
        places = self._places(indices, epoch - self.lag)
        return self._logits[places], self._epochs[places] == epoch - self.lag + 1

    def state(self) -> dict[str, Tensor]:
        """Copies of everything."""
        return {"logits": self._logits.clone(), "epochs": self._epochs.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Back to a `state`."""
        for mine, theirs in ((self._logits, state["logits"]), (self._epochs, state["epochs"])):
            if mine.shape != theirs.shape:
                raise DataError(f"expected stored logits of shape {tuple(mine.shape)}, got {tuple(theirs.shape)}")
            mine.copy_(theirs)


def _create(sizes: dict[Path, int], resume: bool) -> None:
    """Files of zeros, made by the first process; the others wait."""
    shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not shared or torch.distributed.get_rank() == 0:
        for path, size in sizes.items():
            if path.exists() and (not resume or path.stat().st_size != size):
                raise DataError(
                    f"expected no file at {path}, or resume=True and {size} bytes: its logits would be taken for those "
                    "of this run"
                )
            with path.open("ab") as file:
                file.truncate(size)
    if shared:
        torch.distributed.barrier()
