"""The monitor in the Trainer of transformers.

::

    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    watch(trainer, log="flatness.jsonl")  # numbers also go wherever the trainer logs
    trainer.train()

`MonitorCallback` may also stand in the trainer's ``callbacks=`` like any other; a callback is not told of its trainer,
so numbers then go to the file and to ``to=`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from spiritlevel.errors import MissingDependencyError
from spiritlevel.monitor import DEFAULT, Monitor, Probe, Sink, from_loader, untouched

try:
    from transformers import TrainerCallback
except ImportError as error:  # pragma: no cover  # the tests run it in another process
    raise MissingDependencyError(
        "expected the package 'transformers' for a callback of its Trainer: pip install 'spiritlevel[transformers]'"
    ) from error

__all__ = ["MonitorCallback", "watch"]


class MonitorCallback(TrainerCallback):
    """Flatness while the Trainer trains; for the arguments see `Monitor`.

    Steps are the Trainer's global steps, one for each update of the weights, so that training resumed from a checkpoint
    adds to the same log. Mixed precision is left out of the readings: they are taken in float32.

    Args:
        batches: the fixed batch, dicts as the data collator makes them; by default examples spread over the training
            set.
        log: the file to add to.
        every: steps between readings, if the budget allows.
        budget: share of training time readings may take.
        measures: names or probes.
        to: further sinks.
        live: a live view in the terminal (``disable_tqdm=True`` leaves it alone there).
        loss: as in `Problem`.
        parameters: as in `Problem`.
        micro_batch: as in `Problem`.

    Attributes:
        monitor: made when training begins.
        trainer: where numbers are logged too; set by `watch`.
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
    ) -> None:
        self.monitor: Monitor | None = None
        self.trainer: Any = None

        def make(model: nn.Module, loader: Any) -> Monitor:
            with untouched(model):
                return Monitor(
                    model, from_loader(loader) if batches is None else batches, log, every=every, budget=budget,
                    measures=measures, to=[*to, self._to_trainer], live=live, loss=loss, parameters=parameters,
                    micro_batch=micro_batch,
                )  # fmt: skip

        self._make = make

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # the Trainer's own form
        """Make the monitor; with wrong settings training does not begin."""
        del args, control
        self.monitor = self._make(more["model"], more.get("train_dataloader"))
        self.monitor.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """After each update of the weights."""
        del args, control
        if self.monitor is not None:
            facts = {} if state.epoch is None else {"epoch": float(state.epoch)}
            rate = _learning_rate(more.get("optimizer"))
            self.monitor.step(facts | ({} if rate is None else {"learning rate": rate}), at=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Close the log."""
        del args, state, control, more
        if self.monitor is not None:
            self.monitor.close()

    def _to_trainer(self, values: Mapping[str, float], step: int) -> None:
        del step  # the trainer knows
        if self.trainer is not None:
            due = self.trainer.control.should_log
            try:
                self.trainer.log(dict(values))
            finally:
                self.trainer.control.should_log = due  # to log is to have logged: the loss would be left out


def watch(
    trainer: Any,
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
) -> MonitorCallback:
    """Add a `MonitorCallback` to a Trainer and let its numbers go wherever the Trainer logs."""
    callback = MonitorCallback(
        batches, log, every=every, budget=budget, measures=measures, to=to, live=live, loss=loss,
        parameters=parameters, micro_batch=micro_batch,
    )  # fmt: skip
    callback.trainer = trainer
    trainer.add_callback(callback)
    return callback


def _learning_rate(optimizer: Any) -> float | None:
    groups = getattr(optimizer, "param_groups", None)
    return float(groups[0]["lr"]) if groups and "lr" in groups[0] else None
