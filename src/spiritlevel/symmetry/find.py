"""Which symmetries does a model have?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.bare import bare, is_sharded, outline
from spiritlevel.core.blocks import Block, Leftover, Pair, Symmetries
from spiritlevel.core.evaluation import movable
from spiritlevel.core.views import Piece
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.symmetry.adapters import ADAPTERS, Refusal
from spiritlevel.symmetry.certificate import Verdict
from spiritlevel.symmetry.flows import FLOWS
from spiritlevel.symmetry.trace import few_examples, trace
from spiritlevel.symmetry.verify import violations

__all__ = ["BY_STRUCTURE", "KINDS", "USUAL", "find_symmetries"]

BY_STRUCTURE = ("attention", "lora", "translation")
"""Kinds that adapters find in a model's structure alone."""
KINDS = (*BY_STRUCTURE, *FLOWS)
"""Every kind there is."""
USUAL = ("attention", "lora")
"""What is looked for where nobody asks for more."""
_PLAIN = "no symmetry known to act on them"


def find_symmetries(
    model: nn.Module,
    parameters: Iterable[str] | None = None,
    kinds: str | Iterable[str] = USUAL,
    batch: Any = None,
) -> Symmetries:
    """The blocks of a model and what stays elementwise, with the reason.

    The kinds that are on by default go by structure alone and run nothing; measuring tests them on data first. The
    others follow one forward pass of ``batch`` to see what reads what, and keep only what one backward pass confirms.
    A block is left out where one of its parameters is frozen, not measured, or also used elsewhere in the model: the
    group would change those too.

    Args:
        model: any module.
        parameters: names that are measured; by default all that require a gradient (all, if none does).
        kinds: ``"all"``, or some of

            - ``attention``: products of queries with keys and of values with outputs;
            - ``lora``: adapters of low rank;
            - ``translation``: key biases, and value biases with the output bias;
            - ``norm``: gains and shifts with what reads them; ``layer scale``; ``batch norm`` with the layer before it;
            - ``relu``, ``gated``, ``linear``: neurons, gated channels, two linear layers in a row;
            - ``softmax``: routers and tables of relative positions; ``classifier``: under cross-entropy only;
            - ``residual``: rotations of the residual stream.
        batch: ``(inputs, targets)`` or a dict; needed for kinds that follow the data. With it, every block is tested.

    Returns:
        A sequence of blocks that prints as a table.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    wanted = _wanted(kinds, batch)
    if is_sharded(model) and batch is not None:
        raise ModelError(
            "expected a whole model to follow a batch through, got one sharded over ranks: leave batch out"
        )
    model = outline(model) if is_sharded(model) else bare(model)
    named = movable(model)
    measured = _measured(model, parameters, named)
    proposals = [p for p in _by_structure(model) if isinstance(p, Leftover) or p.kind in wanted]
    if any(k in FLOWS for k in wanted):
        seen = trace(model, batch)
        proposals += [b for kind, propose in FLOWS.items() if kind in wanted for b in propose(seen)]
    notes = _Notes(measured)
    blocks = _kept(proposals, _shared(model), notes)
    if batch is not None:
        blocks = _confirmed(model, batch, blocks, notes)
    blocks = _disjoint(blocks, named, notes)
    inside = {n for b in blocks for n in b.parameters}
    groups: dict[str, list[str]] = {}
    for n, reason in notes.reasons.items():
        if n not in inside:
            groups.setdefault(reason, []).append(n)
    sizes = {n: named[n].numel() for n in measured}
    leftovers = tuple(Leftover(tuple(names), reason) for reason, names in groups.items())
    return Symmetries(tuple(blocks), leftovers, sum(sizes.values()), sizes, notes.refused)


def _wanted(kinds: str | Iterable[str], batch: Any) -> set[str]:
    chosen = set(KINDS) if kinds == "all" else {kinds} if isinstance(kinds, str) else set(kinds)
    unknown = sorted(chosen - set(KINDS))
    if unknown or not chosen:
        raise ArgumentError(f"expected kinds out of {', '.join(KINDS)}, or 'all'; got {unknown or 'none'}")
    following = sorted(chosen & set(FLOWS))
    if following and batch is None:
        raise ArgumentError(
            f"expected batch= for the kinds {', '.join(following)}: they follow what a forward pass does with data"
        )
    return chosen


def _measured(model: nn.Module, parameters: Iterable[str] | None, named: dict[str, Tensor]) -> list[str]:
    if parameters is None:
        trainable = [n for n, p in model.named_parameters() if p.requires_grad and n in named]
        return trainable or list(named)
    measured = list(parameters)
    unknown = [n for n in measured if n not in named]
    if unknown:
        raise ArgumentError(f"expected names of the model's parameters, got {unknown[:3]}")
    return measured


def _by_structure(model: nn.Module) -> Iterator[Block | Leftover]:
    """What the adapters say, in the order of the model's modules."""
    for name, module in model.named_modules():
        parent = model.get_submodule(name.rpartition(".")[0]) if name else None
        for adapter in ADAPTERS.values():
            answer = adapter(name, module, parent)
            if answer is None:
                continue
            if isinstance(answer, Refusal):
                inside = tuple(f"{name}.{n}".lstrip(".") for n, _ in module.named_parameters())
                yield Leftover(inside, f"{answer.reason} ({type(module).__name__})")
            else:
                yield from answer
            break


