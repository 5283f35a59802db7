"""Where do the outputs of a fused projection go? Ask the module itself, by sending numbered outputs through it.

A fused projection computes queries, keys and values in one layer, and models order its outputs in many ways. The
module's forward pass is run once on two tokens with the projection answering ``1, 2, 3, ...`` for the first token and
``1, 1, 1, ...`` for the second; what arrives where scores are computed, divided token by token, is the number of the
output that each entry of each head came from. (The quotient takes out any scale. Rotary angles are 0.) No weight is
read, nothing is changed, and a module that cannot be run so is not understood.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spiritlevel.core.evaluation import evaluating
from spiritlevel.symmetry.adapters.layers import outputs_of, weight_of
from spiritlevel.symmetry.adapters.names import heads_of
from spiritlevel.symmetry.adapters.rotary import rotated_columns

__all__ = ["trace_heads"]

_PRODUCTS = {
    *(torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, torch.baddbmm, Tensor.baddbmm),
    torch.nn.functional.scaled_dot_product_attention,
}


class _Done(Exception):
    """Everything has been seen."""


class _Watch(TorchFunctionMode):
    """Notes the factors of the first two matrix products in which numbered outputs take part."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.dim() >= 3]
        if func in _PRODUCTS and len(tensors) >= 2:  # the product with a weight has one
            if func is torch.nn.functional.scaled_dot_product_attention:
                self.seen = tensors[:3]
                raise _Done
            tensors = tensors[-2:]
            if not self.seen:
                self.seen = [tensors[0], tensors[1].mT]
            else:
                self.seen.append(tensors[1])
                raise _Done
        return func(*args, **kwargs)


def trace_heads(
    module: nn.Module, fused: nn.Module, width: int, norms: Sequence[nn.Module] = ()
) -> tuple[Tensor, Tensor, Tensor] | None:
    """For queries, keys and values, the outputs of the fused layer they come from: (heads, width), counted from 0.

    None where the module could not be run so, or where what arrives is no plain selection of outputs. Norms of queries
    and keys are passed over.
    """
    outputs, inputs = outputs_of(fused)
    weight = weight_of(fused)
    exact = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    numbers = torch.stack([torch.arange(outputs) + 1.0, torch.ones(outputs)]).unsqueeze(0).to(weight.device, exact)
    x = weight.new_zeros(1, 2, inputs)
    for mask in (None, numbers.new_zeros(1, 1, 2, 2)):
        watch = _Watch()
        hooks = [fused.register_forward_hook(lambda *_: numbers.clone())]
        hooks += [n.register_forward_hook(lambda _module, inputs, _output: inputs[0]) for n in norms]
        try:
            with torch.no_grad(), evaluating(module), watch:
                module(**_arguments(module, x, numbers.dtype, width, mask))
        except _Done:
            break
        except Exception:  # the module wants to be called in another way
            continue
        finally:
            for hook in hooks:
                hook.remove()
    else:
        return None
    found = [_numbers(t, width) for t in watch.seen]
    if len(found) != 3 or any(t is None for t in found):
        return None
    q, k, v = (t for t in found if t is not None)
    return q, k, v


def _arguments(module: nn.Module, x: Tensor, dtype: torch.dtype, width: int, mask: Tensor | None) -> Mapping[str, Any]:
    """What to call the module with: two tokens, rotary angles 0, no bias by position."""
    signature = inspect.signature(module.forward)
    flat = torch.zeros(1, 2, rotated_columns(module, width), device=x.device, dtype=dtype)
    given: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name in ("hidden_states", "x", "residual", "hidden_state", "input"):
            given[name] = x
        elif name == "position_embeddings":
            given[name] = (torch.ones_like(flat), flat)
        elif name == "alibi":
            wanted = getattr(getattr(module, "config", None), "alibi", True)
            given[name] = flat.new_zeros(heads_of(module) or 1, 1, 2) if wanted else None
        elif name == "attention_mask":
            given[name] = mask
        elif name == "position_ids":
            given[name] = torch.arange(2, device=x.device).unsqueeze(0)
        elif parameter.default is inspect.Parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            given[name] = None
    return given


def _numbers(t: Tensor, width: int) -> Tensor | None:
    """Which output each entry of each head came from, of a tensor (..., 2 tokens, width)."""
    if t.shape[-2:] != (2, width):
        return None
    t = t.reshape(-1, 2, width)
    number = t[:, 0] / t[:, 1]
    whole = number.round()
    if not bool(((number - whole).abs() < 0.25).all()):  # exact but for the rounding of a quotient
        return None
    return whole.long() - 1
