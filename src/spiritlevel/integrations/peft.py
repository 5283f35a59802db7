"""Adapters of peft: which parameters are an adapter's own, and a model from an adapter's folder."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from spiritlevel.errors import ArgumentError, CheckpointError, MissingDependencyError, ModelError
from spiritlevel.integrations.transformers import load_pretrained

__all__ = ["CONFIG", "adapter_parameters", "base_folder", "load_adapter"]

CONFIG = "adapter_config.json"
"""What makes a folder an adapter's."""

_WEIGHTS = "adapter_model.safetensors"


def adapter_parameters(
    model: nn.Module, adapters: str | Sequence[str] | None = None, *, base: bool = False
) -> list[str]:
    """Names for ``Problem(parameters=...)``: those of adapters, alone or with the weights they are added to.

    An adapter's own are its matrices (DoRA: and magnitudes), the biases it trains, and its copies of the modules in
    ``modules_to_save``. By themselves they have the symmetry GL(r) of each low-rank product; the geometry takes it from
    there. With the base, ``W + s B A`` has one more freedom, what of it is written in ``W``, which is no part of the
    quotient: to measure the function of both, merge them first (``merge_and_unload``) and measure a plain model.

    Args:
        model: of peft, or with adapters put in by ``inject_adapter_in_model``.
        adapters: names; by default those that are active.
        base: also everything else that takes part in the forward pass, quantised weights left out.

    Raises:
        ModelError: there are no adapters, or they take no part: merged into the weights, or switched off.
        ArgumentError: an adapter of that name is not there, or not active.
    """
    layers = {n: m for n, m in model.named_modules() if _holds_adapters(m)}
    if not layers:
        raise ModelError(
            f"expected a model with adapters of peft in its layers, got {type(model).__name__} without any: wrap it "
            "with peft.get_peft_model, or measure it as it is"
        )
    _refuse_idle(layers)
    there = dict.fromkeys(a for m in layers.values() for a, _ in _containers(m))
    active = dict.fromkeys(a for m in layers.values() for a in _active(m))
    chosen = [*active] if adapters is None else [adapters] if isinstance(adapters, str) else [*adapters]
    for name in chosen:
        if name not in there:
            raise ArgumentError(f"expected adapters out of {', '.join(there)}; got {name!r}")
        if name not in active:
            raise ArgumentError(
                f"expected an active adapter, got {name!r}, which takes no part: model.set_adapter({name!r}) first"
            )
    own = {
        n for layer, m in layers.items() for a, path in _containers(m) if a in chosen for n in _under(layer, m, path)
    }
    own |= _biases(model, layers, chosen)
    if base:
        others = {n for layer, m in layers.items() for _, path in _containers(m) for n in _under(layer, m, path)}
        idle = {f"{n}.original_module." for n, m in layers.items() if hasattr(m, "original_module")}
        own |= {n for n, _ in model.named_parameters() if n not in others and not n.startswith(tuple(idle))}
    return [n for n, p in model.named_parameters() if n in own and p.is_floating_point() and p.numel()]


def load_adapter(folder: str | Path, base: str | Path | Callable[[], nn.Module] | None = None) -> nn.Module:
    """The model of an adapter's folder, its adapter ready to be measured, in evaluation mode.

    The base is loaded from a local folder, as any checkpoint; code that comes with either is never run. Parameters of
    the adapter alone require a gradient, so that they are what a `Problem` measures.

    Args:
        folder: with ``adapter_config.json`` and ``adapter_model.safetensors``.
        base: the folder of the base model, or a function that returns it; by default the folder that the adapter's
            configuration names, as it stands there or beside the adapter.
    """
    peft, folder = _library(), Path(folder)
    config = _config(folder)
    if not (folder / _WEIGHTS).is_file():
        raise CheckpointError(
            f"expected {_WEIGHTS} in {folder}, got {sorted(p.name for p in folder.iterdir())[:8]}: save the adapter "
            "with save_pretrained(..., safe_serialization=True)"
        )
    if callable(base):
        model = base()
        if not isinstance(model, nn.Module):
            raise CheckpointError(f"expected a function that returns the base model, got {type(model).__name__}")
    else:
        model = load_pretrained(_base(folder, config, base))
    try:
        with _quiet() as said:
            adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True, local_files_only=True)
    except Exception as error:
        short = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"expected an adapter for {type(model).__name__} in {folder}, but loading failed: {short}"
        ) from error
    missing = [str(w.message) for w in said if "missing adapter keys" in str(w.message)]
    if missing:
        raise CheckpointError(f"expected all weights of the adapter in {folder / _WEIGHTS}: {missing[0][:200]}")
    result: nn.Module = adapted.eval()
    return result


