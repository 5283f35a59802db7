"""Geodesics of the cross-Gram metric, integrated.

The energy ``Tr(H*H G'*G' + G*G H'*H') / 2`` gives, in momentum form,

    (G' H*H)' = G H'*H'        (H' G*G)' = H G'*G'

No closed form is known (the curve is no orbit of isometries). Left multiplication by unitary matrices is a symmetry, so
a geodesic stays in the span of its start and its velocity: with ``k = a - U alpha`` and ``l = b - V beta``

    G(t) = U p + k q        H(t) = (V u + l w) S

and only the h x h matrices ``p, q, u, w`` are integrated, by the Dormand-Prince pair of orders 5 and 4 with a step of
its own for each head. A geodesic can run into a rank drop at finite length; there the step would have to shrink to
nothing, and the integrator stops at the edge instead of stepping over it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from spiritlevel.core.shapes import Matrices
from spiritlevel.core.tensors import adjoint
from spiritlevel.geometry.gauge import Gauge

__all__ = ["TOLERANCES", "cross_geodesic"]

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-6}
"""Allowed error of one step, relative to the size of the state (start = identity), by precision. Ours."""

_SMALLEST_STEP = 2e-6  # of the whole length; a shorter one means that the geodesic has reached the edge
_MOST_STEPS = 5_000

# Dormand and Prince 1980, "A family of embedded Runge-Kutta formulae", Table 2.
_NODES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def cross_geodesic(
    gauge: Gauge, alpha: Matrices, beta: Matrices, gram_k: Matrices, gram_l: Matrices
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """The end of the geodesic with whitened horizontal velocity ``(U alpha + k, V beta + l)``.

    Args:
        gauge: the canonical point.
        alpha: core on the left.
        beta: core on the right.
        gram_k: ``k* k``.
        gram_l: ``l* l``.

    Returns:
        ``(p, q)`` and ``(u S, w S)`` at time 1 (or at the edge), and for each head whether it stopped at the edge.
    """
    s = gauge.values.unsqueeze(-2)
    inverse = torch.where(s > 0, 1 / torch.where(s > 0, s, 1), 0)
    field = _Field(s, inverse, gauge.alive, gram_k, gram_l)
    one = torch.eye(s.shape[-1], dtype=alpha.dtype, device=alpha.device).expand_as(alpha)
    zero, scaled = torch.zeros_like(alpha), one * inverse
    start = torch.stack([one, zero, one, zero, alpha * inverse, scaled, beta * inverse, scaled], dim=1)
    state, stopped = _integrate(field, start)
    p, q, u, w = state[:, :4].unbind(1)
    return (p, q), (u * s, w * s), stopped


@dataclass(frozen=True)
class _Field:
    """The right-hand side: positions ``p, q, u, w`` and their velocities.

    Attributes:
        s: singular values as a row.
        inverse: their inverses, 0 for dead directions.
        alive: 1 for living directions, as a row.
        gram_k: ``k* k``.
        gram_l: ``l* l``.
    """

    s: Tensor
    inverse: Tensor
    alive: Tensor
    gram_k: Tensor
    gram_l: Tensor

    def of(self, heads: Tensor) -> _Field:
        """The same for some of the heads."""
        return _Field(*(getattr(self, f.name)[heads] for f in fields(self)))

    def __call__(self, state: Tensor) -> Tensor:
        p, q, u, w, dp, dq, du, dw = state.unbind(1)
        s, s_row = self.s, adjoint(self.s)
        gram_g, change_g, speed_g = self._grams(p, q, dp, dq, self.gram_k)
        gram_h, change_h, speed_h = self._grams(u, w, du, dw, self.gram_l)
        # G'' H*H = G H'*H' - G' (H*H)' with H = H~ S and (H*H)^-1 = S^-1 (H~*H~)^-1 S^-1
        change_h, speed_h = change_h * s * s_row, speed_h * s * s_row
        ddp = self._solve(gram_h, (p @ speed_h - dp @ change_h) * self.inverse) * self.inverse
        ddq = self._solve(gram_h, (q @ speed_h - dq @ change_h) * self.inverse) * self.inverse
        # H~'' S G*G = H~ S G'*G' - H~' S (G*G)'
        ddu = self._solve(gram_g, (u * s) @ speed_g - (du * s) @ change_g) * self.inverse
        ddw = self._solve(gram_g, (w * s) @ speed_g - (dw * s) @ change_g) * self.inverse
        return torch.stack([dp, dq, du, dw, ddp, ddq, ddu, ddw], dim=1)

    def _grams(self, p: Tensor, q: Tensor, dp: Tensor, dq: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``F*F``, its time derivative and ``F'*F'`` of ``F = U p + k q``, on the living directions."""
        pt, qt, cq, cdq = adjoint(p), adjoint(q), c @ q, c @ dq
        mixed, both = pt @ dp + qt @ cdq, adjoint(self.alive) * self.alive
        gram = (pt @ p + qt @ cq) * both + torch.diag_embed(1 - self.alive.squeeze(-2))
        return gram, (mixed + adjoint(mixed)) * both, (adjoint(dp) @ dp + adjoint(dq) @ cdq) * both

    @staticmethod
    def _solve(gram: Tensor, right: Tensor) -> Tensor:
        """``right gram^-1`` for a positive matrix that is the identity at the start."""
        solution: Tensor = torch.linalg.solve_ex(gram, right, left=False)[0]
        return solution


