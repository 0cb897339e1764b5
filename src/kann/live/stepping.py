"""Run one layer of a fused recurrent module step by step, so that its state can be replaced after every step.

The kernels of ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` run all steps at once and hide them. Here the same weights are
given to torch's own cells, which round as the kernels do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kann.recording.kernels import Kernel
from kann.recording.recurrent import lstm_with_projection
from kann.typing import Float

Replace = Callable[[Tensor], Tensor]
"""From states (n, d) to the states that the network goes on with."""

CELLS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.gru: torch.gru_cell,
    torch.rnn_tanh: torch.rnn_tanh_cell,
    torch.rnn_relu: torch.rnn_relu_cell,
    torch.lstm: torch.lstm_cell,
}
"""One step of each kernel."""


def run_step_by_step(kernel: Kernel, replace: Replace, *, state: str, reverse: bool) -> tuple[Tensor, ...]:
    """What the kernel of a single layer gives, (output, h) or (output, h, c), if its states are replaced on the way.

    ``state`` says which: "h", "c" or "hc"; ``reverse`` in which direction. The other direction runs as always.
    """
    count, at = len(kernel.weights) // kernel.directions, int(reverse)
    advance = _advance(kernel, kernel.weights[at * count : (at + 1) * count])
    data = kernel.data
    if kernel.sizes is None:
        data = data.flatten(0, 1)  # a copy in order of time, where sequences came first
    steps = data.split(kernel.flat_sizes().tolist())
    initial = tuple(part[at] for part in kernel.hidden)

    def step(x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return replaced_states(advance(x, states), replace, state)

    outputs, ends = _walk(steps, initial, step, reverse=reverse)
    output = torch.cat(outputs).unflatten(0, kernel.data.shape[:-1])
    if kernel.directions == 1:
        return output, *(end[None] for end in ends)
    whole, *hidden = kernel.run()
    both = torch.cat(_with_half(whole.chunk(2, dim=-1), at, output), dim=-1)
    return both, *(torch.stack(_with_half(part, at, end)) for part, end in zip(hidden, ends, strict=True))


def _with_half(halves: Sequence[Tensor] | Tensor, at: int, half: Tensor) -> list[Tensor]:
    """The results of two directions, with that of one of them replaced."""
    results = list(halves)
    results[at] = half
    return results


def _advance(kernel: Kernel, weights: Sequence[Tensor]) -> Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """One step of the layer: from what it reads and its states to its next states."""
    cell = CELLS[kernel.function]
    if kernel.function is not torch.lstm:
        return lambda x, states: (cell(x, states[0], *weights),)
    if len(weights) == 2 + 2 * kernel.bias:
        return lambda x, states: cell(x, states, *weights)
    return lambda x, states: lstm_with_projection(x, states[0], states[1], weights)


def replaced_states(states: tuple[Tensor, ...], replace: Replace, state: str) -> tuple[Tensor, ...]:
    """The states (h,) or (h, c) with those that ``state`` names replaced, side by side if it names both."""
    if state == "h":
        return replace(states[0]), *states[1:]
    if state == "c":
        return states[0], replace(states[1])
    both = replace(torch.cat(states, dim=-1))
    return both.split([part.shape[-1] for part in states], dim=-1)


def _walk(
    steps: Sequence[Float[Tensor, "_ p"]],
    initial: tuple[Float[Tensor, "b _"], ...],
    step: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]],
    *,
    reverse: bool,
) -> tuple[list[Float[Tensor, "_ d"]], list[Float[Tensor, "b _"]]]:
    """The output h of every step in order of time, and the last states of every sequence.

    Sequences are sorted by length, so that each step holds the first ``n`` of them. Read from the end, the shorter ones
    begin later.
    """
    order = range(len(steps))
    if reverse:
        order = order[::-1]
    outputs: list[Tensor] = [steps[0]] * len(steps)
    finished: list[tuple[Tensor, ...]] = []
    states = tuple(part[: len(steps[order[0]])] for part in initial)
    for at in order:
        running, known = len(steps[at]), len(states[0])
        if running < known:
            finished.append(tuple(part[running:] for part in states))
            states = tuple(part[:running] for part in states)
        elif running > known:
            states = tuple(torch.cat([part, first[known:running]]) for part, first in zip(states, initial, strict=True))
        states = step(steps[at], states)
        outputs[at] = states[0]
    finished.append(states)
    return outputs, [torch.cat(parts[::-1]) for parts in zip(*finished, strict=True)]
