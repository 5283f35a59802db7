"""What two secants say about a function on a sphere: a quadratic model with only inner products of long vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spiritlevel.core import spread
from spiritlevel.solvers.packed import Packed

__all__ = ["Frame", "Model", "Proposal", "chunks"]

_CHUNK = 1 << 16  # entries worked on at a time: no temporary of a whole model's size
_PIECE = 1 << 10  # entries summed in the coordinates' own precision: in float32 within 1e-6 of the longest products
_FLAT = 1e-6  # ours: a secant with less of its squared length along the sphere says nothing about it
_NEAR = 0.02  # ours, from bench solvers: up to this residual the model is believed across the plane of the secants too
_ALIKE = 0.5  # ours, from bench solvers: curvature across the radius at first, in parts of that along it
_ANGLE = 0.02  # ours: on a shorter arc rounding spoils the cubic, and a parabola does as well
_BEND = 0.5  # ours: the most a cubic changes a curvature, in parts of mu
_G, _Z = 4, 5  # rows of the inner products: both secants, both changes of the gradient, g, z


@dataclass(frozen=True)
class Proposal:
    """The next trial, ``g + c y + d s + tau z`` brought to the sphere, in coefficients of the secants ``(s, y)``.

    Attributes:
        predict: c.
        turn: d.
        tau: of z.
        inside: a trial of length ``tau`` radii or less stays inside, at ``(g + c y + d s)/tau + z``.
        keep: the last secant is worth remembering.
    """

    predict: np.ndarray = field(default_factory=lambda: np.zeros(2))
    turn: np.ndarray = field(default_factory=lambda: np.zeros(2))
    tau: float = 0.0
    inside: bool = True
    keep: bool = False

    @property
    def predicts(self) -> bool:
        """Whether there is any ``c y + d s``."""
        return bool(self.predict.any() or self.turn.any())

    def known(self, s: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Tensor:
        """``c y + d s``."""
        (c, c_past), (d, d_past) = self.predict.tolist(), self.turn.tolist()
        total: Tensor = c * y[0] + c_past * y[1] + d * s[0] + d_past * s[1]
        return total


@dataclass(frozen=True)
class Frame:
    """The better point and the other end of the step, with their gradients, and the last secant of the step before."""

    z: Tensor
    g: Tensor
    other: Tensor
    other_g: Tensor
    past: tuple[Packed, Packed] | None
    rises: bool

    def secants(self, at: slice) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Both displacements from z and both changes of the gradient, one chunk of each."""
        s, y = self.other[at] - self.z[at], self.other_g[at] - self.g[at]
        if self.past is None:
            return (s, torch.zeros_like(s)), (y, torch.zeros_like(y))
        p, e = self.past[0][at], self.past[1][at]
        return ((s, s + p), (y, y + e)) if self.rises else ((s, p), (y, e))

    def gram(self) -> np.ndarray:
        """Inner products of both s, both y, g and z, in this order."""
        total = np.zeros((6, 6))
        for at in chunks(self.z):
            s, y = self.secants(at)
            total += _gram(torch.stack([*s, *y, self.g[at], self.z[at]])).cpu().numpy()
        return spread.total(total)


