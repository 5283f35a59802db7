"""Which columns of queries and keys do positions turn, and in which pairs?

A rotation by the angle of a position commutes only with the complex numbers of each turned pair: of GL(h) there
remains GL(1, C) for each pair and GL for the columns that are not turned. Which columns make a pair is asked of the
model's own function: at two positions it gives ``q -> J_m q`` and ``k -> J_n k``; scores see ``J_m^T J_n``, whose
entries off the diagonal say which columns belong together, whatever order the function leaves its result in.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.symmetry.adapters.base import Refusal
from spiritlevel.symmetry.adapters.code import calls, globals_of, parameters_of
from spiritlevel.symmetry.adapters.names import setting
from spiritlevel.symmetry.adapters.slots import Pairing, Part

__all__ = ["parts_of", "rotated_columns", "rotations", "turned_pairs"]

_ROTATION = re.compile(r"rot|rope", re.IGNORECASE)
_TAKES = re.compile(r"^(position_embeddings|cos|sin|freqs?(_cis)?)$|rotary|rope", re.IGNORECASE)
_ANGLES = (0.3, 1.1)  # of two positions; any two that differ by no multiple of pi would do


def parts_of(module: nn.Module, width: int, rotated: int | None = None) -> list[Part] | Refusal:
    """How a head of queries and keys falls into turned and plain columns.

    Args:
        module: the attention module.
        width: columns of a head (or of the part of it that goes into the rotation).
        rotated: how many of them are turned, where the layout says so; else the module or its config is asked.
    """
    if setting(module, "alibi") is True:  # positions are in the scores, or nowhere
        return [Part(0, width)]
    turns = rotations(module)
    if any(_of_values(call) for call in _turning(module)):
        return Refusal("attention that turns its values by their positions")
    if not turns:
        taken = next((p for p in parameters_of(module) if _TAKES.search(p)), None)
        inner = next((n for n, _ in module.named_children() if _ROTATION.search(n)), None)
        if inner is not None:
            return Refusal(f"attention with a further part {inner!r} that may turn queries and keys")
        if taken is not None and _used(module, taken):
            return Refusal(f"attention that takes {taken!r}: positions act on queries and keys in a way not understood")
        return [Part(0, width)]
    rotated = rotated if rotated is not None else rotated_columns(module, width)
    if rotated % 2 or not 2 <= rotated <= width:
        return Refusal(f"attention that is said to turn {rotated} of {width} columns")
    found = {turned_pairs(turn, width, rotated) for turn in turns}
    if len(found) != 1 or (pairing := found.pop()) is None:
        return Refusal("attention with rotary positions whose pairs of columns could not be told")
    parts = [Part(0, rotated, pairing), Part(rotated, width)]
    return [p for p in parts if p.width]


def _used(module: nn.Module, argument: str) -> bool:
    """Whether any call of the forward pass is handed an argument (or what was unpacked from it is)."""
    names = {n.id for call in calls(module) for n in ast.walk(call) if isinstance(n, ast.Name)}
    return argument in names or bool({"cos", "sin"} & names)


def rotations(module: nn.Module) -> list[Callable[..., Any]]:
    """Functions of the model's file that the forward pass calls and that turn something."""
    names = globals_of(module)
    found = [names.get(call.func.id) for call in _turning(module) if isinstance(call.func, ast.Name)]
    return [f for f in dict.fromkeys(found) if inspect.isfunction(f)]


def _turning(module: nn.Module) -> list[ast.Call]:
    """Calls of functions that say they turn something."""
    return [c for c in calls(module) if isinstance(c.func, ast.Name) and _ROTATION.search(c.func.id)]


def _of_values(call: ast.Call) -> bool:
    """Whether a call is handed values."""
    return any(isinstance(n, ast.Name) and re.match(r"v$|v_|val", n.id) for n in ast.walk(call))


def rotated_columns(module: nn.Module, width: int) -> int:
    """How many columns of a head are turned, by the module or its config; by default all."""
    count = setting(module, "rotary_ndims", "rotary_dim", "rotary_emb_dim", "rotary_emb_base_dim")
    if isinstance(count, int):
        return count
    rope = setting(module, "rope_parameters")
    kind = getattr(module, "layer_type", None) or getattr(module, "attention_type", None)
    if isinstance(rope, dict) and isinstance(rope.get(kind), dict):
        rope = rope[kind]
    share = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    share = share or setting(module, "partial_rotary_factor", "rotary_pct") or 1.0
    return int(width * share)


