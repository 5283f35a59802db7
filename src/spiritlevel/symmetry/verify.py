"""Does a claimed symmetry hold on data?

Two tests. The moment map: a function that does not change along the orbit has a gradient orthogonal to every direction
that the group generates; one backward pass tells of all blocks and heads at once. And a finite move: the outputs stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.core.bare import bare
from spiritlevel.core.batches import tensors_in
from spiritlevel.core.blocks import Block
from spiritlevel.core.evaluation import forward, measurable
from spiritlevel.core.tensors import natural_dtype, norm
from spiritlevel.errors import ModelError, SymmetryError
from spiritlevel.symmetry.certificate import Certificate, Finding, Verdict
from spiritlevel.symmetry.orbit import moved
from spiritlevel.symmetry.trace import few_examples

__all__ = ["certify", "check_blocks", "verify_symmetries", "violations"]

Weights = Mapping[str, Tensor]
Loss = Callable[[Weights, Any], Tensor]

_STRENGTH = 0.5
_ALLOWED = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest relative output change taken for rounding. Exact symmetries drift by at most 3e-6 in float32 and, because
many models round to float32 inside, 3e-7 in float64; wrong claims by 0.1 and more (measured on 46 architectures)."""
_CLEAN = {torch.float64: 1e-10, torch.float32: 2e-6}
"""Moment maps below this are rounding and need no second look. Real MiniLM in float32: at most 8e-8."""
_SUSPECT = 1e-4
"""Moment maps above this do not hold, whatever the rounding inside; wrong pairings show at least 6e-3."""
_EPS = ("eps", "epsilon", "variance_epsilon", "layer_norm_eps")
_FACTOR = 100.0  # by which eps is scaled to see whether the violation follows
_CACHE: dict[str, Certificate] = {}
_CACHED = 256  # certificates kept


def verify_symmetries(model: nn.Module, batch: Any, blocks: Sequence[Block], seed: int = 0) -> Certificate:
    """Test every block by itself: moment map, and the largest relative change of an output under a random move.

    Rounding shows as 1e-15 to 1e-6, a symmetry that does not hold as 0.1 and more. Costs a forward and backward pass of
    the batch, and a forward pass for each block.

    Args:
        model: the model; it is not changed.
        batch: ``(inputs, targets)`` or a dict.
        blocks: from `find_symmetries`, or your own.
        seed: fixes the group elements.

    Returns:
        A `Certificate`: a mapping from block names to drifts that prints as a table.
    """
    return certify(model, batch, blocks, seed, each=True)


def certify(model: nn.Module, batch: Any, blocks: Sequence[Block], seed: int = 0, *, each: bool = False) -> Certificate:
    """The moment map of every block by one backward pass, then a move of all together; of each alone only if asked."""
    model = bare(model)
    began, weights = time.perf_counter(), measurable(model)
    allowed = _ALLOWED[natural_dtype(weights.values())]
    before = _outputs(model, weights, batch)
    moments, verdicts = violations(model, batch, blocks, seed)
    drifts: list[float | None] = [None] * len(blocks)
    if each:
        for i, block in enumerate(blocks):
            after = _outputs(model, {**weights, **moved(weights, [block], _STRENGTH, seed + i)}, batch)
            drifts[i] = _drift(before, after, block.kind == "classifier")
            if drifts[i] > allowed and verdicts[i] is Verdict.EXACT:  # type: ignore[operator]  # just set
                verdicts[i] = Verdict.BROKEN
    findings = tuple(
        Finding(b.name, b.kind, b.group, m, d, v) for b, m, d, v in zip(blocks, moments, drifts, verdicts, strict=True)
    )
    together = _outputs(model, {**weights, **moved(weights, blocks, _STRENGTH, seed)}, batch)
    drift = _drift(before, together, any(b.kind == "classifier" for b in blocks))
    return Certificate(findings, drift, allowed, time.perf_counter() - began)