class Model:
    """The quadratic model in the plane of the secants: along the sphere where that holds z, in space elsewhere.

    Args:
        gram: from `Frame.gram`.
        radius: of the sphere.
        drop: by how much the other end of the step is lower; 0 where rounding hides it.

    Attributes:
        residual: ``1 - cos(z, g)``.
    """

    def __init__(self, gram: np.ndarray, radius: float, drop: float = 0.0) -> None:
        self.residual = 1.0 - gram[_G, _Z] / (radius * math.sqrt(gram[_G, _G])) if gram[_G, _G] > 0 else 0.0
        held = gram[_Z, _Z] > (1 - _FLAT) * radius**2 and gram[_G, _Z] > 0
        self._mu = gram[_G, _Z] / radius**2 if held else 0.0
        self._gram, self._radius, self._drop = gram, radius, drop
        self._flat = gram - np.outer(gram[_Z], gram[_Z]) / gram[_Z, _Z] if held else gram
        self._steep = math.sqrt(max(self._flat[_G, _G], 0.0))
        self._concavity = max(-gram[0, 2] / gram[0, 0], 0.0) if gram[0, 0] > 0 else 0.0

    def shift(self, rises: bool) -> float:
        """``tau`` of the next step: none on the sphere, but after a fall half of what it saw, so as not to flip again.

        With ``H = -kappa`` across, the shifted iteration turns errors by ``(tau - kappa)/(tau + mu)``: above -1 from
        ``tau = (kappa - mu)/2`` on. Inside the ball it is the curvature, as in Newton's method.
        """
        return self._concavity if self._mu == 0 else 0.0 if rises else self._concavity / 2

    def short(self, length: float) -> Proposal:
        """The plain step, made so long by its shift."""
        tau = max(self._steep / length - self._mu, 0.0) if length > 0 else math.inf
        return Proposal(tau=tau, keep=True)

    def step(self, reach: float, rises: bool) -> Proposal:
        """To the maximum, no further away along the secants than ``reach`` times the last step, and on from there.

        With x the move along the secants and Y the gradient's change across them, the step across is
        ``w = (g + x Y)/mu`` of what is across. Far from a maximum x is chosen as if w were 0, near one both together:
        the rise ``w (g + x Y) - mu |w|^2 / 2`` that w brings adds ``Y Y'/mu`` to the curvature of x and ``Y g/mu`` to
        its slope; this may change x by no more than ``|w|``.
        """
        basis, tau, flat = self._basis(), self.shift(rises), self._flat
        if not basis.shape[1]:
            return Proposal(tau=tau) if tau or self._mu == 0 else self._blind()
        image, slope = basis.T @ flat[:2, 2:4] @ basis, basis.T @ flat[:2, _G]
        curvature = self._bent((image + image.T) / 2 - self._mu * np.eye(len(image)), basis)
        limit = reach * math.sqrt(flat[0, 0] if basis[0].any() else flat[1, 1])
        x = _highest(curvature, slope, limit)
        if self._mu > 0 and tau == 0 and self.residual < _NEAR:
            x = self._together(basis, image, curvature, slope, x, limit)
        c = basis @ x
        if tau or self._mu == 0:
            return Proposal(c, tau * c, tau, keep=True)
        point, gradient = np.array([*c, 0, 0, 0, 1]), np.array([0, 0, *c, 1, 0])
        pull = (point @ self._gram @ gradient) / (point @ self._gram @ point)
        d = -basis @ (slope + image @ x - pull * x)  # the predicted gradient along the secants moves z no further
        return Proposal(c, d, -float(d @ self._gram[:2, _Z]) / self._gram[_Z, _Z], inside=False, keep=True)

    def _together(
        self,
        basis: np.ndarray,
        image: np.ndarray,
        curvature: np.ndarray,
        slope: np.ndarray,
        alone: np.ndarray,
        limit: float,
    ) -> np.ndarray:
        """The move along the secants that is best with the step across to come."""
        flat = self._flat
        squares = basis.T @ flat[2:4, 2:4] @ basis - image.T @ image
        products = basis.T @ flat[2:4, _G] - image.T @ slope
        across = flat[_G, _G] - slope @ slope + 2 * alone @ products + alone @ squares @ alone
        x = _highest(curvature + squares / self._mu, slope + products / self._mu, limit)
        more, most = float(np.linalg.norm(x - alone)), math.sqrt(max(across, 0.0)) / self._mu
        together: np.ndarray = alone + (x - alone) * (most / more) if more > most else x
        return together

    def _bent(self, curvature: np.ndarray, basis: np.ndarray) -> np.ndarray:
        """With the curvature along the last step from both of its values too, within bounds."""
        bend = self._bend()
        if bend is None or not basis[0].any():
            return curvature
        along = basis.T @ self._flat[:2, 0] / math.sqrt(self._flat[0, 0])
        change = bend - float(along @ curvature @ along)
        return curvature + float(np.clip(change, -_BEND * self._mu, _BEND * self._mu)) * np.outer(along, along)

    def _bend(self) -> float | None:
        """The curvature with which Newton's step goes to the top of a cubic, from values and slopes at both ends."""
        gram, square = self._gram, self._radius**2
        across, dot = self._flat[0, 0], gram[_Z, _Z] + gram[0, _Z]
        end = dot + gram[0, _Z] + gram[0, 0]
        angle = math.atan2(math.sqrt(max(across, 0.0) * square), dot)
        if self._mu == 0 or self._drop == 0 or abs(end / square - 1) > 1e-4 or angle < _ANGLE:
            return None
        length, start = self._radius * angle, self._flat[0, _G] / math.sqrt(across)
        g_z, g_end = gram[_G, _Z] + gram[2, _Z], gram[_G, _Z] + gram[2, _Z] + gram[0, _G] + gram[0, 2]
        stop = (math.cos(angle) * g_end - g_z) / (self._radius * math.sin(angle))
        second = -3 * self._drop / length**2 - (2 * start + stop) / length
        third = (start + stop) / length**2 + 2 * self._drop / length**3
        under = second**2 - 3 * start * third
        return float(second - math.sqrt(under) if second < 0 <= under else 2 * second)

    def _blind(self) -> Proposal:
        """Nothing is known across the radius but what the radius itself showed: as convex across, to some share."""
        seen = self._gram[0, 2] / self._gram[0, 0] if self._gram[0, 0] > 0 else 0.0
        return Proposal(tau=-_ALIKE * float(min(max(seen, 0.0), self._mu)), inside=False)

    def _basis(self) -> np.ndarray:
        """Coefficients of an orthonormal basis of the secants, with as many columns as say something new."""
        use = np.flatnonzero(np.diag(self._flat)[:2] > _FLAT * np.diag(self._gram)[:2])
        metric = self._flat[np.ix_(use, use)]
        scale = np.sqrt(np.diag(metric))
        length, vectors = np.linalg.eigh(metric / np.outer(scale, scale))
        new = length > _FLAT
        basis = np.zeros((2, int(new.sum())))
        basis[use] = vectors[:, new] / np.sqrt(length[new]) / scale[:, None]
        return basis


