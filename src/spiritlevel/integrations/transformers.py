"""Models from a local Hugging Face folder: no hub, no code from the folder, safetensors first."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from spiritlevel.errors import CheckpointError, MissingDependencyError

__all__ = ["load_pretrained"]


def load_pretrained(folder: Path) -> nn.Module:
    """The model of a checkpoint folder, in evaluation mode, in the precision it is stored in.

    The class is the one named in ``config.json``; code that comes with the folder is never run. Weights are read from
    safetensors; a folder with pickled weights alone is read by torch's restricted unpickler, or refused. Weights that
    the class expects and the folder lacks are an error: they would be random numbers.
    """
    transformers = _library()
    config = _config(folder)
    names = config.get("architectures") or []
    if not names:
        raise CheckpointError(f"expected the model class under 'architectures' in {folder / 'config.json'}, got none")
    cls = getattr(transformers, names[0], None)
    if cls is None:
        raise CheckpointError(
            f"expected a model class of transformers {transformers.__version__}, got {names[0]!r}: install the version "
            "it was made with, or build the model yourself and use spiritlevel.Problem"
        )
    safe = any(folder.glob("*.safetensors"))
    if not safe and not any(folder.glob("*.bin")):
        raise CheckpointError(f"expected *.safetensors in {folder}, got {sorted(p.name for p in folder.iterdir())[:8]}")
    with _quiet(transformers):
        try:
            model, info = cls.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=safe,
                weights_only=True,
                output_loading_info=True,
                torch_dtype="auto",
            )
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"expected plain tensors in the pickle of {folder}, but it holds other objects, which could run code: "
                "refused. Save the weights with safetensors"
            ) from error
        except Exception as error:
            short = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(
                f"expected a checkpoint of {names[0]} in {folder}, but loading failed: {short}"
            ) from error
    missing = sorted(info.get("missing_keys", []))
    if missing:
        raise CheckpointError(
            f"expected weights for all of {names[0]}, missing {missing[:5]} ({len(missing)} in all) in {folder}: is "
            "this a checkpoint of the base model only?"
        )
    result: nn.Module = model.eval()
    return result


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'transformers' for a Hugging Face folder: pip install 'spiritlevel[transformers]'"
        ) from error
    return transformers


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"expected a readable config.json in {folder}: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"expected an object in {path}, got {type(config).__name__}")
    return config


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No loading bars and no reports, and the user's own logging setting back afterwards."""
    logging = transformers.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
