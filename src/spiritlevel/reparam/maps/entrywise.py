"""Maps that take every entry by itself: scaling, logarithm, softplus, and any monotone function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import jvp

from spiritlevel.errors import ArgumentError, ReparametrisationError
from spiritlevel.reparam.flat import Weights
from spiritlevel.reparam.maps.base import ParameterWise, refuse_where

__all__ = ["Log", "Monotone", "Scaling", "Softplus"]

_BRACKET = 60  # ours: doublings of the interval that a numerical inverse looks in
_HALVINGS = 80  # ours: more than a float64 has bits
_NEWTON = 3  # each doubles the order to which derivatives of a numerical inverse are right; two would do for the second


class Scaling(ParameterWise):
    """``psi = c theta``: globally, for each layer, or for each neuron.

    Args:
        factors: one number for everything; or a number or tensor for each named parameter. A tensor with one entry for
            each row of the parameter (its first axis) scales neurons; any other must broadcast to the parameter.

    >>> Scaling(3.0).forward({"w": torch.ones(2)})["w"]
    tensor([3., 3.])
    >>> Scaling({"w": torch.tensor([1.0, 2.0])}).forward({"w": torch.ones(2, 2)})["w"]
    tensor([[1., 1.],
            [2., 2.]])
    """

    def __init__(self, factors: float | Mapping[str, float | Tensor]) -> None:
        super().__init__(None if isinstance(factors, int | float) else tuple(factors))
        self._factors = factors
        given = {"all parameters": factors} if isinstance(factors, int | float) else factors
        for name, c in given.items():
            t = torch.as_tensor(c, dtype=torch.float64)
            if not bool(((t != 0) & torch.isfinite(t)).all()):
                raise ReparametrisationError(
                    f"expected factors for {name!r} that are finite and not 0, got {t.flatten()[:3].tolist()}: a "
                    "factor of 0 cannot be undone"
                )

    def _factor(self, name: str, weight: Tensor) -> Tensor:
        given = self._factors if isinstance(self._factors, int | float) else self._factors[name]
        c = torch.as_tensor(given, device=weight.device, dtype=weight.dtype)
        if c.dim() == 1 and weight.dim() > 1 and len(c) == weight.shape[0]:
            c = c.view(-1, *[1] * (weight.dim() - 1))
        try:
            return c.expand_as(weight)
        except RuntimeError as error:
            raise ArgumentError(
                f"expected factors that fit {name!r} of shape {tuple(weight.shape)}, got shape {tuple(c.shape)}"
            ) from error

    def _to(self, name: str, weight: Tensor) -> Tensor:
        return weight * self._factor(name, weight)

    def _from(self, name: str, weight: Tensor) -> Tensor:
        return weight / self._factor(name, weight)

    def _log_abs_det(self, weights: Weights) -> Tensor:
        logs = [self._factor(n, weights[n]).double().abs().log().sum() for n in self._chosen(weights)]
        return torch.stack(logs).sum()

    def __str__(self) -> str:
        one = self._factors
        return f"Scaling({one:g})" if isinstance(one, int | float) else f"Scaling({len(one)} parameters)"


class Monotone(ParameterWise):
    """``psi = f(theta)`` entry by entry, ``f`` strictly monotone and smooth.

    Without ``inverse`` the way back is found by bisection and polished by Newton steps, which also makes its
    derivatives of any order right.

    Args:
        function: of a tensor, entry by entry, written with torch operations.
        inverse: its inverse; found numerically where there is none.
        names: which parameters; None for all.
        domain: open interval on which ``function`` is defined.
        label: for tables and error messages.

    >>> cube = Monotone(lambda x: x**3 + x)
    >>> round(float(cube.inverse({"w": torch.tensor([10.0], dtype=torch.float64)})["w"]), 12)
    2.0
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        inverse: Callable[[Tensor], Tensor] | None = None,
        names: Sequence[str] | None = None,
        domain: tuple[float, float] = (-torch.inf, torch.inf),
        label: str = "Monotone",
    ) -> None:
        super().__init__(names)
        if not domain[0] < domain[1]:
            raise ArgumentError(f"expected a domain (low, high) with low below high, got {domain}")
        self._function, self._back, self._domain, self._label = function, inverse, domain, label

    def _to(self, name: str, weight: Tensor) -> Tensor:
        low, high = self._domain
        refuse_where(
            ~((weight > low) & (weight < high)), name, f"values above {low:g} and below {high:g} for {self}", weight,
            "outside them the map is not defined; take a smaller radius or step, or leave this parameter out",
        )  # fmt: skip
        return self._function(weight)

    def _from(self, name: str, weight: Tensor) -> Tensor:
        if self._back is not None:
            found = self._back(weight)
            refuse_where(
                ~torch.isfinite(found), name, f"values that {self} takes", weight,
                "its inverse is not finite there; take a smaller radius or step, or leave this parameter out",
            )  # fmt: skip
            return found
        return self._solved(name, weight)

    def _slope(self, at: Tensor) -> Tensor:
        slope: Tensor = jvp(self._function, (at,), (torch.ones_like(at),))[1]
        return slope

    def _solved(self, name: str, y: Tensor) -> Tensor:
        """``f(x) = y`` by bisection; then Newton steps, which carry the derivatives."""
        with torch.no_grad():
            x = self._bisected(name, y.detach())
        for _ in range(_NEWTON):
            x = x - (self._function(x) - y) / self._slope(x)
        return x

    def _bisected(self, name: str, y: Tensor) -> Tensor:
        low, high = (torch.full_like(y, v) for v in self._start())
        rising = bool((self._function(high) > self._function(low)).all())
        ends = [b for b in self._domain if abs(b) != torch.inf]
        for _ in range(_BRACKET if not ends else 0):
            width = high - low
            low = torch.where((self._function(low) > y) == rising, low - width, low)
            high = torch.where((self._function(high) < y) == rising, high + width, high)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = (self._function(middle) > y) == rising
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        x = (low + high) / 2
        off = (self._function(x) - y).abs() > 1e-3 * (1 + y.abs())
        refuse_where(off, name, f"values that {self} takes", y, "the function is not monotone or does not reach them")
        return x

    def _start(self) -> tuple[float, float]:
        """Where the search for the inverse begins: the whole domain where it is bounded."""
        low, high = self._domain
        if abs(low) == torch.inf and abs(high) == torch.inf:
            return -1.0, 1.0
        if abs(low) == torch.inf or abs(high) == torch.inf:
            raise ArgumentError(f"expected inverse= for {self}, whose domain is bounded on one side only, got none")
        inset = 1e-12 * (high - low)
        return low + inset, high - inset

    def _log_abs_det(self, weights: Weights) -> Tensor:
        total = []
        for name in self._chosen(weights):
            slope = self._slope(weights[name])
            refuse_where(slope == 0, name, f"a slope other than 0 of {self}", slope, "there it is no bijection")
            total.append(slope.double().abs().log().sum())
        return torch.stack(total).sum()

    def __str__(self) -> str:
        return self._label if self.names is None else f"{self._label}({', '.join(self.names)})"


class Log(Monotone):
    """``psi = log theta``, for positive parameters such as variances.

    >>> Log().forward({"variance": torch.tensor([1.0])})["variance"]
    tensor([0.])
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        super().__init__(torch.log, torch.exp, names, (0.0, torch.inf), "Log")


class Softplus(Monotone):
    """``theta = log(1 + exp psi)``, for positive parameters such as standard deviations.

    >>> float(Softplus().inverse({"deviation": torch.tensor(0.0)})["deviation"])
    0.693147...
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        super().__init__(_softplus_inverse, _softplus, names, (0.0, torch.inf), "Softplus")


def _softplus(x: Tensor) -> Tensor:
    """Smooth everywhere; torch's own becomes a straight line above 20."""
    return torch.logaddexp(x, torch.zeros_like(x))


def _softplus_inverse(x: Tensor) -> Tensor:
    """``log(exp x - 1)`` without overflow."""
    return x + torch.log(-torch.expm1(-x))
