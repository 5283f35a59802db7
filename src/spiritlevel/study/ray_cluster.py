"""The Ray that a study runs on: joined, or started here; what a worker takes of it, and how many it has room for."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from spiritlevel.errors import ConfigError, EngineError, MissingDependencyError
from spiritlevel.study.config import StudyConfig
from spiritlevel.study.order import cores_here

__all__ = ["Share", "check_ray", "joined", "no_room", "room"]

_REACH = 5.0  # seconds until a host that does not answer is taken to be away; Ray itself tries for many minutes
_GIB = 2**30
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # reports to Ray's makers only where somebody switched them on
    # Ray prints to standard output, between our own lines or JSON, that a worker or node died. We go on, or say so.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"^(A worker died|The node with node id|\d+ Workers \(tasks / actors\))",
    # What Ray will do by default, as it says at each start: leave the devices of workers without GPUs alone.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Share:
    """What each worker takes of a node.

    Attributes:
        cpus: as many as torch has threads.
        gpus: or parts of one.
        memory: bytes; None for whatever there is.
        resources: what else.
    """

    cpus: int
    gpus: float
    memory: int | None
    resources: Mapping[str, float]

    @classmethod
    def of(cls, config: StudyConfig) -> Share:
        """As the configuration wants it."""
        ray = config.ray
        gpus = float(config.device.startswith("cuda")) if ray.gpus is None else ray.gpus
        memory = None if ray.memory is None else int(ray.memory * _GIB)
        return cls(config.threads or 1, gpus, memory, ray.resources)

    @property
    def options(self) -> dict[str, Any]:
        """In Ray's words."""
        memory = {} if self.memory is None else {"memory": self.memory}
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": dict(self.resources), **memory}

    def fit(self, node: Mapping[str, float]) -> int:
        """How many workers a node with these resources has room for.

        >>> Share(2, 0.5, None, {}).fit({"CPU": 8.0, "GPU": 1.0})
        2
        """
        wanted = {"CPU": float(self.cpus), "GPU": self.gpus, "memory": float(self.memory or 0), **self.resources}
        return int(min(node.get(name, 0.0) / each + 1e-9 for name, each in wanted.items() if each))

    def __str__(self) -> str:
        wanted = {"CPU": float(self.cpus), "GPU": self.gpus, **self.resources}
        memory = [] if self.memory is None else [f"{self.memory / _GIB:g} GiB"]
        return " and ".join([f"{each:g} {name}" for name, each in wanted.items() if each] + memory)


def check_ray(config: StudyConfig) -> None:
    """Refuse at once what would fail after the data are loaded: no Ray, nobody at the address, a device of one's own.

    Raises:
        MissingDependencyError: the package is not installed, or broken.
        ConfigError: a GPU is named by number.
        EngineError: there is nothing at the address.
    """
    _imported()
    if ":" in config.device:
        raise ConfigError(
            f"{config.at('device')}: expected 'cuda' for engine 'ray', got {config.device!r}: Ray gives each worker "
            "GPUs of its own, which are the only ones it sees"
        )
    address = _address(config)
    if address is not None:
        _reach(address, config)


def _imported() -> ModuleType:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return import_module("ray")  # by name: type checkers need not read all of it
    except Exception as error:  # a package that is broken raises whatever it likes
        raise MissingDependencyError(
            f"expected the package 'ray' for engine 'ray': pip install 'spiritlevel[ray]' ({error})"
        ) from error


def _address(config: StudyConfig) -> str | None:
    """Of the cluster to join; None where one is to be started."""
    address = config.ray.address or os.environ.get("RAY_ADDRESS") or "local"
    return None if address == "local" else address


def _reach(address: str, config: StudyConfig) -> None:
    """Whether anybody listens there."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():  # auto, or a kind of address that only Ray knows
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()
    except (OSError, OverflowError) as error:
        raise EngineError(_unreachable(config, address, str(error))) from error


def _unreachable(config: StudyConfig, address: str | None, why: str) -> str:
    if address is None:
        return (
            f"expected to start a Ray on this machine, but {why}: `ray stop` ends what is left of another; where other "
            "work keeps the machine busy, Ray may not be up within the 30 s it allows itself: try again, or take "
            "engine 'processes'"
        )
    source = config.at("ray", "address") if config.ray.address else "RAY_ADDRESS"
    return (
        f"{source}: expected a Ray cluster at {address}, but {why}: start one with `ray start --head`, run the study "
        "on one of its nodes, or take the address 'local' for a Ray on this machine alone"
    )


@contextmanager
def joined(config: StudyConfig, most: int) -> Iterator[ModuleType]:
    """Ray, connected: to the caller's cluster where there is one, to that at the address, or to one started here.

    Args:
        config: of the study.
        most: workers that have something to do.
    """
    ray = _imported()
    if ray.is_initialized():  # the caller's, who also ends it
        yield ray
        return
    address, share = _address(config), Share.of(config)
    own: dict[str, Any] = {"address": address}
    if address is None:
        workers = min(config.workers or max(1, cores_here() // share.cpus), most)
        own = {"address": "local", "num_cpus": max(workers, 1) * share.cpus, "include_dashboard": False}
    if config.ray.runtime_env:
        own["runtime_env"] = _rooted(config.ray.runtime_env, config.folder)
    try:
        ray.init(**own, namespace="spiritlevel", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's own kinds, ConnectionError, RuntimeError, ValueError: by what went wrong
        ray.shutdown()
        raise EngineError(_unreachable(config, address, str(error).strip().partition("\n")[0])) from error
    try:
        if address is None and not room(ray, share):
            raise no_room(ray, share, "")
        yield ray
    finally:
        ray.shutdown()


def room(ray: ModuleType, share: Share) -> int:
    """How many workers the nodes have room for, whoever else is there."""
    return sum(share.fit(node["Resources"]) for node in ray.nodes() if node["Alive"])


def no_room(ray: ModuleType, share: Share, when: str) -> EngineError:
    """No worker could begin."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    shown = [", ".join(f"{n.get(k, 0):g} {k}" for k in ("CPU", "GPU", *share.resources)) for n in nodes]
    return EngineError(
        f"expected room for a worker with {share}{when}, but none could begin on {len(nodes)} nodes "
        f"({'; '.join(shown)}): ask for less (threads, ray.gpus, ray.memory, ray.resources), join a larger cluster "
        "(ray.address), end what else runs there, or raise ray.wait"
    )


def _rooted(env: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Relative folders start at the configuration's, as everywhere."""
    out = dict(env)
    given = out.get("working_dir")
    if isinstance(given, str) and "://" not in given:
        out["working_dir"] = str((folder / given).absolute())
    return out
