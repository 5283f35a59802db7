"""Are these all the symmetries? The nullity of an attention layer's Jacobian, counted without knowing any of them.

The layer's output (that of its output projection) is a function of the layer's parameters; its inputs are replaced by
generic ones, so that the data limit nothing. Directions in which the output does not change to first order, for any of
the inputs, are the null space of the Jacobian; symmetries span a part of it, and all of it if none is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from architectures import exact
from spiritlevel.core.batches import map_tensors

ASIDE = re.compile(r"relative|position_bias|rel_embeddings")
"""Parameters of a layer that act on scores alone: their symmetries are not those of heads."""


@dataclass(frozen=True)
class Nullity:
    """How many directions change nothing, and how clear the gap is."""

    count: int
    largest_null: float
    """Relative to the largest singular value."""
    smallest_other: float


def nullity(model: nn.Module, batch: Any, layer: str, output: str, cut: float = 1e-11) -> Nullity:
    """Directions in the parameters of ``layer`` (and of its projection ``output``) that its output does not see.

    Args:
        model: in float64.
        batch: a dict of the model's arguments; repeated until there are more equations than parameters.
        layer: the attention module.
        output: its output projection, inside or beside it.
        cut: singular values below, relative to the largest, are null; exact ones are at 1e-15.
    """
    container = _ancestor(layer, output)
    module = model.get_submodule(container)
    names = [
        n for n, _ in module.named_parameters() if _inside(f"{container}.{n}", layer, output) and not ASIDE.search(n)
    ]
    weights = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters() if n in names}
    count = sum(p.numel() for p in weights.values())
    with exact():
        result = _output(model, module, weights, output, batch, 1)
        copies = int(1.3 * count / result.numel()) + 2
        result = _output(model, module, weights, output, batch, copies)
        rows = torch.autograd.grad(result, list(weights.values()), torch.eye(result.numel()), is_grads_batched=True)
    jacobian = torch.cat([r.reshape(result.numel(), -1) for r in rows], dim=1)
    assert jacobian.shape[0] > jacobian.shape[1], f"{jacobian.shape}: too few equations"
    s = torch.linalg.svdvals(jacobian / jacobian.norm(dim=0).clamp_min(1e-30).mean())
    s = s / s[0]
    null = s < cut
    return Nullity(int(null.sum()), float(s[null].max()) if null.any() else 0.0, float(s[~null].min()))


def _output(
    model: nn.Module, module: nn.Module, weights: dict[str, Tensor], output: str, batch: Any, copies: int
) -> Tensor:
    """Everything the output projection gives, in one vector."""
    args, kwargs = _arguments(model, module, map_tensors(batch, lambda t: t.repeat(copies, *[1] * (t.dim() - 1))))
    kept: list[Tensor] = []
    hook = model.get_submodule(output).register_forward_hook(lambda _m, _a, out: kept.append(out))
    try:
        functional_call(module, weights, args, kwargs)
    finally:
        hook.remove()
    return kept[0].reshape(-1)


def _ancestor(layer: str, output: str) -> str:
    """The innermost module that holds both."""
    shared = []
    for a, b in zip(layer.split("."), output.split("."), strict=False):
        if a != b:
            break
        shared.append(a)
    return ".".join(shared)


def _inside(name: str, *modules: str) -> bool:
    return any(name.startswith(f"{m}.") for m in modules)


def _arguments(model: nn.Module, module: nn.Module, batch: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """What the module is called with, its token states replaced by generic ones."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args, kwargs))

    hook = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            model(**batch)
    finally:
        hook.remove()
    args, kwargs = seen[0]
    g = torch.Generator().manual_seed(5)

    def generic(t: Any) -> Any:
        return torch.randn(t.shape, generator=g) if isinstance(t, Tensor) and t.dim() == 3 else t

    states = {"hidden_states", "key_value_states", "encoder_hidden_states", "query_states"}
    kwargs = {k: generic(v) if k in states else v for k, v in kwargs.items() if "past_key" not in k}
    kwargs = {k: v for k, v in kwargs.items() if k not in ("layer_past",)}
    return (generic(args[0]), *args[1:]) if args else args, kwargs
