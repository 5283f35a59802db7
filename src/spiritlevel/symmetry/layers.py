"""Linear layers as factors: which axis of which parameter reads a channel, and which writes one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from spiritlevel.core.views import Factor, Piece
from spiritlevel.symmetry.adapters import join

__all__ = ["Layer", "layer_of"]


@dataclass(frozen=True)
class Layer:
    """A weight with one axis of inputs, one of outputs and perhaps further ones, and perhaps a bias.

    Attributes:
        name: of the module.
        weight: name and shape of the weight.
        inputs: axis of the inputs.
        outputs: axis of the outputs.
        bias: name of the bias, or None.
    """

    name: str
    weight: tuple[str, tuple[int, ...]]
    inputs: int
    outputs: int
    bias: str | None

    @property
    def width_in(self) -> int:
        """How many inputs it has."""
        return self.weight[1][self.inputs]

    @property
    def width_out(self) -> int:
        """How many outputs it has."""
        return self.weight[1][self.outputs]

    def _rest(self, axis: int) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.weight[1])) if i != axis)

    def reading(self, channels: int | None = None) -> Factor:
        """What reads each channel, (channels, rows, 1); inputs may be channels times places (after a flatten)."""
        name, shape = self.weight
        if channels in (None, self.width_in):
            return Factor((Piece(name, shape, (self.inputs,), self._rest(self.inputs), None),))
        assert channels is not None
        cut = (*shape[: self.inputs], channels, self.width_in // channels, *shape[self.inputs + 1 :])
        rows = tuple(i for i in range(len(cut)) if i != self.inputs)
        return Factor((Piece(name, cut, (self.inputs,), rows, None),))

    def writing(self) -> Factor:
        """What writes each channel, (channels, rows, 1), with the bias as one more row."""
        name, shape = self.weight
        pieces = [Piece(name, shape, (self.outputs,), self._rest(self.outputs), None)]
        if self.bias is not None:
            pieces.append(Piece(self.bias, (self.width_out,), (0,), (), None))
        return Factor(tuple(pieces))

    def columns_in(self) -> Factor:
        """The inputs as columns, (1, rows, inputs)."""
        name, shape = self.weight
        return Factor((Piece(name, shape, (), self._rest(self.inputs), self.inputs),))

    def columns_out(self, *, bias: bool = True) -> Factor:
        """The outputs as columns, (1, rows, outputs), with the bias as one more row."""
        name, shape = self.weight
        pieces = [Piece(name, shape, (), self._rest(self.outputs), self.outputs)]
        if bias and self.bias is not None:
            pieces.append(Piece(self.bias, (self.width_out,), (), (), 0))
        return Factor(tuple(pieces))

    def bias_rows(self) -> Factor:
        """The bias as rows, (1, outputs, 1)."""
        assert self.bias is not None
        return Factor((Piece(self.bias, (self.width_out,), (), (0,), None),))


def layer_of(name: str, module: nn.Module) -> Layer | None:
    """The layer that a module is: linear, transposed linear (Conv1D of transformers), convolution, fused attention."""
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None:
            return None
        shape = tuple(module.in_proj_weight.shape)
        fused = None if module.in_proj_bias is None else join(name, "in_proj_bias")
        return Layer(name, (join(name, "in_proj_weight"), shape), 1, 0, fused)
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or hasattr(module, "parametrizations"):
        return None
    full, shape = join(name, "weight"), tuple(weight.shape)
    bias = join(name, "bias") if isinstance(getattr(module, "bias", None), nn.Parameter) else None
    if isinstance(module, nn.Linear):
        return Layer(name, (full, shape), 1, 0, bias)
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.groups == 1:
        return Layer(name, (full, shape), 1, 0, bias)
    if type(module).__name__ == "Conv1D" and len(shape) == 2:  # transformers' own: no class of it in torch
        return Layer(name, (full, shape), 0, 1, bias)
    return None