def violations(
    model: nn.Module, batch: Any, blocks: Sequence[Block], seed: int = 0
) -> tuple[list[float], list[Verdict]]:
    """The relative moment map of each block, and what it says.

    Where it is neither rounding nor plainly wrong, the eps of all normalisations is scaled: a violation that follows
    comes from there.
    """
    if not blocks:
        return [], []
    clean = _CLEAN[natural_dtype(measurable(model).values())]
    moments = _moments(model, batch, blocks, seed)
    unclear = [i for i, m in enumerate(moments) if not m <= clean]
    verdicts = [Verdict.EXACT] * len(blocks)
    if not unclear:
        return moments, verdicts
    with _scaled_eps(model, _FACTOR):
        more = _moments(model, batch, blocks, seed)
    for i in unclear:
        follows = more[i] > _FACTOR**0.5 * moments[i]
        verdicts[i] = Verdict.EPS if follows else Verdict.BROKEN if not moments[i] <= _SUSPECT else Verdict.EXACT
    return moments, verdicts


def check_blocks(
    model: nn.Module, batch: Any, blocks: Sequence[Block], seed: int = 0, loss: Loss | None = None
) -> Certificate:
    """Refuse blocks that do not hold on a few examples; certificates are kept for weights tested before.

    Costs a forward and backward pass and two forward passes of at most four examples.

    Args:
        model: the model; it is not changed.
        batch: a batch of its data.
        blocks: what is claimed.
        seed: fixes the move.
        loss: of weights and a batch; shifts of a classifier are tested on it.
    """
    if not blocks:
        return Certificate((), 0.0, 0.0, 0.0)
    few, weights = few_examples(batch), measurable(model)
    key = _fingerprint(model, weights, blocks, seed)
    if key not in _CACHE:
        found = certify(model, few, blocks, seed)
        if not found.holds:
            raise _refused(found if found.drift <= found.allowed else certify(model, few, blocks, seed, each=True))
        while len(_CACHE) >= _CACHED:
            _CACHE.pop(next(iter(_CACHE)))
        _CACHE[key] = replace(found, cached=True)
    else:
        found = _CACHE[key]
    if loss is not None:
        _check_loss(loss, weights, few, [b for b in blocks if b.kind == "classifier"], seed)
    return found


def _refused(found: Certificate) -> SymmetryError:
    """The error that names the worst block."""
    order = list(Verdict)
    worst = max(found.findings, key=lambda f: (order.index(f.verdict), f.drift or 0.0, f.moment))
    leave = "leave that block out with Quotient(blocks=[b for b in find_symmetries(model) if b.name != ...])"
    if worst.verdict is Verdict.EPS:
        return SymmetryError(
            f"expected exact symmetries, but {worst.name!r} holds only but for the eps of a normalisation (moment map "
            f"{worst.moment:.2g}, following eps): {leave}"
        )
    drift = found.drift if worst.drift is None else worst.drift
    return SymmetryError(
        f"expected the model's output to stay within {found.allowed:g} along the orbit of every block, but it changes "
        f"by {drift:.2g} along {worst.name!r} ({found.drift:.2g} along all together; moment map {worst.moment:.2g}): "
        f"{leave}"
    )


def _check_loss(loss: Loss, weights: Weights, batch: Any, blocks: Sequence[Block], seed: int) -> None:
    """Shifts of all scores are seen by every loss but those behind a softmax."""
    if not blocks:
        return
    with torch.no_grad():
        before = float(loss(weights, batch))
        after = float(loss({**weights, **moved(weights, blocks, _STRENGTH, seed)}, batch))
    allowed = _ALLOWED[natural_dtype(weights.values())]
    if not abs(after - before) <= allowed * max(abs(before), 1.0):
        raise SymmetryError(
            f"expected a loss that does not see a common shift of all scores, but it changes from {before:.6g} to "
            f"{after:.6g} along {blocks[0].name!r}: leave the kind 'classifier' out unless the loss is a cross-entropy"
        )


