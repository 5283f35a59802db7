"""What every rule does, written down from its formula in NumPy on flat vectors, and a network to try it on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray


class Net(nn.Module):
    """A little of everything: weights, biases, gains and shifts of a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scales, self.last = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.scales(self.first(x))))


def build(seed: int = 0) -> tuple[Net, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    net = Net().double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64))
    return net, torch.randn(12, 4, generator=g, dtype=torch.float64), torch.randint(3, (12,), generator=g)


def flat(model: nn.Module) -> Array:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]).copy()


def gradient(model: nn.Module, w: Array, x: Tensor, y: Tensor) -> Array:
    """At any flat weights, by `torch.func` on one vector: nothing is shared with ``.grad``."""
    named = dict(model.named_parameters())

    def f(vector: Tensor) -> Tensor:
        pieces = vector.split([p.numel() for p in named.values()])
        parts = {n: v.view(p.shape) for (n, p), v in zip(named.items(), pieces, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, parts, (x,)), y)

    return torch.func.grad(f)(torch.from_numpy(w.copy())).numpy()


def where(model: nn.Module) -> dict[str, slice]:
    """Where each parameter lies in the flat vector."""
    found, start = {}, 0
    for name, p in model.named_parameters():
        found[name] = slice(start, start + p.numel())
        start += p.numel()
    return found


def sam(g: Array, rho: float) -> Array:
    return rho * g / np.sqrt(sum(x * x for x in g))


def asam(g: Array, rho: float, t: Array) -> Array:
    return rho * (t * t * g) / np.linalg.norm(t * g)


def asam_linf(g: Array, rho: float, t: Array) -> Array:
    return rho * t * np.sign(g)


def fisher(g: Array, rho: float, eta: float) -> Array:
    inverse = np.diag(1 / (1 + eta * g**2))
    return rho * inverse @ g / np.sqrt(g @ inverse @ g)


def rsam(g: Array, rho: float, alpha: float) -> Array:
    c = np.sum(np.abs(g) ** (2 * alpha)) / (g @ g) ** (alpha + 1)
    return -np.sign(1 - alpha) * rho * c * g
