"""Running a user's model at other weights, without leaving a trace in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from spiritlevel.core import fused
from spiritlevel.core.batches import model_inputs
from spiritlevel.core.recompute import recomputing
from spiritlevel.core.tensors import natural_dtype
from spiritlevel.errors import ModelError, SpiritlevelError

__all__ = ["evaluating", "explained", "forward", "measurable", "movable", "twice_differentiable", "widen"]

_log = logging.getLogger("spiritlevel")
_WEIGHT_NORM = torch._weight_norm
_ATTENTION = F.scaled_dot_product_attention
_GELU = F.gelu
_LAYER_NORM = F.layer_norm


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without a trace: every module's own flag is put back, whatever happens.

    torch's fused inference path of transformer layers is off, so that values are the same with and without gradients.
    """
    flags = [(m, m.training) for m in model.modules()]
    others = [(m, instead) for m, _ in flags if (instead := _instead(m))]
    before = [{k: m.__dict__[k] for k in instead if k in m.__dict__} for m, instead in others]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for m, _ in flags:
            m.training = False
        for m, instead in others:
            m.__dict__.update(instead)
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for (m, instead), own in zip(others, before, strict=True):
            for key in instead:
                del m.__dict__[key]
            m.__dict__.update(own)
        for m, flag in flags:
            m.training = flag


_PACKING = "support_avx512bf16_for_cpu"


def _instead(module: nn.Module) -> dict[str, Any]:
    """Attributes that a module has otherwise while it is evaluated."""
    if hasattr(module, "get_weight_norm") and hasattr(module, "get_lora_weight"):
        return _attached(module)
    if getattr(
        module, _PACKING, False
    ):  # bitsandbytes repacks 4-bit weights in evaluation, for passes without gradients
        return {_PACKING: False}
    return {}


class _Attached(TorchFunctionMode):
    """Nothing is cut off from the graph."""

    def __torch_function__(
        self, f: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return args[0] if f is Tensor.detach else f(*args, **(kwargs or {}))


def _attached(module: nn.Module) -> dict[str, Any]:
    """DoRA as a function of its weights: peft leaves the norm out of backward passes (a saving in training, DoRA Sec.
    4.3), so that its gradient is not that of its own loss; and it can keep the norm of other weights in a cache.
    """  # noqa: D205
    forward = module.forward

    def whole(*args: Any, **kwargs: Any) -> Any:
        with _Attached():
            return forward(*args, **kwargs)

    return {"forward": whole, "_cache_get": lambda key, default=None: default, "_cache_store": lambda key, value: None}


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Errors of the user's code come out as one of ours, with theirs as the cause."""
    try:
        yield
    except SpiritlevelError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError) as error:
        short = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"expected {where} to work on the data, but it raised {type(error).__name__}: {short}. Check that the "
            "batches are (inputs, targets) or dicts of the model's arguments, with labels in range"
        ) from error


class _Replacing(TorchFunctionMode):
    """Functions whose second derivative torch has not, or has wrong, give way to others with the same value."""

    told = False

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(
        self, f: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if f is _WEIGHT_NORM:  # its double backward is off by 31 to 57 % on the CPU (torch 2.13)
            return _weight_norm(*args, **(kwargs or {}))
        if f is _ATTENTION and not _Replacing.told:
            _Replacing.told = True
            _log.info("second derivatives: scaled_dot_product_attention runs on torch's math kernel")
        if self._kept and f is _LAYER_NORM:
            return fused.layer_norm(*args, **(kwargs or {}))
        if self._kept and f is _GELU and len(args) == 1 and (kwargs or {}).get("approximate", "none") == "none":
            return fused.gelu(args[0])
        return f(*args, **(kwargs or {}))


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """``g v / |v|``, the norm over all axes but one (or over all, for -1)."""
    axes = [i for i in range(v.dim()) if i != dim % v.dim()] if dim != -1 else list(range(v.dim()))
    length: Tensor = torch.linalg.vector_norm(v, dim=axes, keepdim=True)
    return v * (g / length)


@contextmanager
def twice_differentiable(kept: bool = False) -> Iterator[None]:
    """Forward passes inside have right second derivatives: fused attention and weight norm are written out.

    Entered for the user wherever curvature is measured; said once in the log ``spiritlevel``.

    Args:
        kept: the graph serves many products of reverse over reverse, which `spiritlevel.core.fused` makes cheaper.
    """
    with sdpa_kernel(SDPBackend.MATH), _Replacing(kept):
        yield


def widen(t: Tensor) -> Tensor:
    """Half precision to float32; everything else as it is."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def measurable(model: nn.Module, names: Container[str] | None = None) -> dict[str, Tensor]:
    """All parameters that can move, or those of some names, detached, in float32 or better; a tied one once."""
    return {n: widen(p) for n, p in movable(model).items() if names is None or n in names}


def movable(model: nn.Module) -> dict[str, Tensor]:
    """All parameters that can move, detached, as they are stored; a tied one once."""
    found = {n: p.detach() for n, p in model.named_parameters() if p.is_floating_point() and p.numel()}
    if any(w.is_meta for w in found.values()):
        raise ModelError("expected a model with weights, got parameters on the meta device: load the weights first")
    return found


def forward(model: nn.Module, weights: Mapping[str, Tensor], batch: Any) -> Any:
    """What the model returns for a batch at the given weights; the other parameters are as they are.

    Buffers go in as copies, so that a forward pass that changes them changes nothing of the user's. Half-precision
    parameters and buffers go in as float32. Parameters of a class of their own (quantised ones) stay where they are: a
    copy would lose what they carry beside their numbers.
    """
    given = {n: widen(b.detach().clone()) for n, b in model.named_buffers()}
    others = {n: p for n, p in model.named_parameters() if n not in weights}
    given |= {n: widen(p.detach()) for n, p in others.items() if type(p) is nn.Parameter}
    args, kwargs = model_inputs(batch, natural_dtype(weights.values()))
    everything = {**given, **weights}
    with (
        evaluating(model),
        recomputing(model, everything, lambda: evaluating(model)),
        explained("the model's forward pass"),
    ):
        return functional_call(model, everything, args, kwargs, tie_weights=True)
