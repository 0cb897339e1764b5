"""How far the linear operator can be trusted to stand for the network."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kann.analysis.predictors import Predictor, driving_inputs, predict_block, predict_cut
from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_instance, require_whole_number
from kann.data.blocks import Block, Cut
from kann.data.moments import refuse_not_finite
from kann.data.reduction import Total, accumulate
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float


def relative_error(koopman: Predictor, states: Any, reduce: str = "mean") -> float | Float[Array, " n"]:
    """The paper's e_rel: |predicted − true|² / |true|² of each state predicted from the one before, averaged.

    It is a ratio of squares, a fraction of energy: 0.01 means that states are missed by a tenth of their length. Where
    states move slowly it is small for any predictor: read it beside that of ``kann.copying``, which is passed in place
    of the operator, on sequences that were not fitted.

    >>> import kann
    >>> states = [np.array([[1.0, 0.0], [0.5, 0.0], [0.25, 0.0]])]
    >>> relative_error(kann.fit(states), states) < 1e-20, relative_error(kann.copying, states)
    (True, 1.0)

    With ``reduce="none"`` there is one number for each row of ``states.values``; the first state of a sequence, which
    nothing predicts, and states that are exactly zero have NaN, and are left out of the mean.
    """
    require_choice(reduce, "reduce", ("mean", "none"))
    states = as_states(states)
    driven = driving_inputs(koopman, states) is not None
    errors = partial(_errors_in_block, koopman), partial(_errors_at_cut, koopman)
    if reduce == "none":
        found = _per_state(accumulate(states, partial(Total, *errors), inputs=driven, what="errors"), states)
        if np.isinf(found).any():
            refuse_not_finite(states, inputs=driven)
        return found
    sums = partial(_sum_and_count, errors[0]), partial(_sum_and_count, errors[1])
    total, count = accumulate(states, partial(Total, *sums), inputs=driven, what="errors")
    if not np.isfinite(total):
        refuse_not_finite(states, inputs=driven)
    if not count:
        raise KannError("no state can be compared: every sequence has one step, or every state is zero")
    return float(total / count)


RowErrors = list[tuple[Array, Array]]
"""Rows among all states, and the errors of the states there; lists of several blocks are joined with ``+``."""


def _errors_in_block(koopman: Predictor, block: Block) -> RowErrors:
    true, predicted, is_pair = predict_block(koopman, block)
    return [(block.rows[1:][is_pair], _squared_errors(true, predicted)[is_pair])]


def _errors_at_cut(koopman: Predictor, cut: Cut) -> RowErrors:
    return [(cut.rows, _squared_errors(*predict_cut(koopman, cut)))]


def _squared_errors(true: AnyArray, predicted: AnyArray) -> Float[Array, " k"]:
    """|predicted − true|² / |true|² of each state, both in float64; NaN for states that are zero.

    An infinite error says that states are not finite, or that their squares are not.
    """
    missed, size = as_numpy(((predicted - true) ** 2).sum(-1)), as_numpy((true**2).sum(-1))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        errors = missed / size
    errors = np.where(np.isinf(errors), np.nan, errors)  # the state is zero, or as good as zero
    return np.where(np.isfinite(missed) & np.isfinite(size), errors, np.inf)


def _sum_and_count(errors_of: Callable[[Any], RowErrors], part: Block | Cut) -> Float[Array, "2"]:
    """Sum and count of the errors that are not NaN."""
    total = np.zeros(2)
    for _, errors in errors_of(part):
        total += np.nansum(errors), np.sum(~np.isnan(errors))
    return total


def _per_state(found: RowErrors, states: States) -> Float[Array, " n"]:
    """The error of each state, in its row; NaN where there is none."""
    errors = np.full(states.values.shape[0], np.nan)
    for rows, part in found:
        errors[rows] = part
    return errors


def hybrid(koopman: Predictor, states: Any, known: int) -> States:
    """The first ``known`` states of each sequence as they are, the rest rolled out from the last of them.

    With ``kann.copying`` in place of the operator the rest is the last of them again and again.

    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> rest = kann.hybrid(koopman, states, known=3)
    >>> bool(np.allclose(rest[0], states[0]))
    True
    """
    known = require_whole_number(known, "known", too_small="leaves no state to start from")
    states = as_states(states)
    drive = driving_inputs(koopman, states)
    sequences = []
    for i, h in enumerate(states):
        steps = len(h) - known
        if steps > 0:
            inputs = None
            if drive is not None:
                inputs = as_numpy(drive[states.span(i)])[known:]
            h = np.concatenate([h[:known], koopman.rollout(h[known - 1], steps, inputs=inputs)])
        sequences.append(h.astype(np.float64))
    inputs = states.inputs
    if inputs is not None:
        inputs = as_numpy(inputs)
    return States(values=np.concatenate(sequences), lengths=states.lengths, inputs=inputs, reverse=states.reverse)


def orthogonality(koopman: Koopman) -> float:
    """Distance of C from an orthogonal matrix: |CᵀC − I|² / |C|², as in the paper's appendix on the copy task.

    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> round(kann.orthogonality(koopman), 3)  # a rotation has 0
    0.565
    """
    require_instance(koopman, Koopman, "koopman")
    C = koopman.matrix
    return float(np.linalg.norm(C.T @ C - np.eye(len(C))) ** 2 / np.linalg.norm(C) ** 2)
