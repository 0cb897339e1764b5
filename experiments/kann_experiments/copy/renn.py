"""RENN, the baseline, on the copy task: fixed points of the network, and the network linearised about them."""

import math

import numpy as np
from torch import Tensor, nn

import kann
from kann.typing import Array, Float
from kann.zoo.copy_task import OrthogonalRNN
from kann_experiments.copy.task import BLANK, CopyNetwork, Task

SLOW_SPEED = 1e-6
"""Speed up to which a state is called slow."""

STARTS_PER_SEQUENCE = 4
"""Fixed points are searched from so many states of each sequence, evenly over the blanks."""


def find_points(
    network: CopyNetwork, x: Float[Tensor, "s t p"], task: Task
) -> tuple[kann.FixedPoints, kann.FixedPoints]:
    """Find the fixed points without any input, as in the paper, and those while blanks are read.

    Searches start from recorded states of the waiting time; without input also from the zero state, in which every
    sequence begins.
    """
    steps = task.digits + np.arange(STARTS_PER_SEQUENCE) * task.blanks // STARTS_PER_SEQUENCE
    states = full_states(network, x)  # (s, t, w)
    visited = states[:, steps].reshape(-1, states.shape[-1])  # (s * 4, w)
    with_zero = np.concatenate([np.zeros((1, visited.shape[1])), visited])
    blank = np.zeros(task.width)
    if not task.zero_blanks:  # a blank is then a character like the others
        blank[BLANK] = 1.0
    return _fixed_or_slowest(network, with_zero, np.zeros(task.width)), _fixed_or_slowest(network, visited, blank)


def _fixed_or_slowest(
    network: CopyNetwork, starts: Float[Array, "n w"], inputs: Float[Array, " p"]
) -> kann.FixedPoints:
    """Fixed and slow points, or the slowest states that searches ended at if there are none."""
    cell = cell_of(network)
    points = kann.find_fixed_points(cell, starts, inputs=inputs, slow_tolerance=SLOW_SPEED)
    if not len(points):
        points = kann.find_fixed_points(cell, starts, inputs=inputs, slow_tolerance=math.inf)
    return points


def cell_of(network: CopyNetwork) -> nn.Module:
    """The module that is the network's step F(h, x); torch's own recurrent layers are stepped by kann."""
    if isinstance(network.recurrent, OrthogonalRNN):
        return network.recurrent.cell
    return network.recurrent


def full_states(network: CopyNetwork, x: Float[Tensor, "s t p"]) -> Float[Array, "s t w"]:
    """All that the network carries from step to step: for an LSTM the outputs h and behind them the cells c."""
    kind = "h"
    if isinstance(network.recurrent, nn.LSTM):
        kind = "hc"
    states = kann.record(network, x, layer="recurrent", state=kind, progress=False)
    return states.padded().astype(np.float64)


def renn_states(
    points: kann.FixedPoints,
    true: Float[Array, "s t w"],
    inputs: Float[Array, "s t p"],
    known: int,
    *,
    at: int | None,
) -> Float[Array, "s t w"]:
    """The first ``known`` states as they are, and the others as the network linearised about a point predicts them.

    ``at`` is the number of that point; None takes the one nearest to the last known state.
    """
    steps = true.shape[1] - known
    if not steps:
        return true
    predicted = points.rollout(true[:, known - 1], steps, inputs=inputs[:, known:], at=at)
    return np.concatenate([true[:, :known], predicted], axis=1)


def identity_states(
    points: kann.FixedPoints, true: Float[Array, "s t w"], inputs: Float[Array, "s t p"], known: int
) -> Float[Array, "s t w"]:
    """The same with the recurrent Jacobian replaced by the identity, which the paper found it to be nearly."""
    pushes = inputs[:, known:] @ points.input_jacobians[0].T  # (s, t - known, w)
    predicted = true[:, known - 1 : known] + np.cumsum(pushes, axis=1)
    return np.concatenate([true[:, :known], predicted], axis=1)


def jacobian_in_basis(jacobian: Float[Array, "w w"], koopman: kann.Koopman) -> Float[Array, "r r"]:
    """A recurrent Jacobian in the operator's coordinates, BᵀJᵀB, to compare with C; of an LSTM the part for h.

    The Jacobian acts on columns and C on rows, hence the transpose.
    """
    d = koopman.dim
    return koopman.basis.T @ jacobian[:d, :d].T @ koopman.basis
