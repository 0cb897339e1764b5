"""What is recalled if a small operator takes the network's place from the first character on.

Three kinds, each of several sizes: characters gate it, so that each has a matrix of its own; the same with products of
coordinates; and characters only push it. All are fitted to one half of the sequences and judged on the other half.
"""

import numpy as np
import torch
from torch import nn

import kann
from kann_experiments.copy.held_out import recalled_digits
from kann_experiments.copy.task import HALVES, CopyNetwork, Task
from kann_experiments.results import Quantity
from kann_experiments.stand_in_kinds import KINDS, operators_of
from kann_experiments.training import generator

COORDINATES = (8, 16, 24, 32)
"""How many coordinates the operators have."""

FEWEST_SEQUENCES = 64
"""A task with fewer sequences in all is too small for halves of it to be fitted and judged."""


def stand_in_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `stand_in_numbers`."""
    rows = []
    for count in COORDINATES:
        what = f"{count} coordinates in place of the network, "
        for name, kind in KINDS.items():
            text = f"{what}characters {kind}: digits recalled"
            rows.append(Quantity(key=f"{name}_{count}_recall", what=text, format="percent"))
            what = "    "
    return tuple(rows)


def stand_in_numbers(network: CopyNetwork, task: Task, *, seed: int) -> dict[str, float]:
    """The fraction of digits that operators recall in place of the network; nothing where the task is too small."""
    every = task.every()
    if len(every) < FEWEST_SEQUENCES:
        return {}
    order, half = generator(seed, HALVES).permutation(len(every)), len(every) // 2
    fitted, _ = task.sequences(every[np.sort(order[:half])])
    judged, answer = task.sequences(every[np.sort(order[half:])])
    states = _record(network, fitted)
    numbers = {}
    for count in COORDINATES:
        if count > states.dim:
            continue
        for name, koopman in operators_of(states, count).items():
            simulated = koopman.simulate(judged.numpy().astype(np.float64))  # (s, t, d)
            recall = recalled_digits(network, simulated, answer[:, -task.digits :])
            numbers[f"{name}_{count}_recall"] = float(recall.mean())
    return numbers


def _record(network: CopyNetwork, x: torch.Tensor) -> kann.States:
    """States from zero on, of an LSTM h and c together, with the characters that were read."""
    state = "h"
    if isinstance(network.recurrent, nn.LSTM):
        state = "hc"
    recorded = kann.record(network, x, layer="recurrent", state=state, progress=False).padded()  # (s, t, d)
    # The network starts from zero, reading nothing. The orthogonal layer cannot be asked for that state.
    states, read = (np.pad(each, ((0, 0), (1, 0), (0, 0))) for each in (recorded, x.numpy()))
    return kann.States.from_padded(states, inputs=read)
