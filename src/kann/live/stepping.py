"""Run one layer of a fused recurrent module step by step, so that its state can be replaced after every step.

The kernels of ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` run all steps at once and hide them. Here the same weights are
used step by step, rounded as the kernels do. On a CPU, what many steps read is multiplied by its weights at once, as
the kernels do too; on a GPU torch's own cells are quicker, since each of them is a single launch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from kann.recording.kernels import Kernel
from kann.recording.recurrent import lstm_with_projection
from kann.typing import Float

Advance = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""One step of a layer: from what it reads, or what that adds to its gates, and its states to its next states."""

STEPS_AT_ONCE = 64
"""Steps whose inputs are multiplied by their weights at once; more need more memory, and are not quicker."""

Replace = Callable[[Tensor], Tensor]
"""From states (n, d) to the states that the network goes on with."""

CELLS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.gru: torch.gru_cell,
    torch.rnn_tanh: torch.rnn_tanh_cell,
    torch.rnn_relu: torch.rnn_relu_cell,
    torch.lstm: torch.lstm_cell,
}
"""One step of each kernel."""


def run_step_by_step(
    kernel: Kernel, replace: Replace, *, rule: Callable[..., Tensor], state: str, reverse: bool
) -> tuple[Tensor, ...]:
    """What the kernel of a single layer gives, (output, h) or (output, h, c), if its states are replaced on the way.

    ``rule`` is that of `RecurrentStep`. ``state`` says what is replaced: "h", "c" or "hc"; ``reverse`` in which
    direction. The other direction runs as always.
    """
    count, at = len(kernel.weights) // kernel.directions, int(reverse)
    weights = kernel.weights[at * count : (at + 1) * count]
    data = kernel.data
    if kernel.sizes is None:
        data = data.flatten(0, 1)  # a copy in order of time, where sequences came first
    steps = data.split(kernel.flat_sizes().tolist())
    if reverse:
        steps = steps[::-1]
    initial = tuple(part[at] for part in kernel.hidden)

    advance, read = _advance(kernel, weights), iter(steps)
    if not data.is_cuda:
        advance, read = _advance_from_gates(kernel, weights, rule), _input_gates(steps, weights, kernel.bias)

    def step(x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return replaced_states(advance(x, states), replace, state)

    outputs, ends = _walk(read, initial, step)
    if reverse:
        outputs = outputs[::-1]
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


def _input_gates(steps: Sequence[Float[Tensor, "_ p"]], weights: Sequence[Tensor], bias: bool) -> Iterator[Tensor]:
    """What the inputs of each step add to the gates, in the order of the steps."""
    own = None
    if bias:
        own = weights[2]
    for first in range(0, len(steps), STEPS_AT_ONCE):
        part = list(steps[first : first + STEPS_AT_ONCE])
        yield from linear(torch.cat(part), weights[0], own).split([len(x) for x in part])


def _advance_from_gates(kernel: Kernel, weights: Sequence[Tensor], rule: Callable[..., Tensor]) -> Advance:
    """One step of the layer from what its inputs add to the gates."""
    weight, bias, projection = weights[1], None, None
    if kernel.bias:
        bias = weights[3]
    if len(weights) > 2 + 2 * kernel.bias:
        projection = weights[-1]

    def advance(gates: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = states[0], None
        if len(states) > 1:
            c = states[1]
        after = rule(h, c, gates, linear(h, weight, bias), projection)
        if c is None:
            return (after,)
        return after.split([h.shape[-1], c.shape[-1]], dim=-1)

    return advance


def _advance(kernel: Kernel, weights: Sequence[Tensor]) -> Advance:
    """One step of the layer from its inputs, by torch's own cells."""
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
    read: Iterator[Float[Tensor, "_ p"]], initial: tuple[Float[Tensor, "b _"], ...], step: Advance
) -> tuple[list[Float[Tensor, "_ d"]], list[Float[Tensor, "b _"]]]:
    """The output h of every step as they are read, and the last states of every sequence.

    Sequences are sorted by length, so that each step holds the first ``n`` of them. Read from the end, the shorter ones
    begin later.
    """
    outputs: list[Tensor] = []
    finished: list[tuple[Tensor, ...]] = []
    states = tuple(part[:0] for part in initial)
    for x in read:
        running, known = len(x), len(states[0])
        if running < known:
            finished.append(tuple(part[running:] for part in states))
            states = tuple(part[:running] for part in states)
        elif running > known:
            states = tuple(torch.cat([part, first[known:running]]) for part, first in zip(states, initial, strict=True))
        states = step(x, states)
        outputs.append(states[0])
    finished.append(states)
    return outputs, [torch.cat(parts[::-1]) for parts in zip(*finished, strict=True)]
