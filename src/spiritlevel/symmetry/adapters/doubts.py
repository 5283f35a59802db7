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
from spiritlevel.symmetry.adapters.code import calls, names_in, nodes
from spiritlevel.symmetry.adapters.names import setting
from spiritlevel.symmetry.adapters.outside import is_outside

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
    r"pos|bias|mask|ind(ex|ices)|grid|table|scal|factor|coord|dist|bucket|rel|len|size|span|max|min|exact|dim|math|num|torch|nn|^F$"
)
_PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum", "mm", "dot", "inner", "tensordot", "outer", "mul"}
_QUERY, _KEY = re.compile(r"^q$|^q_|query|queries"), re.compile(r"^k$|^k_|key")
_VALUE = re.compile(r"^v$|^v_|value")
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
        if is_outside(module, child, known - {output}, output):
            continue
        return Refusal(f"attention with a further part {child!r} that may act on queries, keys or values")
    cosine = is_cosine(module)
    for own, _ in module.named_parameters(recurse=False):
        if own in known or _ADDS.search(own) or (cosine and own in _SCALE):
            continue
        return Refusal(f"attention with a further parameter {own!r}")
    product = next((c for c in _products(module) if bool(_sees(c, _QUERY)) != bool(_sees(c, _KEY))), None)
    if product is not None:
        return Refusal(f"attention that multiplies queries or keys with something else: {_short(product)}")
    mixed = next(_mixed(module), None)
    if mixed is not None:
        return Refusal(f"attention that adds or multiplies something to queries, keys or values: {_short(mixed)}")
    for call in _curved(module):
        if not (cosine and _name(call) == "normalize"):
            return Refusal(f"attention that calls {_name(call)!r} on what may be queries, keys or values")
    return None


def is_cosine(module: nn.Module) -> bool:
    """Whether scores are cosines: queries and keys, and nothing else, are normalised."""
    normal = [c for c in _curved(module) if _name(c) == "normalize"]
    of = {n[0] for c in normal for n in names_in(c) if n[0] in "qk"}
    return len(normal) == 2 and of == {"q", "k"}


def shifts_are_lost(module: nn.Module) -> bool:
    """Whether a shift of all scores of a query changes nothing, and a key bias is such a shift.

    It is not where scores are capped before their softmax, nor where keys meet positions too.
    """
    capped = setting(module, "attn_logit_softcapping", "logit_softcapping", "softcap", "attn_logit_cap") is not None
    placed = any(re.search(r"pos|rel", n) for c in _products(module) for n in names_in(c))
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
        if _name(call) in _CURVED and any(not _ASIDE.search(n) for n in names_in(call)):
            yield call


def _products(module: nn.Module) -> Iterator[ast.expr]:
    """Products of tensors in which queries or keys take part."""
    for call in calls(module):
        if _name(call) in _PRODUCTS and (_sees(call, _QUERY) or _sees(call, _KEY)):
            yield call


def _mixed(module: nn.Module) -> Iterator[ast.AST]:
    """Sums with queries, keys or values, and their products with anything but a scale."""
    for node in nodes(module):
        if isinstance(node, ast.BinOp):
            sides = [node.left, node.right]
        elif isinstance(node, ast.AugAssign):
            sides = [node.target, node.value]
        else:
            continue
        held = [_held(x) for x in sides]
        if isinstance(node.op, ast.Add | ast.Sub) and any(held):
            yield node
        elif isinstance(node.op, ast.Mult | ast.Div) and any(held):
            other = sides[1] if held[0] else sides[0]
            if all(held) or any(not _ASIDE.search(n) for n in names_in(other)):
                yield node


def _held(node: ast.AST) -> bool:
    """Whether an expression is made of queries alone, of keys alone or of values alone."""
    names = {n for n in names_in(node) if not _ASIDE.search(n)}
    if any(_VALUE.search(n) for n in names) and any(re.search(r"attn|weight|prob|score", n) for n in names):
        return False  # values weighted already
    return sum(any(what.search(n) for n in names) for what in (_QUERY, _KEY, _VALUE)) == 1


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _sees(call: ast.expr, what: re.Pattern[str]) -> bool:
    return any(what.search(n) for n in names_in(call))


def _name(call: ast.Call) -> str:
    """What is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