def base_folder(folder: Path, base: str | Path | None = None) -> Path | None:
    """The local folder of an adapter's base, where there is one."""
    try:
        named = _config(folder).get("base_model_name_or_path") if base is None else base
    except CheckpointError:
        return None
    places = [Path(str(named)), folder / str(named)] if named else []
    return next((p for p in places if (p / "config.json").is_file()), None)


def _base(folder: Path, config: dict[str, Any], base: str | Path | None) -> Path:
    found = base_folder(folder, base)
    if found is None:
        named = config.get("base_model_name_or_path") if base is None else str(base)
        raise CheckpointError(
            f"expected the base model of the adapter {folder} in a local folder with config.json, got {named!r}, which "
            "is none (nothing is downloaded): name the folder with --base, or give a --builder that returns the model"
        )
    return found


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"expected a readable {CONFIG} in {folder}: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"expected an object in {path}, got {type(config).__name__}")
    return config


def _library() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'peft' for the folder of an adapter: pip install 'spiritlevel[transformers,peft]'"
        ) from error
    return peft


@contextlib.contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Peft's warnings, kept to be looked at."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said


def _holds_adapters(module: nn.Module) -> bool:
    return hasattr(type(module), "adapter_layer_names") and hasattr(module, "active_adapters")


def _active(module: Any) -> list[str]:
    active = module.active_adapters
    return [active] if isinstance(active, str) else [*active]


def _containers(layer: Any) -> Iterator[tuple[str, str]]:
    """Each adapter of a layer with the path, inside the layer, of one of its parts."""
    for kind in layer.adapter_layer_names:
        part = getattr(layer, kind, None)
        if isinstance(part, nn.ModuleDict | nn.ParameterDict):
            yield from ((name, f"{kind}.{name}") for name in part)


def _under(layer: str, module: nn.Module, path: str) -> Iterator[str]:
    """Full names of the parameters of one part."""
    for n, _ in module.named_parameters():
        if n == path or n.startswith(path + "."):
            yield f"{layer}.{n}".lstrip(".")


def _biases(model: nn.Module, layers: dict[str, nn.Module], chosen: Sequence[str]) -> set[str]:
    """Biases of the base that these adapters train with their own."""
    wanted = {str(getattr(getattr(model, "peft_config", {}).get(a), "bias", "none")) for a in chosen}
    found: set[str] = set()
    if wanted & {"all", "lora_only"}:
        near = {f"{n}.base_layer.bias" for n in layers}
        found = {n for n, p in model.named_parameters() if n.endswith("bias") and p.requires_grad}
        found = found if "all" in wanted else found & near
    return found


def _refuse_idle(layers: dict[str, nn.Module]) -> None:
    for name, layer in layers.items():
        if getattr(layer, "merged", False):
            raise ModelError(
                f"expected adapters beside the weights, but in {name} they are merged into them, where their own "
                "matrices change nothing: model.unmerge_adapter() first, or measure merge_and_unload() as a plain model"
            )
        if getattr(layer, "disable_adapters", False):
            raise ModelError(
                f"expected adapters that take part, but in {name} they are switched off: model.enable_adapters(), or "
                "leave the disable_adapter() context first"
            )
