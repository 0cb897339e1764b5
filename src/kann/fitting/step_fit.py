"""Fit a map for each step, or for a span of steps, with a ridge that is chosen on held-out sequences."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from kann.checks import require_number, require_whole_number
from kann.data.states import States, as_states
from kann.errors import FewPairsWarning, KannError
from kann.fitting.designs import Design, sum_of
from kann.fitting.folds import FEWEST_FOLDS, Together, assign_folds
from kann.fitting.repeats import repeats_of
from kann.fitting.ridge import ridge_curve, ridge_weights
from kann.fitting.step_maps import AffineMap
from kann.fitting.step_moments import StepMoments, Steps, length_of, step_moments
from kann.typing import Array, Float, Int

FOLDS = 5
"""A fifth of the sequences is held out to choose ridges."""

ALL_FOLDS_UP_TO = 64
"""Up to so many units every fifth is held out in turn; of more, one fifth is enough, and five would take five times as
long: a solve takes d³ operations, and there is one for each ridge and step."""

STEP_RIDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Ridges that are tried, for each pair of states, in units of the variance of each unit. With 1 a map is halfway
between the identity and what fits best, in directions of average variance."""


def fit_span(states: Any, first: int, last: int, *, ridge: int | float | None = None, groups: Any = None) -> AffineMap:
    """Fit one affine map to a span of steps: from the states before step ``first`` to those after step ``last``.

    Along depth it is one map in place of several layers. Where the ridge is large the map is the identity.

    >>> import numpy as np
    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> fit_span(states, 1, 2).matrix.round(6)
    array([[ 4., -0.],
           [-0.,  4.]])

    Parameters
    ----------
    states
        Sequences of one length, as `States`, an array (S, T, d) or the path of a store.
    first, last
        The first and the last step of the span, both included and counted from 0: step t leads from h[t] to h[t + 1].
    ridge
        Pulls the map towards the identity; counted for each pair of states, in units of the variance of each unit.
        Chosen on held-out sequences if None.
    groups
        For each sequence who it comes from, such as the text that a position is of: sequences of one group are held
        out together.
    """
    recorded = as_states(states)
    steps = length_of(recorded) - 1
    first = require_whole_number(first, "first", least=0, too_small="is before the first step")
    last = require_whole_number(last, "last", least=0, too_small="is before the first step")
    if not first <= last < steps:
        raise KannError(
            f"a span from step {first} to step {last} is none of {steps} steps; pass first <= last < {steps}"
        )
    (found,) = fit_steps(recorded, [(first, last + 1)], ridge=ridge, groups=groups)
    return found


def fit_steps(states: States, steps: Sequence[Steps], *, ridge: float | None, groups: Any) -> list[AffineMap]:
    """An affine map for each of these pairs of steps, all in one reading of the states."""
    require_ridge(ridge)
    fold_of, held_out = _folds(states, ridge=ridge, groups=groups)
    folds = step_moments(states, fold_of, steps)
    _warn_of_few(len(states), states.dim)
    return [_fit_step(folds, pair, ridge=ridge, held_out=held_out) for pair in steps]


def require_ridge(ridge: Any) -> None:
    """Refuse a ridge that is no number of at least 0; None is one that is chosen."""
    if ridge is not None:
        require_number(ridge, "ridge", remedy="pass ridge>=0")
        if not ridge >= 0:
            raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")


def _folds(states: States, *, ridge: float | None, groups: Any) -> tuple[Int[Array, " s"], int]:
    """The fold of each sequence, and how many folds are held out in turn to choose a ridge."""
    if ridge is not None:
        return np.zeros(len(states), dtype=int), 0
    repeats = repeats_of(states)
    available = Together.of(states.lengths, groups=groups, repeats=repeats).available
    if available < FEWEST_FOLDS:
        raise KannError(
            f"the ridge is chosen on held-out sequences, and {available} of two states or more are too few; pass "
            "ridge=1e-4, or more sequences"
        )
    count = min(FOLDS, available)
    folds = assign_folds(states.lengths, folds=count, groups=groups, repeats=repeats)
    if states.dim > ALL_FOLDS_UP_TO:
        return np.minimum(folds, 1), 1
    return folds, count


def _fit_step(folds: Sequence[StepMoments], steps: Steps, *, ridge: float | None, held_out: int) -> AffineMap:
    changes = [change_of(moments.design(steps)) for moments in folds]
    if ridge is None:
        ridge = ridge_curve(changes, held_out=held_out, ridges=STEP_RIDGES).chosen
    weights = map_weights(sum_of(changes), float(ridge))
    return AffineMap(matrix=weights[:-1], offset=weights[-1], ridge=float(ridge), first=steps[0], last=steps[1] - 1)


def change_of(design: Design) -> Design:
    """The regression of the change Y − X instead of Y, so that a ridge pulls towards the identity instead of zero."""
    rank = design.rank
    return Design(gram=design.gram, target=design.target - design.gram[:, :rank], total=design.change_gram())


def map_weights(change: Design, ridge: float) -> Float[Array, "q d"]:
    """The matrix and the offset, one below the other, from the regression of the change."""
    weights = ridge_weights(change, ridge)
    weights[:-1] += np.eye(change.rank)
    return weights


def _warn_of_few(sequences: int, units: int) -> None:
    """Warn of fewer sequences than a map has unknowns: then the ridge decides, and not the states."""
    if sequences <= units:
        warnings.warn(
            f"{sequences} sequences for {units + 1} unknowns in each column of a step's map: the ridge decides what "
            "the states leave open; pass more sequences",
            FewPairsWarning,
            stacklevel=4,
        )
