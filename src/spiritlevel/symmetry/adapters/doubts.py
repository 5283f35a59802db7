"""Reasons to doubt that an attention module is what its projections make it look like.

Scores must be products of queries and keys, outputs sums of values: anything else that the module holds or calls takes
its group away. What is known to do no harm is listed here; all the rest is a reason to refuse.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torch import nn

from spiritlevel.symmetry.adapters.base import Refusal
from spiritlevel.symmetry.adapters.code import calls
from spiritlevel.symmetry.adapters.names import setting

__all__ = ["doubt", "is_cosine", "shifts_are_lost", "sums_to_one"]

_HARMLESS = (nn.Dropout, nn.Identity, nn.Softmax)
_TURNS = re.compile(r"rot|rope", re.IGNORECASE)  # left to the rotary adapter
_ADDS = re.compile(r"relative_attention_bias|position_bias|^sinks$")  # to the scores, or beside them
_CURVED = {
    *("normalize", "norm", "rms_norm", "layer_norm", "clamp", "clip", "hardtanh", "pow", "square", "exp", "exp2"),
    *("elu", "relu", "relu_", "selu", "gelu", "silu", "sigmoid", "tanh", "softplus", "log", "sqrt", "abs"),
    *("amax", "maximum", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "conv1d", "conv2d", "cdist"),
    *("cumsum", "cumprod", "fft", "rfft", "irfft", "topk", "sort", "multinomial", "cross", "einops"),
}
_ASIDE = re.compile(
    r"pos|bias|mask|ind(ex|ices)|table|scal|coord|dist|bucket|rel|len|size|span|max|min|exact|dim|math|num|torch|nn|^F$"
)
_PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum", "mm", "dot", "inner", "tensordot", "outer", "mul"}
_QUERY, _KEY = re.compile(r"^q$|^q_|query|queries"), re.compile(r"^k$|^k_|key")
_SOFTMAX = {"softmax", "scaled_dot_product_attention", "attention_interface", "get_interface", "attn_weights_fn"}
_SCALE = ("logit_scale",)


def doubt(module: nn.Module, known: set[str], output: str | None = None) -> Refusal | None:
    """A reason to refuse a module whose ``known`` children and parameters are accounted for, or None.

    What comes before all of those, or after the child ``output``, is outside (a norm of the inputs or of the result).
    """
    for child, sub in module.named_children():
        harmless = isinstance(sub, _HARMLESS) or "Dropout" in type(sub).__name__
        if child in known or _TURNS.search(child) or _ADDS.search(child) or harmless:
            continue
        if _outside(module, child, known - {output}, output):
            continue
        return Refusal(f"attention with a further part {child!r} that may act on queries, keys or values")
    cosine = is_cosine(module)
    for own, _ in module.named_parameters(recurse=False):
        if own in known or _ADDS.search(own) or (cosine and own in _SCALE):
            continue
        return Refusal(f"attention with a further parameter {own!r}")
    product = next((c for c in _products(module) if bool(_sees(c, _QUERY)) != bool(_sees(c, _KEY))), None)
    if product is not None:
        return Refusal(f"attention that multiplies queries or keys with something else: {ast.unparse(product)[:80]!r}")
    for call in _curved(module):
        if not (cosine and _name(call) == "normalize"):
            return Refusal(f"attention that calls {_name(call)!r} on what may be queries, keys or values")
    return None


def _outside(module: nn.Module, child: str, inner: set[str], output: str | None) -> bool:
    """Whether a child is called before the projections or after the output, by the lines of the forward pass."""
    lines: dict[str, list[tuple[int, int]]] = {}
    for call in calls(module, deep=False):
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            lines.setdefault(call.func.attr, []).append((call.lineno, call.end_lineno or call.lineno))
    mine, theirs = lines.get(child, []), [x for n in inner for x in lines.get(n, [])]
    if not mine or len({n for n in inner if n in lines}) < min(3, len(inner)):
        return False
    before = max(end for _, end in mine) < min(start for start, _ in theirs)
    after = bool(lines.get(output or "")) and min(s for s, _ in mine) > max(e for _, e in lines[output or ""])
    return before or after


def is_cosine(module: nn.Module) -> bool:
    """Whether scores are cosines: queries and keys, and nothing else, are normalised."""
    normal = [c for c in _curved(module) if _name(c) == "normalize"]
    of = {n[0] for c in normal for n in _names(c) if n[0] in "qk"}
    return len(normal) == 2 and of == {"q", "k"}


def shifts_are_lost(module: nn.Module) -> bool:
    """Whether a shift of all scores of a query changes nothing, and a key bias is such a shift.

    It is not where scores are capped before their softmax, nor where keys meet positions too.
    """
    capped = setting(module, "attn_logit_softcapping", "logit_softcapping", "softcap", "attn_logit_cap") is not None
    placed = any(re.search(r"pos|rel", n) for c in _products(module) for n in _names(c))
    return sums_to_one(module) and not capped and not placed


def sums_to_one(module: nn.Module) -> bool:
    """Whether the weights of every query are a plain softmax, so that they sum to 1."""
    if any(n == "sinks" for n, _ in module.named_parameters(recurse=False)):
        return False
    names = {_name(c) for c in calls(module)}
    return bool(names & _SOFTMAX)


def _curved(module: nn.Module) -> Iterator[ast.Call]:
    """Calls of functions that no invertible matrix passes through, on anything but positions, masks and scales."""
    for call in calls(module):
        if _name(call) in _CURVED and any(not _ASIDE.search(n) for n in _names(call)):
            yield call


def _products(module: nn.Module) -> Iterator[ast.expr]:
    """Products of tensors in which queries or keys take part."""
    for call in calls(module):
        if _name(call) in _PRODUCTS and (_sees(call, _QUERY) or _sees(call, _KEY)):
            yield call


def _sees(call: ast.expr, what: re.Pattern[str]) -> bool:
    return any(what.search(n) for n in _names(call))


def _name(call: ast.Call) -> str:
    """What is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _names(call: ast.expr) -> set[str]:
    """The variables a call sees; of ``self.x``, ``x``."""
    found = set()
    for node in ast.walk(call):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            found.add(node.attr)
        elif isinstance(node, ast.Name) and node.id != "self":
            found.add(node.id)
    return found
