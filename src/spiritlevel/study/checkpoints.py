"""A model from a checkpoint on disk."""

from __future__ import annotations

import inspect
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from spiritlevel.errors import CheckpointError
from spiritlevel.integrations.peft import CONFIG, load_adapter
from spiritlevel.integrations.transformers import load_pretrained
from spiritlevel.study.references import load_function

__all__ = ["load_checkpoint"]


def load_checkpoint(
    path: str | Path, builder: str | Callable[..., nn.Module] | None = None, base: str | Path | None = None
) -> nn.Module:
    """The model of a checkpoint, in evaluation mode.

    Args:
        path: a local Hugging Face folder (``config.json`` and safetensors), the folder of an adapter of peft
            (``adapter_config.json`` and safetensors), or a file of weights: ``.safetensors``, or a pickle (``.pt``,
            ``.pth``, ``.bin``) that torch's restricted unpickler can read. Others are refused.
        builder: ``package.module:function``, or a function, that returns the model the weights of a file, or of an
            adapter, belong to. It is called without arguments; or, if it takes one, with the weights of a file by name,
            and then returns the model that holds them. It is your code that runs.
        base: the folder of an adapter's base model, where its configuration does not name a local one.
    """
    path = Path(path)
    if (path / CONFIG).is_file():
        return load_adapter(path, load_function(builder) if isinstance(builder, str) else builder or base)
    if base is not None:
        raise CheckpointError(f"expected an adapter's folder with {CONFIG} for --base, got {path}: leave --base out")
    if path.is_dir():
        if not (path / "config.json").exists():
            raise CheckpointError(
                f"expected a Hugging Face folder with config.json, got {path} with "
                f"{sorted(p.name for p in path.iterdir())[:8]}: name the file of weights and a --builder instead"
            )
        return load_pretrained(path)
    if not path.exists():
        raise CheckpointError(f"expected a checkpoint folder or file, got nothing at {path}")
    if builder is None:
        raise CheckpointError(
            f"expected a builder package.module:function for a file of weights such as {path.name}, got none"
        )
    weights = _read(path)
    function = load_function(builder) if isinstance(builder, str) else builder
    takes = _takes_weights(function)
    model = function(weights) if takes else function()
    if not isinstance(model, nn.Module):
        raise CheckpointError(f"expected {builder} to return a torch.nn.Module, got {type(model).__name__}")
    if takes:
        return model.eval()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"expected the weights of {type(model).__name__} in {path}: {error}") from error
    return model.eval()


def _takes_weights(function: Callable[..., nn.Module]) -> bool:
    """Whether a builder needs one argument."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False
    single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in single for p in found) == 1


def _read(path: Path) -> dict[str, Tensor]:
    """A state dict, without running anything the file holds."""
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"expected a safetensors file, but {path} cannot be read: {error}") from error
    try:
        with warnings.catch_warnings(action="ignore"):  # torch talks of pickle protocols where we say what to do
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"expected plain tensors in {path}, but the pickle holds other objects, which could run code: refused. "
            "Save the state dict with safetensors.torch.save_file"
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"expected a file of weights, but {path} cannot be read: {error}") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"expected a state dict (names to tensors) in {path}, got {type(content).__name__}")
    return content
