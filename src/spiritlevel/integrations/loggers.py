"""Where a monitor's numbers go: TensorBoard, MLflow, Weights & Biases. Nothing of them is imported here.

A sink is any function of named numbers and a step, so much fits as it is::

    Monitor(model, batch, to=[mlflow.log_metrics])  # MLflow's own function has this form
    Monitor(model, batch, to=[tensorboard(SummaryWriter("runs/one"))])
    Monitor(model, batch, to=[wandb(wandb.init(mode="offline"))])

Names are ``flatness/geodesic_0.1`` and the like: characters that all three allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spiritlevel.errors import ArgumentError

__all__ = ["mlflow", "tensorboard", "wandb"]

Sink = Callable[[Mapping[str, float], int], None]

_STEP = "flatness/step"


def tensorboard(writer: Any) -> Sink:
    """A sink for a ``SummaryWriter`` of torch or tensorboardX; the writer stays the caller's to close."""
    _has(writer, "add_scalar", "a SummaryWriter")

    def tensorboard_writer(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, global_step=step)
        writer.flush()

    return tensorboard_writer


def mlflow(run: Any, client: Any) -> Sink:
    """A sink for one run of MLflow, whichever run is active by then.

    Args:
        run: from ``mlflow.start_run()``, or its id.
        client: an ``MlflowClient``.
    """
    _has(client, "log_metric", "an MlflowClient")
    name = run if isinstance(run, str) else run.info.run_id

    def mlflow_run(values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            client.log_metric(name, key, value, step=step)

    return mlflow_run


def wandb(run: Any) -> Sink:
    """A sink for a run of Weights & Biases, online or offline.

    The numbers have an axis of their own, ``flatness/step``, and join the row the run is at: its own counter is left
    to other calls of ``run.log``, and moved on only where none came since the last reading, which is in that row.
    """
    _has(run, "define_metric", "a run, as from wandb.init()")
    run.define_metric(_STEP, hidden=True)
    run.define_metric("flatness/*", step_metric=_STEP)

    row: int | None = None

    def wandb_run(values: Mapping[str, float], step: int) -> None:
        nonlocal row
        if run.step == row:
            run.log({}, commit=True)
        run.log({**values, _STEP: step}, commit=False)
        row = run.step

    return wandb_run


def _has(thing: Any, method: str, what: str) -> None:
    if not callable(getattr(thing, method, None)):
        raise ArgumentError(f"expected {what}, got {type(thing).__name__}")
