"""How much each number that a network reads pushes its modes: a regression of pushes on inputs."""

import numpy as np

from kann.analysis.label_means import LabelMeans
from kann.analysis.pushes import Pushes
from kann.backends.arrays import as_numpy
from kann.data.reduction import take_rows
from kann.data.states import States
from kann.typing import Array, Float

GROUPS = 20
"""Groups of sequences that are left out in turn for the standard errors."""


def input_slopes(push: Float[Array, "n m"], pushes: Pushes, states: States) -> tuple[tuple[str, ...], LabelMeans]:
    """Pushes by one standard deviation of each input, the others unchanged; errors by a jackknife over sequences."""
    inputs = as_numpy(take_rows(states.inputs, pushes.rows)).astype(np.float64)
    spread = inputs.std(axis=0)
    varies = spread > 0
    scaled = np.zeros_like(inputs)
    scaled[:, varies] = (inputs[:, varies] - inputs[:, varies].mean(axis=0)) / spread[varies]
    rows = np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1)
    used, group = np.unique(pushes.sequences, return_inverse=True)
    groups = min(GROUPS, len(used))
    parts = [_products(rows[group % groups == g], push[group % groups == g]) for g in range(groups)]
    gram, target = np.sum([part[0] for part in parts], axis=0), np.sum([part[1] for part in parts], axis=0)
    slopes = _solve(gram, target)
    without = np.stack([_solve(gram - own_gram, target - own_target) for own_gram, own_target in parts])
    error = np.full_like(slopes, np.inf)
    if groups > 1:
        error = np.sqrt((groups - 1) / groups * np.square(without - without.mean(axis=0)).sum(axis=0))
    means = LabelMeans(
        mean=slopes,
        error=error,
        count=np.count_nonzero(inputs, axis=0),
        sequences=np.array([len(np.unique(pushes.sequences[column != 0])) for column in inputs.T]),
        freedom=np.full(inputs.shape[1], groups - 1),
    )
    return tuple(f"input {i}" for i in range(inputs.shape[1])), means


def _products(rows: Float[Array, "n q"], push: Float[Array, "n m"]) -> tuple[Float[Array, "q q"], Float[Array, "q m"]]:
    return rows.T @ rows, rows.T @ push


def _solve(gram: Float[Array, "q q"], target: Float[Array, "q m"]) -> Float[Array, "p m"]:
    """Least-squares slopes without the constant; the smallest ones where inputs depend on each other."""
    return np.linalg.lstsq(gram, target, rcond=None)[0][:-1]
