"""Is a part of an attention module outside what its heads do: before the projections, or after the output?"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torch import nn

from spiritlevel.symmetry.adapters.code import names_in, nodes, own_attribute

__all__ = ["is_outside"]

Lines = tuple[int, int]


def is_outside(module: nn.Module, child: str, inner: set[str], output: str | None) -> bool:
    """Whether a child is called before all projections, for them alone, or after the output, on it alone.

    Before: what it gives is read by the projections. After: what it is given was not made on the way from the
    projections to the output (values that are used again, past the attention).
    """
    reached = nodes(module, deep=False)
    called: dict[str, list[ast.Call]] = {}
    for node in reached:
        if isinstance(node, ast.Call) and (own := own_attribute(node.func)) is not None:
            called.setdefault(own, []).append(node)
    mine, projections = called.get(child, []), [c for n in inner for c in called.get(n, [])]
    if not mine or any(n not in called for n in inner):
        return False
    made = [(_targets(x), _lines(x)) for x in reached if isinstance(x, ast.Assign | ast.AugAssign | ast.AnnAssign)]
    start = min(_lines(c)[0] for c in projections)
    if max(_lines(c)[1] for c in mine) < start:
        given = {n for names, lines in made for c in mine if _within(c, lines) for n in names}
        read = {n for c in projections for a in (*c.args, *c.keywords) for n in names_in(a)}
        return bool(given) and given <= read
    ends = [_lines(c) for c in called.get(output or "", [])]
    if not ends or min(_lines(c)[0] for c in mine) < max(end for _, end in ends):
        return False
    return not any(_from_inside(c, made, start, min(begin for begin, _ in ends)) for c in mine)


def _from_inside(call: ast.Call, made: Sequence[tuple[set[str], Lines]], start: int, stop: int) -> bool:
    """Whether a call is given something that was last made from line ``start`` to before line ``stop``."""
    for name in {n for a in (*call.args, *call.keywords) for n in names_in(a)}:
        lines = [begin for names, (begin, _) in made if name in names and begin < call.lineno]
        if lines and start <= max(lines) < stop:
            return True
    return False


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {n for t in targets for n in names_in(t)}


def _lines(node: ast.stmt | ast.expr) -> Lines:
    return node.lineno, node.end_lineno or node.lineno


def _within(call: ast.Call, lines: Lines) -> bool:
    return lines[0] <= call.lineno <= lines[1]