def _moments(model: nn.Module, batch: Any, blocks: Sequence[Block], seed: int) -> list[float]:
    """The moment map of a random projection of the outputs, relative, for each block."""
    weights = measurable(model)
    needed = [n for n in weights if any(n in b.parameters for b in blocks)]
    moving = {n: weights[n].requires_grad_() for n in needed}  # detached already: nobody else's tensor is touched
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        total = torch.zeros((), device=next(iter(weights.values())).device, dtype=torch.float64)
        for t in _floats(forward(model, {**weights, **moving}, batch)):
            noise = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device)
            if any(b.kind == "classifier" for b in blocks):
                noise = noise - noise.mean(-1, keepdim=True)
            total = total + (t.double() * noise).sum() / max(t.numel(), 1) ** 0.5
        pulled = torch.autograd.grad(total, list(moving.values()), materialize_grads=True, allow_unused=True)
    gradients = dict(zip(moving, pulled, strict=True))
    still = {n: w.detach() for n, w in weights.items()}
    lengths = {n: (norm(still[n]), norm(g)) for n, g in gradients.items()}
    return [b.violation(still, gradients, lengths) for b in blocks]


@contextlib.contextmanager
def _scaled_eps(model: nn.Module, factor: float) -> Iterator[None]:
    """The eps of every normalisation times a factor, and back again whatever happens."""
    held = [
        (m, a, getattr(m, a)) for m in model.modules() for a in _EPS if isinstance(getattr(m, a, None), int | float)
    ]
    try:
        for m, a, value in held:
            setattr(m, a, value * factor)
        yield
    finally:
        for m, a, value in held:
            setattr(m, a, value)


def _fingerprint(model: nn.Module, weights: Weights, blocks: Sequence[Block], seed: int) -> str:
    """Of architecture, weights and claims."""
    digest = hashlib.blake2b(f"{model}{[(b.name, b.group, b.parameters) for b in blocks]}{seed}".encode())
    for name, w in weights.items():
        digest.update(f"{name}{tuple(w.shape)}{w.dtype}".encode())
        if hasattr(torch, "hash_tensor"):
            digest.update(str(torch.hash_tensor(w).view(torch.int64).item()).encode())
        else:  # older than torch 2.9
            digest.update(w.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _floats(output: Any) -> list[Tensor]:
    """All floating tensors a model returns, but for caches and the loss."""
    if isinstance(output, Mapping):
        output = {k: v for k, v in output.items() if k not in ("past_key_values", "loss")}
    found = [t for t in tensors_in(output) if t.is_floating_point()]
    if not found:
        raise ModelError(f"expected tensors in the model's output, got {type(output).__name__}")
    return found


def drift_along(
    output: Callable[[Weights, Any], Any], weights: Weights, blocks: Sequence[Block], batch: Any, seed: int = 0
) -> float:
    """The change of an output along the orbits of all blocks together, relative to its largest entry."""
    with torch.no_grad():
        before = _floats(output(weights, batch))
        after = _floats(output({**weights, **moved(weights, blocks, _STRENGTH, seed)}, batch))
    return _drift(before, after)


def allowed_drift(dtype: torch.dtype) -> float:
    """How much an output may change by rounding."""
    return _ALLOWED[dtype]


def _outputs(model: nn.Module, weights: Weights, batch: Any) -> list[Tensor]:
    with torch.no_grad():
        return _floats(forward(model, weights, batch))


def _drift(before: Sequence[Tensor], after: Sequence[Tensor], centred: bool = False) -> float:
    """Largest change over the largest entry, over all outputs; infinite where something is not finite."""
    drift = 0.0
    for x, y in zip(before, after, strict=True):
        if x.numel():
            difference = x - y
            if centred:  # a common shift of all scores is none to a softmax
                difference = difference - difference.mean(-1, keepdim=True)
            change = float(difference.abs().max() / x.abs().max().clamp_min(torch.finfo(x.dtype).tiny))
            drift = max(drift, change if change == change else float("inf"))
    return drift
