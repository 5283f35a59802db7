"""Which symmetries does a model have?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from spiritlevel.core.blocks import Block, Leftover, Symmetries
from spiritlevel.core.evaluation import measurable
from spiritlevel.errors import ArgumentError, ModelError
from spiritlevel.symmetry.adapters import ADAPTERS, Refusal

__all__ = ["find_symmetries"]

_PLAIN = "no symmetry known to act on them"


def find_symmetries(model: nn.Module, parameters: Iterable[str] | None = None) -> Symmetries:
    """The blocks of a model and what stays elementwise, with the reason.

    Goes by structure alone and runs nothing; `verify_symmetries` tests the claim on data. A block is left out where one
    of its parameters is frozen, not measured, or also used elsewhere in the model: the group would change those too.

    Args:
        model: any module.
        parameters: names that are measured; by default all that require a gradient (all, if none does).

    Returns:
        A sequence of blocks that prints as a table.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    named = measurable(model)
    if parameters is None:
        trainable = [n for n, p in model.named_parameters() if p.requires_grad and n in named]
        measured = trainable or list(named)
    else:
        measured = list(parameters)
        unknown = [n for n in measured if n not in named]
        if unknown:
            raise ArgumentError(f"expected names of the model's parameters, got {unknown[:3]}")
    shared, reasons = _shared(model), dict.fromkeys(measured, _PLAIN)
    blocks: list[Block] = []
    for found in _proposals(model):
        if isinstance(found, Block):
            reason = _obstacle(found, set(measured), shared)
            if reason is None:
                blocks.append(found)
            names, reason = found.parameters, reason or ""
        else:
            names, reason = found.parameters, found.reason
        reasons.update({n: reason for n in names if n in reasons})
    inside = {n for b in blocks for n in b.parameters}
    groups: dict[str, list[str]] = {}
    for n, reason in reasons.items():
        if n not in inside:
            groups.setdefault(reason, []).append(n)
    sizes = {n: named[n].numel() for n in measured}
    leftovers = tuple(Leftover(tuple(names), reason) for reason, names in groups.items())
    return Symmetries(tuple(blocks), leftovers, sum(sizes.values()), sizes)


def _proposals(model: nn.Module) -> Iterator[Block | Leftover]:
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
