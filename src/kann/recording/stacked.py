"""One step of several recurrent layers on top of each other, whose states are side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kann.errors import KannError
from kann.recording.recurrent import RecurrentStep


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackedStep:
    """Recurrent layers as one function ``step(h, x)``, each of which reads what the one below gives in the same step.

    The state is that of all layers side by side, the lowest first: of an LSTM (h_0, c_0, h_1, c_1, …).
    """

    layers: Sequence[RecurrentStep]
    """The steps of the layers, the lowest first."""

    @property
    def dim(self) -> int:
        """The width d of the state."""
        return sum(layer.dim for layer in self.layers)

    @property
    def input_dim(self) -> int:
        """The width p of the input."""
        return self.layers[0].input_dim

    def __call__(self, h: Tensor, x: Tensor) -> Tensor:
        """The states after reading ``x``."""
        if h.shape[-1] != self.dim:
            widths = ", ".join(str(layer.dim) for layer in self.layers)
            raise KannError(
                f"the step takes states (n, {self.dim}), those of layers {widths} wide; got {tuple(h.shape)}"
            )
        states = []
        for layer, own in zip(self.layers, h.split([layer.dim for layer in self.layers], dim=-1), strict=True):
            states.append(layer(own, x))
            x = states[-1][..., : layer.output_dim]
        return torch.cat(states, dim=-1)

    def with_fixed_weights(self, like: Tensor) -> "StackedStep":
        """The same step with the weights of this moment, without gradients, as those of `RecurrentStep`."""
        return StackedStep(layers=[layer.with_fixed_weights(like) for layer in self.layers])
