"""Is a layer affine in its weight, and which way round does the weight lie?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["affine", "described", "is_transposed", "outputs_of", "weight_of"]


def is_transposed(layer: nn.Module) -> bool:
    """Whether the weight is (inputs, outputs), as in the Conv1D of GPT-2, which knows its outputs as ``nf``."""
    return not isinstance(layer, nn.Linear) and hasattr(layer, "nf")


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a layer."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def outputs_of(layer: nn.Module) -> tuple[int, int]:
    """Outputs and inputs of an affine layer."""
    rows, columns = weight_of(layer).shape
    return (columns, rows) if is_transposed(layer) else (rows, columns)


def described(layer: nn.Module) -> str:
    """What a layer is that is not affine in the plain sense; in full where its name alone would not say it."""
    kind = type(layer)
    if kind is nn.Linear:
        return "a Linear whose weight is not a plain parameter"
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__name__ in ("Linear", "Conv1D") else kind.__name__


def affine(layer: nn.Module | None) -> bool:
    """Whether a layer is ``x W^T + b`` (or ``x W + b``) of plain parameters, and nothing more.

    A Linear is; any other class is tried on one input. So adapters, quantised and sharded layers are not.
    """
    if layer is None:
        return False
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if type(weight) is not nn.Parameter or type(weight.data) is not Tensor or weight.dim() != 2:
        return False
    own = {n for n, _ in layer.named_parameters()}
    if type(layer) is nn.Linear:
        return own <= {"weight", "bias"}
    if not own <= {"weight", "bias"} or not weight.is_floating_point():
        return False
    outputs, inputs = outputs_of(layer)
    with torch.no_grad():
        x = torch.linspace(-1, 1, inputs, dtype=weight.dtype, device=weight.device).unsqueeze(0)
        expected = F.linear(x, weight.mT if is_transposed(layer) else weight, bias)
        try:
            found = layer(x)
        except Exception:  # whatever a foreign layer raises, it is not affine in the plain sense
            return False
    return isinstance(found, Tensor) and found.shape == (1, outputs) and bool(torch.allclose(found, expected, 1e-2))
