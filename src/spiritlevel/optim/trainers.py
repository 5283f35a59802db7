"""Training loops of other libraries: what works as it is, and what the Trainer of transformers needs.

Lightning calls closures, so `SAM` needs nothing more than to be returned, schedulers and ``gradient_clip_val`` included
(Lightning clips after each pass, which leaves the direction of the perturbation alone)::

    class Network(lightning.LightningModule):
        def configure_optimizers(self):
            base = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return SAM(base, rules.ASAM(rho=0.5), model=self)

With ``accumulate_grad_batches`` or 16-mixed precision it does not hand over what two passes need, and the step raises:
use ``automatic_optimization = False`` there, and ``sam.step([closure, ...])``.

The Trainer of transformers runs backward before it calls ``step()``. `SharpnessAware` adds the second pass, over all
micro-batches of a step::

    class SharpTrainer(SharpnessAware, transformers.Trainer): ...


    base = torch.optim.AdamW(model.parameters(), lr=5e-5)
    trainer = SharpTrainer(model, arguments, train_dataset=data, optimizers=(SAM(base, model=model), None))

Clipping, schedulers, accumulation, checkpoints and resuming are the Trainer's own. Without the mixin its first step
raises, rather than being a plain one.
"""

from __future__ import annotations

from typing import Any

from spiritlevel.errors import ArgumentError
from spiritlevel.optim.sam import SAM

__all__ = ["SharpnessAware"]


class SharpnessAware:
    """A mixin for ``transformers.Trainer`` that runs the second pass of `SAM`; put it before the Trainer.

    The micro-batches of one step are kept until the last of them, on the device they are on.
    """

    _replay: list[tuple[Any, Any]]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One micro-batch; at the last of a step, all of them once more at the perturbed weights."""
        sam = _sam_in(getattr(self, "optimizer", None))
        if not getattr(self, "_replay", None):
            self._replay = []
            sam.mark()
        self._replay.append((dict(inputs), num_items_in_batch))
        step = super().training_step  # type: ignore[misc]  # the Trainer's
        loss = step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:  # type: ignore[attr-defined]  # the Trainer's
            kept, self._replay = self._replay, []
            if sam.ascends:
                with sam.perturbed():
                    for again, count in kept:
                        step(model, again, count)
            else:
                sam.finish()  # before the Trainer clips
        return loss


def _sam_in(optimizer: Any) -> SAM:
    """The SAM inside the wrappers of accelerate."""
    while optimizer is not None and not isinstance(optimizer, SAM):
        optimizer = getattr(optimizer, "optimizer", None)
    if optimizer is None:
        raise ArgumentError("expected a SAM in Trainer(optimizers=(sam, scheduler)), got another optimizer")
    return optimizer
