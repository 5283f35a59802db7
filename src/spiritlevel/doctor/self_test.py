"""Ten seconds of real work whose results are known from elsewhere."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.core.blocks import Pair
from spiritlevel.core.views import Factor, Piece
from spiritlevel.geometry import Euclidean
from spiritlevel.measures import geodesic_sharpness, hessian_operator, worst_case
from spiritlevel.problem import Objective, Problem
from spiritlevel.study.store import Store
from spiritlevel.study.units import Column, Done, Outcome
from spiritlevel.symmetry import find_symmetries, move_along_orbit

__all__ = ["CHECKS", "Check", "self_test"]

_TOKENS = (1.0, -0.5, 0.25)
_TARGET, _QUERY, _KEY, _RHO = 0.1, 0.9, 1.3, 0.3
_EXACT = 1e-6  # relative, in float64: the solver stops at a residual of about 1e-4, whose square counts
_ORBIT = {torch.float64: 1e-6, torch.float32: 1e-3}  # the bounds that the tests of invariance keep


class Skipped(Exception):  # no error
    """A check that this machine has no use for."""


@dataclass(frozen=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: what.
        state: ``ok``, ``failed`` or ``skipped``.
        detail: the numbers, or why not.
        seconds: by the clock.
    """

    name: str
    state: str
    detail: str
    seconds: float


class _OneHead(nn.Module):
    """Attention of the last token over three, head width 1: a function of the product of query and key alone."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.query.weight.fill_(_QUERY)
            self.key.weight.fill_(_KEY)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x[:, -1:]) @ self.key(x).transpose(1, 2)
        out: Tensor = (scores.softmax(-1) @ x)[:, 0, 0]
        return out


def _squares(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (output - batch[1]).square().mean()


def _value() -> str:
    """By hand: at width 1 the geodesic through p, query times key, is ``p exp(t)``, with t up to ``sqrt(2) rho``."""
    x = torch.tensor(_TOKENS, dtype=torch.float64).reshape(1, 3, 1)
    problem = Problem(_OneHead().double(), [(x, torch.tensor([_TARGET], dtype=torch.float64))], _squares)
    query, key = (Factor((Piece(f"{n}.weight", (1, 1, 1), batch=(1,), rows=(0,), column=2),)) for n in ("query", "key"))
    found = geodesic_sharpness(problem, _RHO, blocks=[Pair("head", query, key)]).value
    reach = math.sqrt(2) * _RHO
    expected = max(_by_hand(math.exp(reach * i / 1000)) for i in range(-1000, 1001)) - _by_hand(1.0)
    return _compared(found, expected, _EXACT, "by hand")


def _by_hand(factor: float) -> float:
    """The loss where query times key is so many times as large; no torch."""
    weights = [math.exp(_QUERY * _KEY * factor * _TOKENS[-1] * t) for t in _TOKENS]
    output = math.fsum(w * t for w, t in zip(weights, _TOKENS, strict=True)) / math.fsum(weights)
    return (output - _TARGET) ** 2


class _Attention(nn.Module):
    """A layer of two heads and a reading of its first token."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.read = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(self.attention(x, x, x, need_weights=False)[0][:, 0])
        return out


