"""Every layer, direction and cell state of torch's fused recurrent modules.

``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` run all their layers in one call of a kernel that gives the last layer's h alone.
To record more than that, the kernel is called once for each layer with the layer's own weights, which is the same work.
The cell states follow from the h of all steps: the gates of all steps are one matrix product, and only c = f c + i g is
left to be computed step by step.
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
from kann.recording.recurrent import lstm_gates
from kann.typing import Array, Float, Int

KERNELS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""The functions that ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` call: one call runs all layers over all steps."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kernel:
    """One call of a fused kernel."""

    function: Callable[..., Any]
    """Which of `KERNELS`."""
    data: Float[Tensor, "t b p"] | Float[Tensor, "n p"]
    """What it reads, in order of time: padded, or packed."""
    sizes: Tensor | None
    """Batch sizes of packed data; None for padded data."""
    order: Int[Array, " b"] | None
    """The place of each sequence of the batch among the packed ones; None if they are in the batch's order."""
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
        """Read the arguments of a call.

        There are two forms: (data, hidden, weights, bias, …, batch_first) for padded data, and
        (data, batch_sizes, hidden, weights, bias, …) for packed data.
        """
        data, sizes, options = args[0], None, args[1:8]
        if not isinstance(args[3], bool):
            sizes, options = args[1], args[2:9]
        elif args[8]:
            data = data.transpose(0, 1)
        hidden, weights, bias, layers, drop, training, bidirectional = options
        if isinstance(hidden, Tensor):
            hidden = (hidden,)
        return Kernel(
            function=function,
            data=data,
            sizes=sizes,
            order=order,
            hidden=tuple(hidden),
            weights=weights,
            bias=bias,
            layers=layers,
            dropout=drop,
            training=training,
            directions=1 + bidirectional,
        )

    def at(self, level: int) -> "Kernel":
        """The same call for one layer alone.

        Its ``data`` is still what the first layer reads; replace it with the output of the layer below.
        """
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
        hidden: Any = self.hidden
        if self.function is not torch.lstm:
            (hidden,) = self.hidden
        options = (self.weights, self.bias, self.layers, self.dropout, self.training, self.directions == 2)
        if self.sizes is None:
            return self.function(self.data, hidden, *options, False)
        return self.function(self.data, self.sizes, hidden, *options)

    def packed(self, real: RealSteps) -> "Kernel":
        """The same call on the sequences packed, so that the kernel does not read their padding."""
        packed = pack_padded_sequence(self.data, torch.from_numpy(real.lengths), enforce_sorted=False)
        by_length = packed.sorted_indices
        return replace(
            self,
            data=packed.data,
            sizes=packed.batch_sizes,
            order=packed.unsorted_indices.cpu().numpy(),  # type: ignore[union-attr]
            hidden=tuple(part.index_select(1, by_length) for part in self.hidden),  # type: ignore[arg-type]
        )

    def flat_sizes(self) -> Int[Array, " t"]:
        """How many sequences have not yet ended at each step."""
        if self.sizes is not None:
            return self.sizes.numpy()
        return np.full(self.data.shape[0], self.data.shape[1])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pass:
    """What one layer read and gave, in all its directions."""

    kernel: Kernel
    """The call of this layer alone, with what it read."""
    output: Tensor
    """h of all steps, the directions side by side; shaped as what was read."""
    replaced: Tensor | None = None
    """What forward hooks of the user made of ``output``, in the same shape; None if there are none."""

    def h(self, *, reverse: bool) -> Tensor:
        """The states of one direction, as the kernel gave them."""
        return self.output.chunk(self.kernel.directions, dim=-1)[int(reverse)]

    def c(self, *, reverse: bool) -> Tensor:
        """The cell states of one direction of an LSTM."""
        kernel, at = self.kernel, int(reverse)
        count = len(kernel.weights) // kernel.directions
        c = cell_states(
            _flat(kernel.data),
            _flat(self.h(reverse=reverse)),
            initial=(kernel.hidden[0][at], kernel.hidden[1][at]),
            weights=kernel.weights[at * count : (at + 1) * count],
            has_bias=kernel.bias,
            sizes=kernel.flat_sizes(),
            reverse=reverse,
        )
        return c.reshape(*self.output.shape[:-1], -1)

    def states(self, state: str, *, reverse: bool) -> Tensor:
        """What ``state`` names: "h" as hooks may have changed it, "c", or "hc" for both side by side."""
        parts = [self._state(part, reverse=reverse) for part in state]
        if len(parts) == 1:  # torch.cat would copy it
            return parts[0]
        return torch.cat(parts, dim=-1)

    def _state(self, part: str, *, reverse: bool) -> Tensor:
        if part == "c":
            return self.c(reverse=reverse)
        if self.replaced is not None:
            return replace(self, output=self.replaced).h(reverse=reverse)
        return self.h(reverse=reverse)

    def initial(self, state: str, *, reverse: bool) -> Float[Tensor, "b d"]:
        """The state that ``state`` names before the first step."""
        return torch.cat([self.kernel.hidden["hc".index(part)][int(reverse)] for part in state], dim=-1)


