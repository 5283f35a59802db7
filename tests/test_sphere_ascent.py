"""SphereAscent against dense oracles, and at every edge of its contract. Each test names the mutant it kills."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from spiritlevel.core.results import Status
from spiritlevel.errors import ArgumentError
from spiritlevel.solvers.autopgd import AutoPGD
from spiritlevel.solvers.ball import L2Ball, LinfBall
from spiritlevel.solvers.base import Centre, Solution, Trace
from spiritlevel.solvers.packed import Packed
from spiritlevel.solvers.sphere_ascent import SphereAscent, _Run

F = Callable[[Tensor], tuple[float, Tensor]]
EXACT = SphereAscent(steps=500, tolerance=1e-14)


def quadratic(h: Tensor, g: Tensor) -> F:
    return lambda z: (float(g @ z + z @ h @ z / 2), g + h @ z)


def symmetric(n: int, seed: int, shift: float = 0.0) -> Tensor:
    a = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (a + a.T) / 2 + shift * torch.eye(n, dtype=torch.float64)


def vector(n: int, seed: int) -> Tensor:
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def secular(h: Tensor, g: Tensor, rho: float) -> float:
    """The maximum on the ball: z = (lam - H)^-1 g with lam >= max(top, 0), by the root of |z| = rho; hard case too."""
    values, vectors = np.linalg.eigh(h.numpy())
    q, top = vectors.T @ g.numpy(), max(values[-1], 0.0)

    def size(lam: float) -> float:
        return float(np.linalg.norm(np.divide(q, lam - values, out=np.zeros_like(q), where=abs(q) > 1e-13)))

    if size(top + 1e-13) <= rho:  # hard case, or a maximum inside
        z = np.divide(q, top - values, out=np.zeros_like(q), where=abs(q) > 1e-13)
        if values[-1] > 0:
            z[-1] += math.sqrt(rho**2 - z @ z)
    else:
        lam = brentq(lambda x: size(x) - rho, top + 1e-13, top + np.linalg.norm(q) / rho + 1, xtol=1e-15, rtol=1e-15)
        z = q / (lam - values)
    return float(q @ z + values @ z**2 / 2)


def solve(f: F, n: int, rho: float = 1.0, solver: SphereAscent = EXACT, **more: Tensor) -> Solution:
    return solver.maximise(f, L2Ball(rho), f(torch.zeros(n, dtype=torch.float64)), **more)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "rho", "shift"), [(2, 1.0, 0.0), (8, 0.3, 2.0), (30, 1.0, 0.0), (30, 3.0, -4.0)])
def test_trust_region_maximum(n: int, rho: float, shift: float, seed: int) -> None:
    """Kills: a step without normalisation, a model with the wrong sign, secants that stop convergence by rounding."""
    h, g = symmetric(n, seed, shift), vector(n, seed + 50)
    found = solve(quadratic(h, g), n, rho)
    assert found.value == pytest.approx(secular(h, g, rho), rel=1e-12)
    assert found.status is Status.CONVERGED
    assert found.residual <= 1e-14


def test_hard_case() -> None:
    """No gradient along the top direction: a start from noise finds it. Kills: a start that is ignored."""
    h, g = torch.diag(torch.tensor([3.0, 1.0, -1.0, 0.5], dtype=torch.float64)), torch.zeros(4, dtype=torch.float64)
    g[1:] = torch.tensor([0.3, -0.4, 0.1])
    best = secular(h, g, 1.0)
    assert solve(quadratic(h, g), 4).value < best - 0.1  # nothing points there from the centre
    assert solve(quadratic(h, g), 4, start=vector(4, 1)).value == pytest.approx(best, rel=1e-12)


def wavy(z: Tensor) -> tuple[float, Tensor]:
    z = z.detach().requires_grad_()
    k = torch.linspace(0.5, 2.0, len(z), dtype=z.dtype)
    value = (k * z).sin().sum() + 0.3 * (z.roll(1) * z * k).sum() + 0.1 * z.exp().sum()
    return float(value.detach()), torch.autograd.grad(value, z)[0]


@pytest.mark.parametrize("rho", [0.3, 1.0, 2.5])
def test_nonconvex_maximum_with_restarts(rho: float) -> None:
    """Kills: restarts that begin at the same point, a best point that the last run overwrites."""
    generator = torch.Generator().manual_seed(3)

    def noise() -> Tensor:
        return torch.randn(6, dtype=torch.float64, generator=generator)

    f, ball = wavy, L2Ball(rho)
    centre = f(torch.zeros(6, dtype=torch.float64))
    dense = max(AutoPGD(steps=100).maximise(f, ball, centre, start=noise() * rho).value for _ in range(12))
    found = SphereAscent(steps=60, tolerance=1e-10, restarts=8).maximise(f, ball, centre, noise=noise)
    assert found.value >= dense - 1e-8 * abs(dense)
    assert found.value == max(found.history) or found.value == pytest.approx(max(found.history), rel=1e-14)
    assert f(found.z)[0] == found.value


def test_beats_the_plain_iteration() -> None:
    """Kills: the model left out (the step is then the power method, which needs several times as many)."""
    h = torch.diag(torch.linspace(-0.5, 1.0, 40, dtype=torch.float64))
    f, g = quadratic(h, 0.02 * vector(40, 7)), 0.02 * vector(40, 7)
    solver = SphereAscent(steps=500, tolerance=1e-8)
    ours = solve(f, 40, solver=solver).evaluations
    z, plain = g / g.norm(), 0
    while L2Ball(1.0).residual(z, f(z)[1]) > 1e-8:
        z, plain = f(z)[1] / f(z)[1].norm(), plain + 1
    assert ours < 0.3 * plain  # 32 of 168; 65 with the sign of a curvature wrong


@pytest.mark.parametrize("shift", [0.0, -20.0])
def test_gradient_comes_back_from_the_trial(shift: float) -> None:
    """Kills: any term of the trial forgotten when its gradient is recovered (the ascent heals it, but more slowly)."""
    f, zero = quadratic(symmetric(20, 3, shift), vector(20, 4)), torch.zeros(20, dtype=torch.float64)
    run = _Run(Trace(f, L2Ball(1.0), Centre(*f(zero))), L2Ball(1.0), 1.0, 0.0)
    run.begin_from(Centre(*f(zero)))
    for _ in range(12):
        run.step()
        assert torch.allclose(run._gradient(), f(run.z)[1], rtol=1e-9, atol=1e-9)


def test_falling_steps_are_damped() -> None:
    """Steeply concave across: the plain iteration flips for ever. Kills: no backtracking."""
    h = torch.diag(torch.tensor([-40.0, -60.0, -1.0], dtype=torch.float64))
    g = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    assert solve(quadratic(h, g), 3).value == pytest.approx(secular(h, g, 1.0), rel=1e-12)


@pytest.mark.parametrize("curvature", [-3.0, -30.0])
def test_maximum_inside(curvature: float) -> None:
    """Kills: points forced onto the sphere (value below the interior maximum)."""
    h = torch.diag(torch.tensor([curvature, 2 * curvature, 1.3 * curvature], dtype=torch.float64))
    g = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
    found = solve(quadratic(h, g), 3, solver=SphereAscent(steps=100))
    assert found.value == pytest.approx(secular(h, g, 1.0), rel=1e-8)
    assert found.z.norm() < 0.9


def test_never_below_the_centre() -> None:
    """Kills: the first trial taken as best whatever its value."""
    f = quadratic(-2e3 * torch.eye(3, dtype=torch.float64), 1e-9 * torch.eye(3, dtype=torch.float64)[0])
    found = solve(f, 3, solver=SphereAscent(steps=3))
    assert found.value >= 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_backs_off_from_where_the_function_is_not_finite(bad: float) -> None:
    """Not finite in a cap around the direction of the gradient. Kills: stopping, or a NaN that travels."""
    f = quadratic(symmetric(5, 2), vector(5, 3))
    g = vector(5, 3)

    def edge(z: Tensor) -> tuple[float, Tensor]:
        return (bad, g * math.nan) if float(z @ g) > 0.8 * float(g.norm()) else f(z)

    found = solve(edge, 5, solver=SphereAscent(steps=30))
    assert found.status is Status.NONFINITE
    assert math.isfinite(found.value)
    assert found.value > 0.5 * float(g.norm()) * 0.8
    assert torch.isfinite(found.z).all()


def test_finite_nowhere_else() -> None:
    """Kills: a loop that does not end, a value that is not the centre's."""

    def f(z: Tensor) -> tuple[float, Tensor]:
        return (math.nan, z) if z.any() else (1.0, torch.ones_like(z))

    found = solve(f, 4, solver=SphereAscent(steps=7))
    assert (found.value, found.status, found.evaluations) == (1.0, Status.NONFINITE, 7)
    warm = solve(f, 4, solver=SphereAscent(steps=7), start=torch.ones(4, dtype=torch.float64))
    assert (warm.value, warm.evaluations) == (1.0, 7)


