"""The model behind SphereAscent against functions whose maximum is known. Each test names the mutant it kills."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spiritlevel.solvers.packed import Packed
from spiritlevel.solvers.secants import Frame, Model, Proposal, chunks

N, RHO = 9, 1.5


def orthonormal(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=generator)).Q


class Exact(Packed):
    """A vector that is not rounded."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x, 8)
        self._x = x

    def __getitem__(self, at: slice) -> Tensor:
        return self._x[at]


def frame(gradient: Callable[[Tensor], Tensor], z: Tensor, other: Tensor, older: Tensor | None = None) -> Frame:
    """As after a rise to z from ``other``, where ``older`` was the other end of the step before."""
    past = None
    if older is not None:
        past = Exact(older - other), Exact(gradient(older) - gradient(other))
    return Frame(z, gradient(z), other, gradient(other), past, rises=True)


def trial(frame: Frame, new: Proposal) -> Tensor:
    """Where a proposal leads, in full."""
    s, y = frame.secants(next(iter(chunks(frame.z))))
    w = frame.g + (new.known(s, y) if new.predicts else 0) + new.tau * frame.z
    return RHO * w / w.norm()


@pytest.mark.parametrize("seed", range(4))
def test_plane_and_rest_are_maximised_together(seed: int) -> None:
    """A quadratic without curvature across the plane of the secants is known entirely: the step hits its top.

    The coupling is weak enough for the bound on the move to stay away.
    Kills: the coupling left out of the curvature or the slope, a step across that drags the plane along (no ``turn``).
    """
    basis, generator = orthonormal(seed), torch.Generator().manual_seed(seed)
    u, q, w = basis[:, 0], basis[:, 1:3], basis[:, 3:]
    within = torch.tensor([[0.3, 0.2], [0.2, -0.5]], dtype=torch.float64)
    coupling = 0.15 * torch.randn(2, N - 3, dtype=torch.float64, generator=generator)
    h = q @ within @ q.T + q @ coupling @ w.T + w @ coupling.T @ q.T
    top = RHO * u
    g = 1.2 * top - h @ top  # the gradient at the top is 1.2 times the top
    assert torch.linalg.eigvalsh(h)[-1] < 1.2

    def gradient(z: Tensor) -> Tensor:
        return g + h @ z

    def error(size: float) -> float:
        away = basis[:, 1:] @ torch.randn(N - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        z = top + size * away / away.norm()
        z = RHO * z / z.norm()
        ends = [z + size * side for side in (q[:, 0], q[:, 1] + q[:, 0])]
        seen = frame(gradient, z, *[RHO * end / end.norm() for end in ends])
        return float((trial(seen, Model(seen.gram(), RHO).step(9.0, True)) - top).norm())

    assert error(1e-2) < 1e-6
    assert error(1e-3) < 1e-9


def test_nothing_but_the_radius_is_known() -> None:
    """As convex across as along the radius: the second step must be longer than the plain one, and rise more.

    Kills: the plain step (no ``tau``), a shift of the wrong sign.
    """
    h, g = torch.eye(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    h[0, 1] = h[1, 0] = 0.4
    g[0] = 1.0
    first = frame(lambda z: g + h @ z, RHO * g, 0 * g)
    new = Model(first.gram(), RHO).step(1.0, True)
    plain, ours = RHO * first.g / first.g.norm(), trial(first, new)

    def value(z: Tensor) -> float:
        return float(g @ z + z @ h @ z / 2)

    assert value(ours) > value(plain) + 0.01
    assert new.keep is False  # the centre is no secant along the sphere


@pytest.mark.parametrize("third", [-0.4, 0.4])
def test_cubic_along_the_step(third: float) -> None:
    """On a circle, a cubic of the angle: the step goes to its top where the secant's parabola misses it.

    Kills: the secant's curvature as it is, a cubic whose slopes or values are exchanged.
    """
    slope, second = 0.06, -0.8

    def value(angle: float) -> float:
        return 1.0 + slope * angle + second * angle**2 / 2 + third * angle**3

    def gradient(z: Tensor) -> Tensor:  # 2 outwards along the sphere, and the slope across
        angle = math.atan2(float(z[1]), float(z[0]))
        across = (slope + second * angle + 3 * third * angle**2) / RHO
        u = z / RHO
        return 2.0 * u + across * torch.stack([-u[1], u[0]])

    def at(angle: float) -> Tensor:
        return RHO * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)

    top = max((i * 1e-5 for i in range(20000)), key=value)
    seen = frame(gradient, at(0.0), at(-0.3))
    drop = value(0.0) - value(-0.3)

    def reached(drop: float) -> float:
        z = trial(seen, Model(seen.gram(), RHO, drop).step(9.0, True))
        return math.atan2(float(z[1]), float(z[0]))

    assert drop > 0
    assert abs(reached(drop) - top) < 0.25 * abs(reached(0.0) - top)
