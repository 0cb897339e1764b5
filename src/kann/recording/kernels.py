"""Every layer, direction and cell state of torch's fused recurrent modules.

``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` run all their layers in one call of a kernel that gives the last layer's h alone.
Where more is wanted, that call is made once for each layer with the layer's own weights, which is the same work. The
cell states follow from the h of all steps: the gates of all steps are one matrix product, and only c = f c + i g is
left to be done in order of time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode

from kann.recording.ragged import RealSteps, previous_places
from kann.typing import Array, Float, Int

KERNELS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""What the fused modules call."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kernel:
    """One call of a fused kernel."""

    function: Callable[..., Any]
    """Which kernel."""
    data: Float[Tensor, "t b p"] | Float[Tensor, "n p"]
    """What it reads, in order of time: padded, or packed."""
    sizes: Tensor | None
    """Batch sizes of packed data."""
    order: Int[Array, " b"] | None
    """Where each sequence of the batch stands among the packed ones."""
    hidden: tuple[Float[Tensor, "l b _"], ...]
    """Initial states of all layers and directions: (h,), or (h, c) of an LSTM."""
    weights: Sequence[Tensor]
    """All parameters, as torch orders them."""
    bias: bool
    """Whether there are biases among them."""
    layers: int
    """How many layers."""
    dropout: float
    """Between layers, while training."""
    training: bool
    """Whether the module is training."""
    directions: int
    """1, or 2 if bidirectional."""

    @staticmethod
    def of(function: Callable[..., Any], args: Sequence[Any], order: Int[Array, " b"] | None) -> "Kernel":
        """Read the arguments of a call, of which there are two forms."""
        sizes = None if isinstance(args[3], bool) else args[1]
        data, (hidden, weights, bias, layers, drop, training, both) = args[0], args[1:8] if sizes is None else args[2:9]
        if sizes is None and args[8]:  # batch_first
            data = data.transpose(0, 1)
        return Kernel(
            function=function,
            data=data,
            sizes=sizes,
            order=order,
            hidden=(hidden,) if isinstance(hidden, Tensor) else tuple(hidden),
            weights=weights,
            bias=bias,
            layers=layers,
            dropout=drop,
            training=training,
            directions=2 if both else 1,
        )

    def at(self, level: int) -> "Kernel":
        """The same call for one layer; what it reads is that of the whole until it is replaced."""
        if self.layers == 1:
            return self
        count, at = len(self.weights) // self.layers, slice(level * self.directions, (level + 1) * self.directions)
        return replace(
            self,
            hidden=tuple(part[at] for part in self.hidden),
            weights=self.weights[level * count : (level + 1) * count],
            layers=1,
            dropout=0.0,
        )

    def run(self) -> tuple[Tensor, ...]:
        """Call the kernel."""
        hidden = self.hidden if self.function is torch.lstm else self.hidden[0]
        options = (self.weights, self.bias, self.layers, self.dropout, self.training, self.directions == 2)
        if self.sizes is None:
            return self.function(self.data, hidden, *options, False)
        return self.function(self.data, self.sizes, hidden, *options)

    def packed(self, span: RealSteps) -> "Kernel":
        """The same call without padding."""
        packed = pack_padded_sequence(self.data, torch.from_numpy(span.lengths), enforce_sorted=False)
        at = packed.sorted_indices
        return replace(
            self,
            data=packed.data,
            sizes=packed.batch_sizes,
            order=packed.unsorted_indices.cpu().numpy(),  # type: ignore[union-attr]
            hidden=tuple(part.index_select(1, at) for part in self.hidden),  # type: ignore[arg-type]
        )

    def flat_sizes(self) -> Int[Array, " t"]:
        """How many sequences there are at each step."""
        if self.sizes is not None:
            return self.sizes.numpy()
        return np.full(self.data.shape[0], self.data.shape[1])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pass:
    """What went through one layer, in all its directions."""

    kernel: Kernel
    """The call of this layer alone, with what it read."""
    output: Tensor
    """h of all steps, the directions side by side; shaped as what was read."""

    def h(self, *, reverse: bool) -> Tensor:
        """The states of one direction."""
        one = self.kernel.directions == 1
        return self.output if one else self.output.chunk(self.kernel.directions, dim=-1)[int(reverse)]

    def c(self, *, reverse: bool) -> Tensor:
        """The cell states of one direction of an LSTM."""
        kernel, at = self.kernel, int(reverse)
        count = len(kernel.weights) // kernel.directions
        c = cell_states(
            _flat(kernel.data),
            _flat(self.h(reverse=reverse)),
            initial=(kernel.hidden[0][at], kernel.hidden[1][at]),
            weights=kernel.weights[at * count : (at + 1) * count],
            bias=kernel.bias,
            sizes=kernel.flat_sizes(),
            reverse=reverse,
        )
        return c.reshape(*self.output.shape[:-1], -1)

    def states(self, state: str, *, reverse: bool) -> Tensor:
        """h, c, or both side by side."""
        parts = [getattr(self, part)(reverse=reverse) for part in state]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def initial(self, state: str, *, reverse: bool) -> Float[Tensor, "b d"]:
        """The initial h, c, or both side by side."""
        return torch.cat([self.kernel.hidden["hc".index(part)][int(reverse)] for part in state], dim=-1)


def _flat(values: Tensor) -> Float[Tensor, "n d"]:
    return values.reshape(-1, values.shape[-1])


def cell_states(
    x: Float[Tensor, "n p"],
    h: Float[Tensor, "n o"],
    *,
    initial: tuple[Float[Tensor, "b o"], Float[Tensor, "b d"]],
    weights: Sequence[Tensor],
    bias: bool,
    sizes: Int[Array, " t"],
    reverse: bool,
) -> Float[Tensor, "n d"]:
    """Every c of an LSTM layer from what it read and from every h that it gave, both in order of time.

    c_t = f_t c_{t−1} + i_t g_t, where the gates are those of x_t and h_{t−1}. The output gate, and the projection if
    there is one, lie between c and h and are not needed.
    """
    precise = torch.promote_types(x.dtype, torch.float32)  # half precision would lose more here than in the network
    with torch.autocast(x.device.type, enabled=False):
        c0 = initial[1].to(precise)
        width = c0.shape[1]
        into, across, *offsets = (weight[: 3 * width].to(precise) for weight in weights[: 4 if bias else 2])
        before = torch.from_numpy(previous_places(sizes, reverse=reverse)).to(x.device)
        earlier = torch.cat([initial[0], h]).to(precise)[before]
        gates = linear(x.to(precise), into, offsets[0] + offsets[1] if bias else None).addmm_(earlier, across.T)
        gates[:, : 2 * width].sigmoid_()
        i, f, g = gates.split(width, dim=1)
        c = i * g.tanh_()
        _scan(c, f, c0, sizes.tolist(), reverse=reverse)
    return c.to(h.dtype)


def _scan(c: Tensor, f: Tensor, initial: Tensor, sizes: Sequence[int], *, reverse: bool) -> None:
    """Add f_t c_{t−1} to each c_t, in order of time."""
    steps = list(zip(c.split(sizes), f.split(sizes), strict=True))
    before = initial
    for now, forget in reversed(steps) if reverse else steps:
        if len(before) < len(now):  # read from the end, shorter sequences start later
            before = torch.cat([before, initial[len(before) : len(now)]])
        before = now.addcmul_(forget, before[: len(now)])


def run_layers(kernel: Kernel) -> tuple[tuple[Tensor, ...], list[Pass]]:
    """Run layer by layer: the result of the whole, and what went through each layer."""
    data, output, passes, ends = kernel.data, kernel.data, [], []
    for level in range(kernel.layers):
        single = replace(kernel.at(level), data=data)
        output, *hidden = single.run()
        passes.append(Pass(kernel=single, output=output))
        ends.append(hidden)
        data = output
        if kernel.training and kernel.dropout and level < kernel.layers - 1:
            data = dropout(output, kernel.dropout)
    return (output, *(torch.cat(parts) for parts in zip(*ends, strict=True))), passes


class Intercept(TorchFunctionMode):
    """Hand every call of a fused kernel to ``handle(function, args)``, which returns its result."""

    def __init__(self, handle: Callable[[Callable[..., Any], Sequence[Any]], Any]):
        super().__init__()
        self._handle = handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handle(func, args) if func in KERNELS else func(*args, **(kwargs or {}))