def test_stationary_centre() -> None:
    """Kills: division by a zero gradient, noise that is ignored."""
    f = quadratic(torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64)), torch.zeros(2, dtype=torch.float64))
    still = solve(f, 2)
    assert (still.value, still.status, still.evaluations) == (0.0, Status.CONVERGED, 0)
    centre = f(torch.zeros(2, dtype=torch.float64))
    assert EXACT.maximise(f, L2Ball(2.0), centre, noise=lambda: vector(2, 0)).value == pytest.approx(6.0, rel=1e-12)


def test_constant_gradient_converges_in_one() -> None:
    """Kills: a first step that is not rho g/|g|, evaluations that count the centre, a gradient written into."""
    g = vector(6, 1)
    kept = g.clone()
    found = solve(lambda z: (float(g @ z), g), 6, 0.5)
    assert found.evaluations == 1
    assert found.value == pytest.approx(0.5 * float(g.norm()), rel=1e-14)
    solve(lambda z: (float(g @ z), g), 6, 0.5, start=vector(6, 2))
    assert torch.equal(g, kept)


def test_counts_and_stops() -> None:
    """Kills: one evaluation too many, a stop that waits for the budget, a status that does not fit the residual."""
    f = quadratic(symmetric(20, 4), vector(20, 5))
    for steps in (1, 2, 5):
        calls = []
        found = solve(lambda z, calls=calls: (calls.append(1), f(z))[1], 20, solver=SphereAscent(steps, tolerance=0.0))
        assert found.evaluations == len(found.history) == len(calls) - 1 == steps
        assert found.status is Status.BUDGET
    early = solve(f, 20, solver=SphereAscent(steps=100))
    assert early.evaluations < 30
    assert early.status is Status.CONVERGED
    assert early.residual <= 1e-5
    assert early.residual == pytest.approx(L2Ball(1.0).residual(early.z, f(early.z)[1]), abs=1e-12)


