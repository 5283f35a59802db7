"""What a rule sees of the model: the weights that have a gradient, and what kind of parameter each belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.errors import ArgumentError

__all__ = ["Memory", "Point", "Role", "Slot", "dot", "norm", "roles_of", "slots_of"]

Memory = dict[str, Any]
"""What a rule keeps from step to step: tensors by index of the parameter, numbers; saved in the state dict."""

_NORMS = (
    nn.modules.batchnorm._NormBase,  # batch and instance norm of every dimension, synchronised or not
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Role:
    """What a parameter is for.

    Attributes:
        name: in the model.
        norm: whether it is the gain or shift of a normalisation layer.
        bias: whether it is a bias.
    """

    name: str
    norm: bool
    bias: bool


def roles_of(model: nn.Module, more_norms: Sequence[type[nn.Module]] = ()) -> dict[int, Role]:
    """The role of every parameter, by its id; told by the type of the module it is in, never by its name.

    Args:
        model: any module.
        more_norms: types of normalisation layers beside torch's own. A type of another library counts by itself where
            its class is called ``...Norm`` and all it has are vectors (transformers' ``LlamaRMSNorm``).
    """
    roles: dict[int, Role] = {}
    known = (*_NORMS, *more_norms)
    for prefix, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        like = type(module).__name__.endswith("Norm") and all(p.dim() == 1 for p in own.values())
        is_norm = isinstance(module, known) or like
        for name, p in own.items():
            role = Role(f"{prefix}.{name}" if prefix else name, is_norm, name == "bias" or name.endswith("_bias"))
            roles.setdefault(id(p), role)
    return roles


@dataclass(frozen=True)
class Slot:
    """A parameter with a gradient, or the rows of one that a sparse gradient names.

    Attributes:
        index: of the parameter among all of the optimizer.
        parameter: the whole parameter.
        weight: the part of it that has a gradient, as it is now.
        gradient: of the same shape.
        rows: which rows; None for all.
    """

    index: int
    parameter: Tensor
    weight: Tensor
    gradient: Tensor
    rows: Tensor | None = None

    def part(self, whole: Tensor) -> Tensor:
        """The entries of a tensor shaped like the parameter that belong to this slot."""
        return whole if self.rows is None else whole.index_select(0, self.rows)

    def released(self) -> Slot:
        """The slot without its gradient, whose memory the next pass needs."""
        return Slot(self.index, self.parameter, self.weight, self.weight, self.rows)

    def write(self, value: Tensor) -> None:
        """Set the weights of the slot."""
        if self.rows is None:
            self.parameter.copy_(value)
        else:
            self.parameter.index_copy_(0, self.rows, value.to(self.parameter.dtype))


@dataclass
class Point:
    """Where a rule is asked: the slots, the step, and what the rule remembers.

    Attributes:
        slots: in the order of the parameters.
        roles: by id of the parameter; empty where no model was given.
        parameters: all of the optimizer.
        memory: of the rule.
        step: base steps made so far.
        lr: learning rate of the first group.
        seed: of everything random.
        fixed: what the rule's `prepare` found out when the optimizer was built.
        first: the gradients of the first pass by index, for rules that want them after the second.
        way: what a rule hands from the first pass of a step to the second.
        radius: how far the weights move, where that is not the Euclidean length.
    """

    slots: Sequence[Slot]
    roles: Mapping[int, Role]
    parameters: Sequence[Tensor]
    memory: Memory
    step: int
    lr: float
    seed: int
    fixed: Any = None
    first: dict[int, Tensor] = field(default_factory=dict)
    way: Any = None
    radius: Tensor | None = None

    @property
    def weights(self) -> list[Tensor]:
        """Of every slot."""
        return [s.weight for s in self.slots]

    @property
    def gradients(self) -> list[Tensor]:
        """Of every slot."""
        return [s.gradient for s in self.slots]

    def role(self, slot: Slot) -> Role:
        """The role of a slot's parameter."""
        parameter = self.parameters[slot.index]
        if id(parameter) not in self.roles:
            raise ArgumentError(
                "expected the model that the parameters belong to, because this rule treats layers by their type: "
                "pass model= to SAM"
            )
        return self.roles[id(parameter)]

    def draw(self, like: Tensor, index: int) -> Tensor:
        """Uniform numbers in [0, 1) for one parameter at this step; the same on every device and after a resume."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step * 8_191 + index)
        return torch.rand(like.shape, generator=generator, dtype=torch.float32).to(like.device)


def slots_of(parameters: Iterable[Tensor]) -> list[Slot]:
    """The slots of all parameters that have a gradient."""
    found = []
    for index, p in enumerate(parameters):
        gradient = p.grad
        if gradient is None:
            continue
        whole = p.detach()
        if gradient.is_sparse and gradient.sparse_dim() == 1:
            gradient = gradient.coalesce()
            rows = gradient.indices()[0]
            found.append(Slot(index, whole, whole.index_select(0, rows), gradient.values().detach(), rows))
        else:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            found.append(Slot(index, whole, whole, dense.detach()))
    return found


def dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors, as a tensor, so that no device has to wait.

    >>> float(dot([torch.ones(2)], [torch.tensor([1.0, 2.0])]))
    3.0
    """
    parts = [(_wide(a) * _wide(b)).sum() for a, b in zip(left, right, strict=True)]
    return torch.stack([p.to(parts[0].device) for p in parts]).sum()


def norm(tensors: Iterable[Tensor], order: float = 2) -> Tensor:
    """The norm of a list of tensors taken together, as a tensor.

    >>> float(norm([torch.tensor([3.0]), torch.tensor([4.0])]))
    5.0
    """
    parts = [torch.linalg.vector_norm(_wide(t), order) for t in tensors]
    together: Tensor = torch.linalg.vector_norm(torch.stack([p.to(parts[0].device) for p in parts]), order)
    return together


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