@cache
def turned_pairs(turn: Callable[..., Any], width: int, rotated: int) -> Pairing | None:
    """Which pairs a model's function turns: the first way of calling it that gives a rotation decides."""
    for jacobians in _attempts(turn, width, rotated):
        size = jacobians[0].shape[0]
        eye = torch.eye(size, dtype=jacobians[0].dtype)
        if any(not torch.allclose(j.mT @ j, eye, atol=1e-5) for j in jacobians):
            continue
        scores = jacobians[0].mT @ jacobians[1]  # what a product of query and key sees of the two positions
        if not torch.allclose(scores[rotated:], eye[rotated:], atol=1e-5):
            continue  # more columns turn than are said to
        mates = (scores - torch.diag(scores.diagonal())).abs() > 1e-3
        for pairing in Pairing:
            if torch.equal(mates[:rotated, :rotated], _mates(pairing, rotated)):
                return pairing
        return None
    return None


def _mates(pairing: Pairing, count: int) -> Tensor:
    """Which columns belong together, as a matrix."""
    i = torch.arange(count)
    partner = (i + count // 2) % count if pairing is Pairing.HALVES else i ^ 1
    return partner.unsqueeze(1) == i


def _attempts(turn: Callable[..., Any], width: int, rotated: int) -> Iterator[list[Tensor]]:
    """Jacobians at two positions, for every way of calling the function that it accepts."""
    try:
        names = list(inspect.signature(turn).parameters)
    except ValueError:
        return
    sizes = dict.fromkeys((width, rotated))  # the function may be handed the whole head, or the turned part
    for size, angles, layout in product(sizes, (rotated, rotated // 2), ("bhtd", "thd", "bthd")):
        found = _attempt(turn, names, size, angles, layout)
        if found is not None:
            yield found


def _attempt(turn: Callable[..., Any], names: list[str], size: int, angles: int, layout: str) -> list[Tensor] | None:
    """Call with every basis vector at both positions; None where the function does not accept this."""
    shapes = {"bhtd": (size, 1, 2, size), "thd": (2, size, size), "bthd": (size, 2, 1, size)}
    basis = torch.eye(size, dtype=torch.float32)  # float32: some functions round to it anyway
    if layout == "thd":
        x = basis.expand(shapes[layout]).clone()  # basis vectors stand where heads do
    else:
        x = basis.reshape(size, 1, 1, size).expand(shapes[layout]).clone()
    phase = torch.tensor(_ANGLES).unsqueeze(-1).expand(2, angles)
    given: dict[str, Any] = {}
    for name in names:
        value = _argument(name, x, phase, layout)
        if value is not None:
            given[name] = value
    try:
        with torch.no_grad():
            answer = turn(**given)
    except Exception:  # not the way this function wants to be called
        return None
    results = [answer] if isinstance(answer, Tensor) else list(answer) if isinstance(answer, tuple | list) else []
    results = [r for r in results if isinstance(r, Tensor)]
    if not results or any(r.shape != x.shape or r.is_complex() for r in results):
        return None
    turned = [_split(r, layout) for r in results]
    if any(not torch.allclose(a, b) for t in turned[1:] for a, b in zip(turned[0], t, strict=True)):
        return None  # queries and keys turned differently
    return turned[0]


def _argument(name: str, x: Tensor, phase: Tensor, layout: str) -> Any:
    """What to hand to one parameter, by its name; None to leave it at its default."""
    lead = phase if layout == "thd" else phase.unsqueeze(0)
    if name.startswith("cos"):
        return lead.cos()
    if name.startswith("sin"):
        return lead.sin()
    if "freq" in name:
        return torch.polar(torch.ones_like(lead), lead)
    if name in ("unsqueeze_dim", "position_ids", "dim", "kwargs", "num_prefix_tokens") or name.startswith("rotary_"):
        return None
    return x


def _split(result: Tensor, layout: str) -> list[Tensor]:
    """The Jacobians (outputs x inputs) of the two positions."""
    if layout == "bhtd":
        return [result[:, 0, t].mT for t in range(2)]
    if layout == "thd":
        return [result[t].mT for t in range(2)]
    return [result[:, t, 0].mT for t in range(2)]