def test_warm_start() -> None:
    """Kills: a start that is not brought to the sphere, a start whose evaluation is not counted."""
    f = quadratic(symmetric(20, 4), vector(20, 5))
    cold = solve(f, 20, 1.0, SphereAscent(steps=100))
    seen: list[Tensor] = []
    warm = solve(lambda z: (seen.append(z), f(z))[1], 20, 1.1, SphereAscent(steps=100), start=cold.z)
    assert seen[1].norm() == pytest.approx(1.1)
    assert torch.allclose(seen[1], 1.1 * cold.z)
    assert warm.evaluations == len(seen) - 1 < cold.evaluations
    assert warm.value == pytest.approx(secular(symmetric(20, 4), vector(20, 5), 1.1), rel=1e-4)


def test_float32_stops_by_itself() -> None:
    """A high plateau hides the last gains in rounding. Kills: acceptance by strict increase alone."""
    h, g = symmetric(50, 1).float() * 1e-3, vector(50, 2).float() * 1e-3

    def f(z: Tensor) -> tuple[float, Tensor]:
        return float(torch.tensor(1000 + float(g @ z + z @ h @ z / 2))), g + h @ z  # the value rounds to 6e-5

    found = SphereAscent(steps=100).maximise(f, L2Ball(1.0), f(g * 0))
    assert found.status is Status.CONVERGED
    assert found.evaluations < 40


