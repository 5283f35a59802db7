"""The parametrisations a model already carries, read as a map from plain weights to the parameters it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from spiritlevel.core.evaluation import widen
from spiritlevel.errors import ModelError, ReparametrisationError
from spiritlevel.reparam.flat import Weights
from spiritlevel.reparam.maps.base import Composition, Reparametrisation, known
from spiritlevel.reparam.maps.weight_norm import Unit, WeightNorm, held_at

__all__ = ["carried"]

_WEIGHT_NORM: Any = parametrizations._WeightNorm
_REASONS: dict[type[nn.Module], str] = {
    parametrizations._SpectralNorm: "it divides by the largest singular value, so that all multiples of a weight "
    "become one and the same: not bijective",
    parametrizations._Orthogonal: "its weights are orthogonal matrices, a surface of smaller dimension, and many of "
    "its parameters give the same one: not bijective",
}


def carried(model: nn.Module) -> Reparametrisation:
    """``theta -> psi`` for a model with parametrisations of torch's: ``theta`` are its weights, ``psi`` its parameters.

    Weight norm (new and old style) is written out; the length that a direction has now is kept. Any other registered
    parametrisation is used as it is and must have a ``right_inverse``; `Reparametrisation.check` tests it.

    Args:
        model: not changed.

    Raises:
        ReparametrisationError: for spectral norm and orthogonal parametrisations, which are not bijective, and for
            those without a way back.

    >>> layer = parametrizations.weight_norm(nn.Linear(2, 1))
    >>> print(carried(layer))
    WeightNorm(weight)
    """
    units: dict[str, Unit] = {}
    others: list[Reparametrisation] = []
    for path, module in model.named_modules():
        units |= _old_style(path, module)
        if not parametrize.is_parametrized(module):
            continue
        entries = module.parametrizations
        assert isinstance(entries, nn.ModuleDict)
        chain: Any
        for tensor, chain in entries.items():
            name = f"{path}.{tensor}".lstrip(".")
            base = f"{path}.parametrizations.{tensor}".lstrip(".")
            if len(chain) == 1 and isinstance(chain[0], _WEIGHT_NORM):
                directions = widen(chain.original1.detach())
                axis = chain[0].dim
                units[name] = Unit(f"{base}.original0", f"{base}.original1", axis, held_at(directions, axis))
            else:
                others.append(_registered(name, base, chain))
    if not units and not others:
        raise ModelError(
            "expected a model with parametrisations (torch.nn.utils.parametrize), got one without: its parameters are "
            "its weights already"
        )
    maps = ([WeightNorm(units)] if units else []) + others
    return maps[0] if len(maps) == 1 else Composition(*maps)


def _old_style(path: str, module: nn.Module) -> dict[str, Unit]:
    """Weight norm as a forward hook, from before torch had parametrisations."""
    found = {}
    for hook in module._forward_pre_hooks.values():
        if type(hook).__name__ == "SpectralNorm":
            raise _refusal(f"{path}.{hook.name}".lstrip("."), _REASONS[parametrizations._SpectralNorm])  # type: ignore[attr-defined]
        if type(hook).__name__ == "WeightNorm":
            tensor, axis = hook.name, hook.dim  # type: ignore[attr-defined]
            directions = widen(getattr(module, f"{tensor}_v").detach())
            name = f"{path}.{tensor}".lstrip(".")
            found[name] = Unit(f"{name}_g", f"{name}_v", axis, held_at(directions, axis))
    return found


def _registered(name: str, base: str, chain: Any) -> Reparametrisation:
    for each in chain:
        if type(each) in _REASONS:
            raise _refusal(name, _REASONS[type(each)])
        if not hasattr(each, "right_inverse"):
            raise _refusal(name, f"{type(each).__name__} has no right_inverse, so there is no way from the weight back")
        if any(True for _ in each.parameters()):
            raise _refusal(name, f"{type(each).__name__} has parameters of its own")
    names = (f"{base}.original",) if chain.is_tensor else tuple(f"{base}.original{i}" for i in range(chain.ntensors))
    return _Registered(name, names, tuple(chain))


def _refusal(name: str, reason: str) -> ReparametrisationError:
    return ReparametrisationError(
        f"expected a parametrisation of {name!r} that is a bijection, but {reason}. Remove it with "
        "torch.nn.utils.parametrize.remove_parametrizations, which keeps the weight it has now"
    )


@dataclass(frozen=True)
class _Registered(Reparametrisation):
    """A parametrisation of the user's own: ``theta = forward(psi)``, ``psi = right_inverse(theta)``."""

    name: str
    originals: tuple[str, ...]
    chain: Sequence[Any]

    def forward(self, weights: Weights) -> dict[str, Tensor]:
        known((self.name,), weights)
        out: dict[str, Tensor] = {}
        for name, w in weights.items():
            if name != self.name:
                out[name] = w
                continue
            x: Any = w
            for each in reversed(self.chain):
                x = each.right_inverse(x)
            out |= dict(zip(self.originals, (x,) if isinstance(x, Tensor) else x, strict=True))
        return out

    def _inverse(self, weights: Weights) -> dict[str, Tensor]:
        known(self.originals, weights)
        out: dict[str, Tensor] = {}
        for name, w in weights.items():
            if name == self.originals[0]:
                x = self.chain[0](*(weights[n] for n in self.originals))
                for each in self.chain[1:]:
                    x = each(x)
                out[self.name] = x
            elif name not in self.originals:
                out[name] = w
        return out

    @property
    def redundant(self) -> bool:  # type: ignore[override]  # as far as can be known without weights
        return len(self.originals) > 1

    def __str__(self) -> str:
        return f"{type(self.chain[0]).__name__}({self.name})"
