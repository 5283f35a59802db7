"""What a reparametrisation is: a smooth bijection of named parameters, with the products that transport needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import jacfwd, jvp

from spiritlevel.errors import ArgumentError, ModelError, ReparametrisationError
from spiritlevel.reparam.flat import Layout, Weights
from spiritlevel.reparam.maps.check import MapCheck, checked

__all__ = ["Bijection", "Composition", "ParameterWise", "Reparametrisation", "refuse_where"]


def refuse_where(bad: Tensor, name: str, expected: str, shown: Tensor, advice: str) -> None:
    """Raise where any entry is bad, naming the parameter; values that nobody can look at (vmap) pass."""
    try:
        found = bool(bad.any())
    except RuntimeError:  # inside torch.func.vmap
        return
    if found:
        worst = shown.detach().reshape(-1)[:1] if bad.shape != shown.shape else shown.detach()[bad][:1]
        value = f", got {float(worst):.6g}" if worst.numel() else ""
        raise ReparametrisationError(f"expected {expected} in {name!r}{value}: {advice}")


class Reparametrisation(ABC):
    """A smooth bijection ``psi = phi(theta)`` of named parameters.

    Parameters it does not name stay as they are. No dense Jacobian is formed unless `jacobian` is asked for: `jvp` is
    ``J v``, `vjp` is ``J^T w``, and those of `inverted` are ``J^-1 v`` and ``J^-T w``.

    Some well-known maps have more new parameters than old (weight norm has a length and a direction for each unit).
    They are bijections onto a surface of their target and say so by `redundant`: vectors, covectors, metrics and
    operators move as ever, a volume does not exist.
    """

    redundant = False
    """Whether the new parameters have more entries than the old, so that only part of their values is reached."""

    @abstractmethod
    def forward(self, weights: Weights) -> dict[str, Tensor]:
        """``phi(theta)``, differentiable as often as wanted."""

    @abstractmethod
    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        """``phi^-1(psi)``."""

    @cached_property
    def inverted(self) -> Reparametrisation:
        """``phi^-1`` as a reparametrisation."""
        return _Inverse(self)

    def inverse(self, weights: Weights) -> dict[str, Tensor]:
        """``phi^-1(psi)``, differentiable as often as wanted."""
        return self.inverted.forward(weights)

    def jvp(self, weights: Weights, tangent: Weights) -> dict[str, Tensor]:
        """``J v``: a tangent vector at ``theta``, in the new parameters."""
        point = {n: w.detach() for n, w in weights.items()}
        direction = {n: tangent[n].to(w.dtype) for n, w in point.items()}
        pushed: dict[str, Tensor] = jvp(self.forward, (point,), (direction,))[1]
        return pushed

    def vjp(self, weights: Weights, covector: Weights) -> dict[str, Tensor]:
        """``J^T w``: a covector in the new parameters, at ``theta``."""
        with torch.enable_grad():
            point = {n: w.detach().requires_grad_() for n, w in weights.items()}
            image = self.forward(point)
        seeds = [covector[n].to(y.dtype) for n, y in image.items()]
        pulled = torch.autograd.grad(list(image.values()), list(point.values()), seeds, materialize_grads=True)
        return dict(zip(point, pulled, strict=True))

    def jacobian(self, weights: Weights) -> Tensor:
        """The dense ``J``, new parameters by old, in the order of the names: for small nets."""
        old = Layout(weights)
        new = Layout(self.forward(weights))
        matrix: Tensor = jacfwd(lambda x: new.flat(self.forward(old.named(x))))(old.flat(weights).detach())
        return matrix

    def log_abs_det(self, weights: Weights) -> Tensor:
        """``log |det J|`` at ``theta``, differentiable.

        Raises:
            ReparametrisationError: where the map is redundant or ``J`` singular.
        """
        if self.redundant:
            raise ReparametrisationError(
                f"expected as many new parameters as old for a volume, but {self} adds some: take a bijection onto all "
                "values, such as Polar instead of WeightNorm"
            )
        value = self._log_abs_det(weights)
        refuse_where(
            ~torch.isfinite(value), ", ".join(weights), "an invertible Jacobian", value, "see check() for the cause"
        )
        return value

    def _log_abs_det(self, weights: Weights) -> Tensor:
        logdet: Tensor = torch.linalg.slogdet(self.jacobian(weights))[1]
        return logdet

    def then(self, following: Reparametrisation) -> Composition:
        """This map, then another."""
        return Composition(self, following)

    def check(self, weights: Weights) -> MapCheck:
        """Is this a bijection at and around ``weights``? Round trips, conditioning of the Jacobian, violations.

        Costs some tens of products with the Jacobian; nothing is raised, `MapCheck.require` does that.
        """
        return checked(self, weights)


class _Inverse(Reparametrisation):
    """The way back of a map."""

    def __init__(self, of: Reparametrisation) -> None:
        self._of = of

    @property
    def inverted(self) -> Reparametrisation:
        return self._of

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        return self._of._inverse(weights)

    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        return self._of.forward(weights)

    @property
    def redundant(self) -> bool:  # type: ignore[override]  # as the map
        return self._of.redundant

    def _log_abs_det(self, weights: Weights) -> Tensor:
        return -self._of._log_abs_det(self._of._inverse(weights))

    def __str__(self) -> str:
        return f"inverse of {self._of}"


class Composition(Reparametrisation):
    """Maps one after the other, the first one first."""

    def __init__(self, *maps: Reparametrisation) -> None:
        if not maps:
            raise ArgumentError("expected at least one map to compose, got none")
        self.maps = tuple(maps)
        self.redundant = any(m.redundant for m in maps)

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        out = dict(weights)
        for each in self.maps:
            out = each.forward(out)
        return out

    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        out = dict(weights)
        for each in reversed(self.maps):
            out = each.inverse(out)
        return out

    def _log_abs_det(self, weights: Weights) -> Tensor:
        total, at = torch.zeros((), dtype=torch.float64), dict(weights)
        for each in self.maps:
            total = total.to(next(iter(at.values())).device) + each._log_abs_det(at)
            at = each.forward(at)
        return total

    def __str__(self) -> str:
        return ", then ".join(map(str, self.maps))


class ParameterWise(Reparametrisation):
    """A map that takes every parameter by itself, keeping its name and shape.

    Args:
        names: which parameters; None for all.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = None if names is None else tuple([names] if isinstance(names, str) else names)

    def _chosen(self, weights: Weights) -> tuple[str, ...]:
        return known(self.names, weights)

    @abstractmethod
    def _to(self, name: str, weight: Tensor) -> Tensor: ...

    @abstractmethod
    def _from(self, name: str, weight: Tensor) -> Tensor: ...

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        chosen = set(self._chosen(weights))
        return {n: self._to(n, w) if n in chosen else w for n, w in weights.items()}

    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        chosen = set(self._chosen(weights))
        return {n: self._from(n, w) if n in chosen else w for n, w in weights.items()}


def known(names: Sequence[str] | None, weights: Weights) -> tuple[str, ...]:
    """The names, all of which must be among the weights; all of them for None."""
    if names is None:
        return tuple(weights)
    missing = [n for n in names if n not in weights]
    if missing:
        raise ModelError(
            f"expected the reparametrised parameters among those given, but {missing[:3]} are not among "
            f"{', '.join(list(weights)[:5])}: measure them too, or leave them out of the map"
        )
    return tuple(names)


@dataclass(frozen=True)
class Bijection(Reparametrisation):
    """Any smooth bijection of all parameters together, from two functions of a dict of tensors.

    Args:
        to: ``theta -> psi``, written with torch operations.
        back: ``psi -> theta``.
        name: for tables and error messages.

    >>> twist = Bijection(lambda w: {"w": w["w"].flip(0)}, lambda w: {"w": w["w"].flip(0)}, "flip")
    >>> twist.forward({"w": torch.tensor([1.0, 2.0])})["w"]
    tensor([2., 1.])
    """

    to: Callable[[Weights], dict[str, Tensor]]
    back: Callable[[Weights], dict[str, Tensor]]
    name: str = "bijection"

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        return self.to(weights)

    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        return self.back(weights)

    def __str__(self) -> str:
        return self.name
