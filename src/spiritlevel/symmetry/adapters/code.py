"""Reading a module's own forward pass: what it calls, under the conditions that hold for this module."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn

__all__ = ["calls", "globals_of", "names_in", "nodes", "own_attribute", "parameters_of"]

_FORM = {"device", "dim", "dtype", "ndim", "numel", "shape", "size"}
"""What a tensor has apart from its values."""


@cache
def _tree(function: Any) -> ast.FunctionDef | None:
    """The syntax tree of a function; None where the source is not to be had."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None
    return tree.body[0] if tree.body and isinstance(tree.body[0], ast.FunctionDef) else None


def globals_of(module: nn.Module) -> dict[str, Any]:
    """The names that the forward pass sees in its file."""
    found: dict[str, Any] = getattr(inspect.unwrap(type(module).forward), "__globals__", {})
    return found


def parameters_of(module: nn.Module) -> tuple[str, ...]:
    """Names of the arguments of the forward pass."""
    return tuple(inspect.signature(type(module).forward).parameters)[1:]


def calls(module: nn.Module) -> list[ast.Call]:
    """Every call in the forward pass and in the module's own methods that it uses."""
    return [n for n in nodes(module) if isinstance(n, ast.Call)]


def nodes(module: nn.Module, deep: bool = True) -> list[ast.AST]:
    """Statements and expressions of the forward pass and (if deep) of the module's own methods that it uses.

    A branch is left out where its condition, read on this module alone (``self.use_rope``), says it is not taken.
    """
    found: list[ast.AST] = []
    seen: set[str] = set()
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        method = getattr(type(module), name, None)
        if name in seen or method is None or getattr(nn.Module, name, None) is method:
            continue
        seen.add(name)
        tree = _tree(method)
        for node in _reached(tree.body, module) if tree else ():
            found.append(node)
            if deep and isinstance(node, ast.Call) and (own := own_attribute(node.func)) is not None:
                waiting.append(own)
    return found


def own_attribute(node: ast.AST) -> str | None:
    """The ``x`` of ``self.x``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


def names_in(node: ast.AST) -> set[str]:
    """The variables whose values an expression sees; of ``self.x``, ``x``."""
    own = own_attribute(node)
    if own is not None:
        return {own}
    if isinstance(node, ast.Name):
        return set() if node.id == "self" else {node.id}
    if isinstance(node, ast.Attribute) and node.attr in _FORM:
        return set()
    return {n for part in ast.iter_child_nodes(node) for n in names_in(part)}


def _reached(body: Any, module: nn.Module) -> Iterator[ast.AST]:
    """Everything below some statements, without the branches that this module does not take."""
    for node in body if isinstance(body, list) else [body]:
        if isinstance(node, ast.If | ast.IfExp):
            taken = _holds(node.test, module)
            yield from _reached(node.test, module)
            if taken is not False:
                yield from _reached(node.body, module)
            if taken is not True:
                yield from _reached(node.orelse, module)
        else:
            yield node
            yield from _reached(list(ast.iter_child_nodes(node)), module)


def _holds(test: ast.expr, module: nn.Module) -> bool | None:
    """The value of a condition that looks at nothing but ``self``; None where it looks at more."""
    parts = list(ast.walk(test))
    names = {n.id for n in parts if isinstance(n, ast.Name)}
    unsure = any(isinstance(n, ast.Call) or (isinstance(n, ast.Attribute) and n.attr == "training") for n in parts)
    if names != {"self"} or unsure:  # models are measured in evaluation mode, whatever their flag says now
        return None
    try:  # the condition is the model's own code: an attribute, perhaps compared with a constant
        expression = compile(ast.Expression(body=test), "<condition>", "eval")
        return bool(eval(expression, {"__builtins__": {}}, {"self": module}))
    except Exception:  # a condition that cannot be read is not known
        return None
