"""The monitor in Lightning.

::

    trainer = lightning.Trainer(callbacks=[MonitorCallback(log="flatness.jsonl")])
    trainer.fit(module, loader)  # numbers also go to the trainer's loggers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from spiritlevel.errors import MissingDependencyError
from spiritlevel.monitor import DEFAULT, Monitor, Probe, Sink, from_loader, untouched

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:  # pragma: no cover  # the tests run it in another process
    raise MissingDependencyError(
        "expected the package 'lightning' for a callback of its Trainer: pip install 'spiritlevel[lightning]'"
    ) from error

__all__ = ["MonitorCallback"]


class MonitorCallback(Callback):
    """Flatness while Lightning trains; for the arguments see `Monitor`.

    Steps are the trainer's global steps, one for each update of the weights, so that training resumed from a checkpoint
    adds to the same log. The network is the module itself, whose ``forward`` should return scores for the inputs; name
    another one with ``network=``, as in ``network=lambda module: module.net``.

    Args:
        batches: the fixed batch; by default examples spread over the training set.
        log: the file to add to.
        every: steps between readings, if the budget allows.
        budget: share of training time readings may take.
        measures: names or probes.
        to: further sinks, besides the trainer's loggers.
        live: a live view in the terminal.
        loss: as in `Problem`.
        parameters: as in `Problem`.
        micro_batch: as in `Problem`.
        network: which part of the module is measured.

    Attributes:
        monitor: made when training begins.
    """

    def __init__(
        self,
        batches: Any = None,
        log: str | Path | None = None,
        *,
        every: int = 100,
        budget: float | None = 0.03,
        measures: Sequence[str | Probe] = DEFAULT,
        to: Sequence[Sink] = (),
        live: bool = False,
        loss: Any = None,
        parameters: Callable[[str], bool] | Sequence[str] | None = None,
        micro_batch: int | None = None,
        network: Callable[[Any], nn.Module] = lambda module: module,
    ) -> None:
        self.monitor: Monitor | None = None

        def make(trainer: Any, module: Any) -> Monitor:
            model = network(module)
            with untouched(module):
                return Monitor(
                    model, from_loader(trainer.train_dataloader) if batches is None else batches, log, every=every,
                    budget=budget, measures=measures, to=[*to, *map(_sink, trainer.loggers)], live=live, loss=loss,
                    parameters=parameters, micro_batch=micro_batch,
                )  # fmt: skip

        self._make = make

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the monitor; with wrong settings training does not begin."""
        self.monitor = self._make(trainer, pl_module)
        self.monitor.begin(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After each batch; those that only accumulate gradients are no steps."""
        del pl_module, outputs, batch, batch_idx
        if self.monitor is not None and trainer.global_step != self.monitor.steps:
            self.monitor.step({"epoch": float(trainer.current_epoch)}, at=trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the log."""
        del trainer, pl_module
        if self.monitor is not None:
            self.monitor.close()


def _sink(logger: Any) -> Sink:
    """Lightning's loggers take numbers and the step."""

    def to_logger(values: Mapping[str, float], step: int) -> None:
        logger.log_metrics(dict(values), step=step)

    return to_logger
