"""Independent oracles: everything here follows from a definition, in float64 and in the user's own gauge.

Nothing of `spiritlevel.geometry` is used: no canonical gauge, no closed form, no projection formula. Points are pairs
``(G, H)`` packed into one flat real vector (complex entries as real and imaginary part).

- vertical space: the derivative of the group action ``A -> (G A^-1, H A^*)`` at the identity, by autodiff;
- metrics: dense matrices of the defining traces;
- horizontal space: the weighted null space of the vertical one;
- geodesics: ``p'' = -Gamma(p', p')`` with Christoffel symbols by autodiff of the dense metric, solved to 1e-12;
  and, where a derivative through the end point is needed, fixed Runge-Kutta steps of the Hamiltonian equations;
- worst case: many-start projected ascent, polished by SLSQP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from torch import Tensor
from torch.func import jacfwd, jacrev

Array = np.ndarray


@dataclass(frozen=True)
class Shape:
    """One head: G is n x h, H is m x h, over the reals or the complex numbers."""

    n: int
    m: int
    h: int
    is_complex: bool = False

    @property
    def size(self) -> int:
        return (self.n + self.m) * self.h * (2 if self.is_complex else 1)

    def pack(self, g: Tensor, h: Tensor) -> Tensor:
        flat = torch.cat([g.reshape(*g.shape[:-2], -1), h.reshape(*h.shape[:-2], -1)], dim=-1)
        return torch.stack([flat.real, flat.imag], dim=-1).reshape(*flat.shape[:-1], -1) if self.is_complex else flat

    def unpack(self, p: Tensor) -> tuple[Tensor, Tensor]:
        flat = torch.complex(p[..., 0::2], p[..., 1::2]) if self.is_complex else p
        cut, lead = self.n * self.h, flat.shape[:-1]
        return flat[..., :cut].reshape(*lead, self.n, self.h), flat[..., cut:].reshape(*lead, self.m, self.h)

    def product(self, p: Tensor) -> Tensor:
        """M = G H^*."""
        g, h = self.unpack(p)
        return g @ h.mH


def act(shape: Shape, p: Tensor, a: Tensor) -> Tensor:
    """``(G A^-1, H A^*)``; also the push-forward of a tangent vector, because the action is linear."""
    g, h = shape.unpack(p)
    return shape.pack(g @ torch.linalg.inv(a), h @ a.mH)


def vertical_space(shape: Shape, p: Tensor) -> Tensor:
    """Columns span the tangent of the orbit: autodiff of the group action at the identity."""
    width = shape.h**2

    def moved(a: Tensor) -> Tensor:
        matrix = torch.complex(a[:width], a[width:]) if shape.is_complex else a
        return act(shape, p, matrix.reshape(shape.h, shape.h))

    identity = torch.eye(shape.h, dtype=p.dtype).reshape(-1)
    if shape.is_complex:
        identity = torch.cat([identity, torch.zeros_like(identity)])
    return jacrev(moved)(identity)


def metric_matrix(name: str, shape: Shape, p: Tensor) -> Tensor:
    """The metric at ``p``, entry by entry from its definition: ``<e_i, e_j>`` of the real coordinate vectors."""
    g, h = shape.unpack(p)
    x_g, x_h = shape.unpack(torch.eye(shape.size, dtype=p.dtype))
    gram_g, gram_h = g.mH @ g, h.mH @ h
    if name == "inverse_gram":
        weight_g, weight_h = torch.linalg.inv(gram_g), torch.linalg.inv(gram_h)
    else:
        weight_g, weight_h = gram_h, gram_g

    def traces(weight: Tensor, x: Tensor) -> Tensor:  # Tr(weight x_i^* x_j), real part
        return torch.einsum("ab,irb,jra->ij", weight, x.conj(), x).real

    return traces(weight_g, x_g) + traces(weight_h, x_h)


def horizontal_basis(name: str, shape: Shape, p: Tensor) -> Tensor:
    """Columns orthonormal in the metric and orthogonal in it to the vertical space: a dense weighted null space."""
    metric, vertical = metric_matrix(name, shape, p), vertical_space(shape, p)
    _, s, right = torch.linalg.svd(vertical.mT @ metric)
    null = right[int((s > 1e-10 * s[0]).sum()) :].mT
    factor = torch.linalg.cholesky(null.mT @ metric @ null)
    return torch.linalg.solve_triangular(factor.mT, null, upper=True, left=False)


def horizontal_part(name: str, shape: Shape, p: Tensor, x: Tensor) -> Tensor:
    """Orthogonal projection of a tangent vector onto the horizontal space."""
    basis = horizontal_basis(name, shape, p)
    return basis @ (basis.mT @ metric_matrix(name, shape, p) @ x)


def length(name: str, shape: Shape, p: Tensor, x: Tensor) -> float:
    return float((x @ metric_matrix(name, shape, p) @ x).sqrt())


def christoffel(name: str, shape: Shape, p: Tensor) -> Tensor:
    """``Gamma[k, i, j]``, from derivatives of the dense metric."""
    d = jacfwd(lambda q: metric_matrix(name, shape, q))(p)  # d[i, j, k] = d_k g_ij
    lower = (d.permute(0, 2, 1) + d - d.permute(2, 0, 1)) / 2  # lower[l, i, j] = (d_i g_lj + d_j g_li - d_l g_ij) / 2
    return torch.einsum("kl,lij->kij", torch.linalg.inv(metric_matrix(name, shape, p)), lower)


def geodesic(name: str, shape: Shape, p: Tensor, x: Tensor) -> Tensor:
    """End of the geodesic from ``p`` with velocity ``x``, at time 1, by DOP853."""
    size = shape.size

    def slope(_: float, state: Array) -> Array:
        q, v = torch.from_numpy(state[:size].copy()), torch.from_numpy(state[size:].copy())
        bend = -torch.einsum("kij,i,j->k", christoffel(name, shape, q), v, v)
        return np.concatenate([v.numpy(), bend.numpy()])

    start = torch.cat([p, x]).numpy()
    found = solve_ivp(slope, (0.0, 1.0), start, method="DOP853", rtol=1e-12, atol=1e-13)
    assert found.success, found.message
    return torch.from_numpy(found.y[:size, -1].copy())


def geodesic_steps(name: str, shape: Shape, p: Tensor, x: Tensor, steps: int = 24) -> Tensor:
    """The same by fixed Runge-Kutta steps, batched and differentiable.

    Hamilton's equations of the kinetic energy: for ``Tr((G*G)^-1 x*x)/2`` the momentum is ``u = x (G*G)^-1``, so
    ``G' = u G*G`` and ``u' = -G u*u``; for ``Tr(H*H x*x + G*G y*y)/2`` it is ``u = x H*H, v = y G*G``, and
    ``u' = G y*y``, ``v' = H x*x``. Checked against `geodesic` in the tests.
    """
    (g, h), (x_g, x_h) = shape.unpack(p), shape.unpack(x)

    def rise(g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.inv(g.mH @ g), torch.linalg.inv(h.mH @ h)

    if name == "inverse_gram":

        def slope(g: Tensor, h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            return u @ (g.mH @ g), v @ (h.mH @ h), -g @ (u.mH @ u), -h @ (v.mH @ v)

        left, right = rise(g, h)
        state = (g, h, x_g @ left, x_h @ right)
    else:

        def slope(g: Tensor, h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            left, right = rise(g, h)
            y_g, y_h = u @ right, v @ left
            return y_g, y_h, g @ (y_h.mH @ y_h), h @ (y_g.mH @ y_g)

        state = (g, h, x_g @ (h.mH @ h), x_h @ (g.mH @ g))
    dt = 1.0 / steps
    for _ in range(steps):
        k1 = slope(*state)
        k2 = slope(*(s + dt / 2 * k for s, k in zip(state, k1, strict=True)))
        k3 = slope(*(s + dt / 2 * k for s, k in zip(state, k2, strict=True)))
        k4 = slope(*(s + dt * k for s, k in zip(state, k3, strict=True)))
        state = tuple(s + dt / 6 * (a + 2 * b + 2 * c + d) for s, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True))
    return shape.pack(state[0], state[1])


def riemannian_hessian(name: str, shape: Shape, p: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """``d_i d_j f - Gamma^k_ij d_k f`` on the whole space of pairs."""
    gradient, hessian = jacrev(f)(p), torch.func.hessian(f)(p)
    return hessian - torch.einsum("kij,k->ij", christoffel(name, shape, p), gradient)


def ball_maximum(f: Callable[[Tensor], Tensor], size: int, rho: float, starts: int = 16, seed: int = 0) -> float:
    """The largest value on the ball: batched projected ascent from many points, the best three polished by SLSQP.

    Args:
        f: values of a batch of points, (starts, size) -> (starts,); differentiable.
        size: dimension.
        rho: radius.
        starts: random points on the sphere, half of them turned uphill.
        seed: of the points.
    """

    def values(z: Tensor) -> tuple[Tensor, Tensor]:
        z = z.detach().requires_grad_()
        value = f(z)
        (gradient,) = torch.autograd.grad(value.sum(), z)
        return value.detach(), gradient

    def onto(z: Tensor) -> Tensor:
        return z * (rho / z.norm(dim=-1, keepdim=True).clamp_min(rho))

    z = torch.randn(starts, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z = rho * z / z.norm(dim=-1, keepdim=True)
    _, g = values(torch.zeros_like(z))
    z[: starts // 2] = onto(z[: starts // 2] + rho * g[: starts // 2] / g[: starts // 2].norm(dim=-1, keepdim=True))
    value, g = values(z)
    step = torch.full((starts, 1), rho, dtype=torch.float64)
    for _ in range(25):
        trial = onto(z + step * g / g.norm(dim=-1, keepdim=True).clamp_min(1e-300))
        trial_value, trial_g = values(trial)
        up = (trial_value > value).unsqueeze(-1)
        z, g, value = torch.where(up, trial, z), torch.where(up, trial_g, g), torch.maximum(value, trial_value)
        step = torch.where(up, step * 1.3, step * 0.4)

    def negative(x: Array) -> tuple[float, Array]:
        value, g = values(torch.from_numpy(x * rho).unsqueeze(0))
        return -float(value[0]), -g[0].numpy() * rho

    inside = {"type": "ineq", "fun": lambda x: 1.0 - x @ x, "jac": lambda x: -2.0 * x}
    best = float(value.max())
    for i in value.argsort(descending=True)[:3].tolist():
        found = minimize(
            negative, (z[i] / rho).numpy(), jac=True, method="SLSQP", constraints=[inside], options={"ftol": 1e-14}
        )
        point = found.x / max(1.0, float(np.linalg.norm(found.x)))
        best = max(best, -negative(point)[0])
    return best