def test_memory_during_an_evaluation() -> None:
    """At most 2.6 vectors besides what the caller holds. Kills: secants in full, a gradient that is kept."""
    n = 64 * 256
    h = torch.linspace(-1, 1, n)
    g = torch.randn(n) / math.sqrt(n)
    before = {id(x) for x in gc.get_objects() if type(x) is Tensor}
    most = 0.0

    def f(z: Tensor) -> tuple[float, Tensor]:
        nonlocal most
        gc.collect()
        storages = {
            x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
            for x in gc.get_objects()
            if type(x) is Tensor and id(x) not in before
        }
        most = max(most, sum(storages.values()) / (4 * n))
        return float(g @ z + (h * z) @ z / 2), g + h * z

    zero = torch.zeros(n)
    before.add(id(zero))
    centre = (0.0, g)
    found = SphereAscent(tolerance=0.0).maximise(f, L2Ball(1.0), centre)
    assert found.evaluations >= 5
    assert 2.0 <= most <= 2.6


def test_keeps_no_gradient_alive() -> None:
    """Kills: a run that stores the last gradient."""
    f, alive = quadratic(symmetric(30, 1), vector(30, 2)), []

    def watched(z: Tensor) -> tuple[float, Tensor]:
        assert sum(r() is not None for r in alive) == 0
        value, g = f(z)
        alive.append(weakref.ref(g))
        return value, g

    SphereAscent(tolerance=0.0).maximise(watched, L2Ball(1.0), f(torch.zeros(30, dtype=torch.float64)))


@pytest.mark.parametrize(("bits", "most"), [(4, 7), (8, 127)])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_packed_vector(n: int, bits: int, most: int) -> None:
    """Kills: one scale for the whole vector, a length that is no multiple of the block, halves of a byte that mix."""
    x = torch.randn(n) * torch.logspace(-6, 6, n)
    packed = Packed(x, bits)
    packed[slice(0, n)] = x
    read = packed[slice(0, n)]
    assert read.shape == x.shape
    for a, b in zip(x.split(64), read.split(64), strict=True):
        assert (a - b).abs().max() <= a.abs().max() * 0.51 / most


def test_cube() -> None:
    """A convex function is largest in a corner. Kills: the Euclidean step on the cube."""
    n, rho = 10, 0.5
    h = symmetric(n, 3) @ symmetric(n, 3)
    g = vector(n, 4)
    corners = torch.cartesian_prod(*[torch.tensor([-rho, rho], dtype=torch.float64)] * n)
    best = float((corners @ g + ((corners @ h) * corners).sum(1) / 2).max())
    ball, f = LinfBall(rho), quadratic(h, g)
    noise = iter([vector(n, 100 + i) for i in range(100)])
    solver = SphereAscent(restarts=60)
    found = solver.maximise(f, ball, f(torch.zeros(n, dtype=torch.float64)), noise=lambda: ball.unit(next(noise)) * rho)
    assert found.value == pytest.approx(best, rel=1e-12)


def test_cube_backtracks() -> None:
    """A maximum inside: the corner is lower than the centre. Kills: no backtracking on the cube."""
    h, g = torch.diag(torch.tensor([-8.0, -2.0, -4.0], dtype=torch.float64)), torch.ones(3, dtype=torch.float64)
    f = quadratic(h, g)
    found = SphereAscent(steps=300).maximise(f, LinfBall(1.0), f(torch.zeros(3, dtype=torch.float64)))
    best = float((g / -h.diag() / 2).sum())
    assert 0.97 * best < found.value <= best + 1e-12
    assert SphereAscent().maximise(f, LinfBall(1.0), (0.0, g * 0)).status is Status.CONVERGED


@pytest.mark.parametrize("settings", [{"steps": 0}, {"restarts": -1}, {"tolerance": -1.0}, {"reach": 0.0}])
def test_refuses_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        SphereAscent(**settings)  # type: ignore[arg-type]


def test_restarts_need_noise() -> None:
    with pytest.raises(ArgumentError, match="source of noise"):
        solve(quadratic(symmetric(3, 0), vector(3, 0)), 3, solver=SphereAscent(restarts=1))
