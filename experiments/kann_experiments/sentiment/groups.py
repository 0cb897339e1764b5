"""The paper's two groups of leading modes: those that read out negative and those that read out positive."""

import itertools
from dataclasses import dataclass

import numpy as np

import kann
from kann.typing import Array, Float
from kann_experiments.sentiment.operators import LEADING, Readout


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Groups:
    """Two groups of leading modes, by the sign that the readout gives to their part of a state."""

    negative: tuple[int, ...]
    """Modes whose part of a state reads out negative."""
    positive: tuple[int, ...]
    """Modes whose part of a state reads out positive."""
    split: float
    """Fraction of reviews for which both is so: the paper's y12 < .5 and y34 > .5."""


def group_modes(koopman: kann.Koopman, last: Float[Array, "s d"], readout: Readout) -> Groups:
    """Split the leading modes into two groups so that one reads out negative and the other positive most often.

    As in the paper each group's part of the state is read out, bias included. Of splits that are equally good the one
    whose readouts differ most is taken.
    """
    modes = range(min(LEADING, len(koopman.modes)))
    # Reconstruction is linear, so the readout of a group is the sum of those of its modes, plus the bias once.
    logits = {j: kann.reconstruct(koopman, last, j) @ readout.weight[0] for j in modes}  # (s,) each
    # An operator of a single mode has nothing to split: its one mode is then in both groups.
    best = Groups(negative=(0,), positive=(0,), split=0.0)
    best_fraction, best_gap = -1.0, 0.0
    for size in range(1, len(modes)):
        for chosen in itertools.combinations(modes, size):
            others = tuple(j for j in modes if j not in chosen)
            low, high = (sum(logits[j] for j in group) + readout.bias[0] for group in (chosen, others))
            fraction = float(np.mean((low < 0) & (high > 0)))
            gap = float(np.mean(high - low))
            if (fraction, gap) > (best_fraction, best_gap):
                best_fraction, best_gap = fraction, gap
                best = Groups(negative=chosen, positive=others, split=fraction)
    return best
