"""Weights that each lie on one rank, and come to the others for the moment a layer needs them.

A forward pass is given place-holders. Whatever torch function meets one gets the weight itself, broadcast from its
owner; autograd keeps the name in place of the weight, and fetches it again on the way back; gradients add up on the
owner. The backward of a broadcast is a sum on the owner and the other way round, so derivatives of every order pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from spiritlevel.core.ranks import Crew
from spiritlevel.errors import ModelError

__all__ = ["TOKEN", "Fetched", "Fetching"]

TOKEN = " token"
"""A name no parameter has: one number, always 0, on every rank.

Autograd only goes where there is something to differentiate by, and on a rank that owns nothing of a layer there is
nothing: through the token all ranks pass every broadcast, in the same order.
"""

_FREE = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "is_meta", "is_sparse", "is_cuda", "layout", "requires_grad")
} | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point, torch.Tensor.is_complex}


class Fetched(Tensor):
    """A place-holder: shape, precision and device of a weight, and how to get it."""

    get: Callable[[], Tensor]

    @staticmethod
    def of(shape: torch.Size, dtype: torch.dtype, device: torch.device, get: Callable[[], Tensor]) -> Fetched:
        """One for a weight of this shape."""
        made: Fetched = torch.Tensor._make_wrapper_subclass(Fetched, shape, dtype=dtype, device=device)
        made.get = get
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # the mode below sees to it

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch calls the class
        raise ModelError(
            f"expected weights of a sharded model to be met by torch functions of its forward pass, but {func} met one "
            "elsewhere (a custom autograd function or compiled code): take that out, or Ranks(state='whole')"
        )


class _Fetch(TorchFunctionMode):
    """Every torch function inside gets weights for place-holders."""

    def __torch_function__(
        self, f: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if f in _FREE:
            return f(*args, **(kwargs or {}))
        return f(*(_here(a) for a in args), **{k: _here(v) for k, v in (kwargs or {}).items()})


def _here(x: Any) -> Any:
    if isinstance(x, Fetched):
        return x.get()
    if type(x) in (list, tuple) and any(isinstance(y, Fetched) for y in x):
        return type(x)(_here(y) for y in x)
    return x


class Fetching:
    """The way to weights that lie on different ranks.

    Args:
        crew: the ranks.
        owners: the rank of each measured parameter.
        shapes: of all parameters that are fetched.
        dtypes: of the same, as they are measured.
        device: where they are needed.
        still: how to get parameters that are not measured and lie spread over ranks; collective.
    """

    def __init__(
        self,
        crew: Crew,
        owners: Mapping[str, int],
        shapes: Mapping[str, torch.Size],
        dtypes: Mapping[str, torch.dtype],
        device: torch.device,
        still: Mapping[str, Callable[[], Tensor]],
    ) -> None:
        self._still = still
        self.crew, self._owners, self._shapes, self._dtypes, self._device = crew, owners, shapes, dtypes, device
        self._seen: dict[int, tuple[str, Tensor, StorageWeakRef]] = {}

    def placeholders(self, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One for each parameter that is fetched.

        Args:
            mine: the weights this rank owns, and the token.
        """

        def getter(name: str) -> Callable[[], Tensor]:
            return lambda: self._weight(name, mine)

        return {n: Fetched.of(self._shapes[n], self._dtypes[n], self._device, getter(n)) for n in self._shapes}

    def _weight(self, name: str, mine: Mapping[str, Tensor]) -> Tensor:
        """The weight, differentiable on every rank."""
        if name in self._still:
            unmoved = self.fetched(torch.empty(0), name)
            self._note(unmoved, name, torch.empty(0))
            return unmoved
        x, token = mine.get(name), mine.get(TOKEN)
        x = torch.empty(0, device=self._device) if x is None else x
        token = torch.zeros(1, device=self._device) if token is None else token
        found: Tensor = _Broadcast.apply(x, token, self, name)  # type: ignore[no-untyped-call]  # torch's
        self._note(found, name, x.detach())
        return found

    def _note(self, t: Tensor, name: str, source: Tensor) -> None:
        storage = t.untyped_storage()
        self._seen[storage.data_ptr()] = (name, source, StorageWeakRef(storage))

    def fetched(self, x: Tensor, name: str) -> Tensor:
        """A fresh copy of what the owner has, on every rank."""
        if name in self._still:
            return self._still[name]()
        owner = self._owners[name]
        if owner == self.crew.rank:
            out = x.detach().clone(memory_format=torch.contiguous_format)
        else:
            out = torch.empty(self._shapes[name], dtype=self._dtypes[name], device=self._device)
        return self.crew.fetch(f"the weight {name}", out, owner)

    def brought(self, x: Tensor, name: str) -> Tensor:
        """The sum over ranks on the owner; nothing elsewhere."""
        owner = self._owners[name]
        out = self.crew.bring(f"the gradient of {name}", x.detach().clone(memory_format=torch.contiguous_format), owner)
        return out if owner == self.crew.rank else out.new_zeros(0)

    def forget(self) -> None:
        """Let go of what weights were made from that nobody has any more."""
        self._seen = {at: known for at, known in self._seen.items() if not known[2].expired()}

    @contextmanager
    def keeping_names(self) -> Iterator[None]:
        """Autograd keeps names of fetched weights, not the weights."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a forward pass that was given place-holders."""
        with self.keeping_names(), _Fetch():
            yield

    def _pack(self, t: Tensor) -> Any:
        known = self._seen.get(t.untyped_storage().data_ptr()) if t.numel() else None
        if known is None or known[2].expired():
            return t
        return known[0], known[1], t.shape, t.stride(), t.storage_offset()

    def _unpack(self, kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        name, source, shape, stride, offset = kept
        with torch.no_grad():
            full = self.fetched(source, name)
        self._note(full, name, source)
        return full.as_strided(shape, stride, offset)


class _Broadcast(torch.autograd.Function):
    """From the owner to all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, way: Fetching, name: str) -> Tensor:
        ctx.way, ctx.name = way, name
        return way.fetched(x, name)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, token = _Reduce.apply(g, ctx.way, ctx.name)  # type: ignore[no-untyped-call]  # torch's
        return x if ctx.needs_input_grad[0] else None, token, None, None


class _Reduce(torch.autograd.Function):
    """The sum over ranks, to the owner; its second output is 0."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, way: Fetching, name: str) -> tuple[Tensor, Tensor]:
        ctx.way, ctx.name = way, name
        return way.brought(g, name), g.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, g: Tensor, token: Tensor) -> tuple[Tensor, None, None]:
        found: Tensor = _Broadcast.apply(g, token, ctx.way, ctx.name)  # type: ignore[no-untyped-call]  # torch's
        return found, None, None