def _integrate(field: _Field, state: Tensor) -> tuple[Tensor, Tensor]:
    """From time 0 to 1, and which heads stopped at the edge.

    Every head has steps of its own and leaves the batch when it is done, so that one near the edge costs no other.
    Differentiable: step sizes are constants to autograd.
    """
    real = state.real.dtype if state.is_complex() else state.dtype
    heads = torch.arange(state.shape[0], device=state.device)
    time = torch.zeros(state.shape[0], dtype=real, device=state.device)
    step, slope = torch.full_like(time, 0.1), field(state)
    done: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(_MOST_STEPS):
        step = torch.minimum(step, 1 - time)
        trial, trial_slope, error = _dormand_prince(field, state, slope, step[:, None, None, None])
        with torch.no_grad():
            size = torch.maximum(state.abs().amax((1, 2, 3)), trial.abs().amax((1, 2, 3)))
            excess = (error.abs().amax((1, 2, 3)) / (TOLERANCES[real] * size)).nan_to_num(nan=1e9, posinf=1e9)
            good = excess <= 1
            time = torch.where(good, time + step, time)
            arrived = time >= 1 - 4 * torch.finfo(real).eps
            step = step * (0.9 * excess.clamp_min(1e-10) ** -0.2).clamp(0.2, 5.0)
            stuck = ~arrived & (step < _SMALLEST_STEP)
        keep = good[:, None, None, None]
        state, slope = torch.where(keep, trial, state), torch.where(keep, trial_slope, slope)
        leaving = arrived | stuck
        if bool(leaving.any()):
            done.append((heads[leaving], state[leaving], stuck[leaving]))
            heads, state, slope, time, step = (x[~leaving] for x in (heads, state, slope, time, step))
            if not len(heads):
                break
            field = field.of(~leaving)
    done.append((heads, state, torch.ones_like(heads, dtype=torch.bool)))  # none, but for the limit on steps
    order = torch.cat([d[0] for d in done]).argsort()
    return torch.cat([d[1] for d in done])[order], torch.cat([d[2] for d in done])[order]


def _dormand_prince(field: _Field, state: Tensor, slope: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of order 5 with its error estimate; the last slope is the first of the next step."""
    slopes = [slope]
    trial = state
    for row in _NODES:
        trial = state + step * sum(c * k for c, k in zip(row, slopes, strict=True) if c)
        slopes.append(field(trial))
    error = step * sum(c * k for c, k in zip(_ERROR, slopes, strict=True) if c)
    return trial, slopes[-1], error.detach() if isinstance(error, Tensor) else torch.zeros_like(state)