def _attention(device: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model, x = _Attention(), torch.randn(6, 5, 4)
    return model.to(device, dtype).eval(), (x.to(device, dtype), (torch.arange(6) % 3).to(device))


def _invariance(device: str, dtype: torch.dtype) -> str:
    """The same function with other weights has the same geodesic sharpness; the Euclidean one tells them apart."""
    model, batch = _attention(device, dtype)
    before = geodesic_sharpness(Problem(model, [batch]), 0.1).value
    plain = worst_case(Problem(model, [batch]), Euclidean(), 0.1).value
    model.load_state_dict(move_along_orbit(model, find_symmetries(model), strength=1.0, seed=0))
    said = _compared(geodesic_sharpness(Problem(model, [batch]), 0.1).value, before, _ORBIT[dtype], "before the move")
    moved = worst_case(Problem(model, [batch]), Euclidean(), 0.1).value
    if abs(moved / plain - 1) < 0.01:
        raise ArithmeticError(f"expected the move to change Euclidean sharpness, got {plain:.6g} and {moved:.6g}")
    return f"{said}; Euclidean {plain:.3g} became {moved:.3g}"


def _curvature() -> str:
    """``u H v = v H u``, and H v is what the gradient changes by."""
    model, batch = _attention("cpu", torch.float64)
    problem = Problem(model, [batch])
    operator = hessian_operator(problem, Euclidean())
    g = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, operator.dimension, generator=g, dtype=torch.float64)
    hu, hv = operator.apply(torch.stack([u, v]))
    scale = float(u.norm() * v.norm() * max(hu.norm() / u.norm(), hv.norm() / v.norm()))
    apart = abs(float(u @ hv - v @ hu)) / scale
    if not apart < 1e-12:
        raise ArithmeticError(f"expected a symmetric Hessian, got u H v and v H u {apart:.1e} apart")
    chart, step = problem.chart(Euclidean()), 1e-5
    up, down = (Objective(problem, chart, batch)(s * step * u)[1] for s in (1, -1))
    off = float(((up - down) / (2 * step) - hu).norm() / hu.norm())
    if not off < 1e-6:
        raise ArithmeticError(f"expected products that are differences of gradients, got them {off:.1e} apart")
    return f"asymmetry {apart:.0e}, differences of gradients {off:.0e} away"


def _store() -> str:
    """What is written is read, by another connection, from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path, column = Path(folder) / "study.db", Column("gen.test_loss", {"what": "self-test"})
        with Store(path, write=True) as store:
            store.plan([("one", {"lr": 0.1})], [column])
            store.write(Done("one", "", {column.key: Outcome(1 / 3)}))
        with Store(path) as store:
            found = store.table().columns()
    if found["gen.test_loss"] != [1 / 3]:
        raise ArithmeticError(f"expected 1/3 to be read as it was written, got {found}")
    return "SQLite"


def _figure() -> str:
    """A picture in a file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except Exception as error:  # not there, or broken, which the list of packages says
        raise Skipped(f"no matplotlib ({error}): pip install 'spiritlevel[figures]'") from error
    figure = Figure((2, 2))
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    canvas.draw()  # type: ignore[no-untyped-call]  # matplotlib's
    colours = len(np.unique(np.asarray(canvas.buffer_rgba()).reshape(-1, 4), axis=0))  # type: ignore[no-untyped-call]
    if colours < 2:
        raise ArithmeticError("expected a line on paper, got one colour")
    return f"{colours} colours"


def _compared(found: float, expected: float, bound: float, name: str) -> str:
    apart = abs(found - expected) / abs(expected)
    if not apart < bound:
        raise ArithmeticError(f"expected {expected:.9g} ({name}), got {found:.9g}: {apart:.1e} apart")
    return f"{found:.6g} against {expected:.6g} {name}, {apart:.0e} apart"


CHECKS: dict[str, Callable[[], str]] = {
    "geodesic sharpness of attention, value": _value,
    "geodesic sharpness, invariance": lambda: _invariance("cpu", torch.float64),
    "Hessian products": _curvature,
    "store": _store,
    "figures": _figure,
}
"""Each returns what it saw, or raises."""


def self_test(devices: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """All checks, one after the other; on every further device invariance in float32.

    Args:
        devices: other than the processor.
    """
    checks = dict(CHECKS)
    for device in devices:
        checks[f"geodesic sharpness, invariance on {device}"] = _on(device)
    with torch.random.fork_rng([]):  # the caller's random numbers go on
        return tuple(_tried(name, check) for name, check in checks.items())


def _on(device: str) -> Callable[[], str]:
    return lambda: _invariance(device, torch.float32)


def _tried(name: str, check: Callable[[], str]) -> Check:
    began = time.perf_counter()
    try:
        state, detail = "ok", check()
    except Skipped as reason:
        state, detail = "skipped", str(reason)
    except Exception as error:  # whatever it is, it is what is asked for
        state, detail = "failed", f"{type(error).__name__}: {error}"
    return Check(name, state, detail, time.perf_counter() - began)