def _highest(curvature: np.ndarray, slope: np.ndarray, limit: float) -> np.ndarray:
    """The maximum of ``slope x + x curvature x / 2`` over ``|x| <= limit``, but for the hard case."""
    values, vectors = np.linalg.eigh(curvature)
    slope, low = vectors.T @ slope, max(values[-1], 0.0)
    if values[-1] >= 0 or np.linalg.norm(slope / values) > limit:
        high = low + float(np.linalg.norm(slope)) / limit
        for _ in range(60):
            middle = (low + high) / 2
            inside = np.linalg.norm(slope) == 0 or np.linalg.norm(slope / (middle - values)) <= limit
            low, high = (low, middle) if inside else (middle, high)
        low = high
    x: np.ndarray = vectors @ (slope / (low - values)) if low > values[-1] else np.zeros(len(slope))
    return x


def chunks(x: Tensor) -> Iterator[slice]:
    """Slices of a long vector, one after the other."""
    for i in range(0, x.numel(), _CHUNK):
        yield slice(i, min(i + _CHUNK, x.numel()))


def _gram(rows: Tensor) -> Tensor:
    """All inner products of a few long rows: short pieces in their own precision, their sums in float64."""
    whole = rows.shape[1] // _PIECE * _PIECE
    pieces = rows[:, :whole].unflatten(1, (-1, _PIECE)).transpose(0, 1)
    rest = rows[:, whole:].double()
    total: Tensor = (pieces @ pieces.mT).double().sum(0) + rest @ rest.T
    return total