class _Notes:
    """Why parameters stay elementwise, and why proposed groups were left out."""

    def __init__(self, measured: Iterable[str]) -> None:
        self.reasons = dict.fromkeys(measured, _PLAIN)
        self.refused: dict[str, str] = {}

    def elementwise(self, names: Iterable[str], reason: str) -> None:
        """Say it of parameters; those that another block takes are not listed in the end."""
        self.reasons.update({n: reason for n in names if n in self.reasons})

    def refuse(self, block: Block, reason: str) -> None:
        """Say it of a block."""
        self.refused[block.name] = reason
        self.elementwise(block.parameters, f"{block.name}: {reason}")


def _kept(proposals: Iterable[Block | Leftover], shared: set[str], notes: _Notes) -> list[Block]:
    """Blocks whose group may act; what is said of the others is noted."""
    blocks, measured = [], set(notes.reasons)
    for found in proposals:
        if isinstance(found, Leftover):
            notes.elementwise(found.parameters, found.reason)
            continue
        reason = _obstacle(found, measured, shared)
        if reason is None:
            blocks.append(found)
        else:
            notes.refuse(found, reason)
    return blocks


def _confirmed(model: nn.Module, batch: Any, blocks: list[Block], notes: _Notes) -> list[Block]:
    """Blocks whose moment map vanishes on a few examples."""
    moments, verdicts = violations(model, few_examples(batch), blocks)
    kept = []
    for block, moment, verdict in zip(blocks, moments, verdicts, strict=True):
        if verdict is Verdict.EXACT:
            kept.append(block)
        else:
            why = "holds only up to eps" if verdict is Verdict.EPS else "does not hold: something else sees it"
            notes.refuse(block, f"{why} (moment map {moment:.1g} on data)")
    return kept


def _disjoint(blocks: Sequence[Block], named: dict[str, Tensor], notes: _Notes) -> list[Block]:
    """Every entry is claimed by one block at most: sections before pairs (but for frozen rows) before the rest."""
    taken = {n: torch.zeros(named[n].shape, dtype=torch.uint8) for b in blocks for n in b.parameters}
    kept: dict[int, Block] = {}
    frozen: tuple[Piece, ...] = ()
    for i in sorted(range(len(blocks)), key=lambda i: 0 if blocks[i].frozen else 1 if not blocks[i].free else 2):
        block = blocks[i]
        claims = [p for p in block.claims if not isinstance(block, Pair) or p not in frozen]
        trial = {n: taken[n].clone() for n in {p.parameter for p in claims}}
        for piece in claims:
            piece.mark(trial)
        if any(int(t.max()) > 1 for t in trial.values()):
            notes.refuse(block, "left out, for another block acts on the same entries")
            continue
        taken |= trial
        frozen += block.frozen
        kept[i] = block
    return [kept[i] for i in sorted(kept)]


def _shared(model: nn.Module) -> set[str]:
    """Names of parameters that more than one module holds (a module used several times counts once)."""
    owners: dict[int, set[tuple[int, str]]] = {}
    names: dict[int, list[str]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for n, p in module.named_parameters(recurse=False):
            owners.setdefault(id(p), set()).add((id(module), n))
            names.setdefault(id(p), []).append(f"{prefix}.{n}".lstrip("."))
    return {n for key, holders in owners.items() if len(holders) > 1 for n in names[key]}


def _obstacle(block: Block, measured: set[str], shared: set[str]) -> str | None:
    """Why the group of a block may not act, or None."""
    tied = [n for n in block.parameters if n in shared]
    if tied:
        return f"{tied[0]} is tied to another part of the model"
    outside = [n for n in block.parameters if n not in measured]
    if outside:
        return f"{outside[0]}, the other side of the pair, is frozen or not measured"
    return None
