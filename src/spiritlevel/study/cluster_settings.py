"""The settings of engine ``ray``: which cluster, and what each worker takes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from spiritlevel.study.measure_settings import Settings

__all__ = ["RaySettings"]


class RaySettings(Settings):
    """The cluster of a study, and a worker's share of it.

    Attributes:
        address: of the cluster, ``host:port``, or ``auto`` for one that runs on this machine; by default that in
            ``RAY_ADDRESS``. Where there is none, or with ``local``, the study starts a Ray of its own here.
        gpus: for each worker, also parts of one; by default 1 on device ``cuda`` and 0 elsewhere.
        memory: GiB that Ray sets aside for each worker.
        resources: what else each worker takes, as ``{a100: 1}``.
        retries: how often a unit is handed out again when the worker that had it is lost.
        wait: seconds to wait for a first worker, as long as an autoscaler may need.
        files: ``auto``: workers read the paths of the configuration where a file of the same size and time is there,
            and get its content sent where there is none. ``sent``: content is always sent.
        cache: the folder on each node that keeps what was sent; by default one in its temporary folder.
        runtime_env: handed to Ray as it is, as ``{working_dir: ., pip: [timm]}``.
    """

    address: str | None = None
    gpus: NonNegativeFloat | None = None
    memory: PositiveFloat | None = None
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    retries: NonNegativeInt = 3
    wait: PositiveFloat = 60.0
    files: Literal["auto", "sent"] = "auto"
    cache: Path | None = None
    runtime_env: dict[str, Any] = Field(default_factory=dict)