def _flat(values: Tensor) -> Float[Tensor, "n d"]:
    return values.reshape(-1, values.shape[-1])


def cell_states(
    x: Float[Tensor, "n p"],
    h: Float[Tensor, "n o"],
    *,
    initial: tuple[Float[Tensor, "b o"], Float[Tensor, "b d"]],
    weights: Sequence[Tensor],
    has_bias: bool,
    sizes: Int[Array, " t"],
    reverse: bool,
) -> Float[Tensor, "n d"]:
    """Every c of an LSTM layer from what it read and from every h that it gave, both in order of time.

    c_t = f_t c_{t−1} + i_t g_t, where the gates are those of x_t and h_{t−1}. The output gate, and the projection if
    there is one, lie between c and h and are not needed.
    """
    precise = torch.promote_types(x.dtype, torch.float32)  # half precision would lose more here than in the network
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        c0 = initial[1].to(precise)
        width = c0.shape[1]
        # Three quarters of the rows of each weight are those of the gates i, f and g; the last quarter is that of o.
        weight_ih, weight_hh, *biases = (weight[: 3 * width].to(precise) for weight in weights[: 2 + 2 * has_bias])
        before = torch.from_numpy(previous_places(sizes, reverse=reverse)).to(x.device)
        h_before = torch.cat([initial[0], h]).to(precise)[before]
        bias = None
        if has_bias:
            bias = biases[0] + biases[1]
        sums = linear(x.to(precise), weight_ih, bias).addmm_(h_before, weight_hh.T)
        i, f, g = lstm_gates(sums.split(width, dim=1), in_place=True)
        c = i * g
        _scan(c, f, c0, sizes.tolist(), reverse=reverse)
    return c.to(h.dtype)


def _scan(added: Tensor, forget: Tensor, initial: Tensor, sizes: Sequence[int], *, reverse: bool) -> None:
    """Make c_t = f_t c_{t−1} + i_t g_t of the products i_t g_t, in place and in order of time."""
    steps = list(zip(added.split(sizes), forget.split(sizes), strict=True))
    if reverse:
        steps.reverse()
    before = initial
    for c, f in steps:
        if len(before) < len(c):  # read from the end, shorter sequences start later
            before = torch.cat([before, initial[len(before) : len(c)]])
        before = c.addcmul_(f, before[: len(c)])


def run_layers(
    kernel: Kernel, run_layer: Callable[[int, Kernel], tuple[Tensor, ...]] = lambda _, single: single.run()
) -> tuple[tuple[Tensor, ...], list[Pass]]:
    """Run a call layer by layer; its result, and what each layer read and gave.

    ``run_layer(level, single)`` runs one layer in place of its kernel.
    """
    data, output, passes, ends = kernel.data, kernel.data, [], []
    for level in range(kernel.layers):
        single = replace(kernel.at(level), data=data)
        output, *hidden = run_layer(level, single)
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
        if func in KERNELS:
            return self._handle(func, args)
        return func(*args, **(kwargs or {}))
