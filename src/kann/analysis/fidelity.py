"""How far the linear operator can be trusted to stand for the network."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kann.analysis.decisions import Readout, decide, read_out
from kann.backends.arrays import as_numpy, as_operand
from kann.checks import require_choice, require_instance, require_whole_number, require_width
from kann.data.blocks import Block, Cut
from kann.data.moments import refuse_not_finite
from kann.data.reduction import Total, accumulate, take_rows
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float


def relative_error(koopman: Koopman, states: Any, reduce: str = "mean") -> float | Float[Array, " n"]:
    """The paper's e_rel: |predicted − true|² / |true|² of each state predicted from the one before, averaged.

    It is a ratio of squares, a fraction of energy: 0.01 means that states are missed by a tenth of their length.
    With ``reduce="none"`` there is one number for each row of ``states.values``; the first state of a sequence, which
    nothing predicts, and states that are exactly zero have NaN, and are left out of the mean.
    """
    require_choice(reduce, "reduce", ("mean", "none"))
    states = as_states(states)
    driven = _inputs(koopman, states) is not None
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


def _errors_in_block(koopman: Koopman, block: Block) -> RowErrors:
    """The errors of all states in a block but those that begin a sequence, or a piece of one."""
    h, inputs = as_operand(block.values), None
    if block.inputs is not None:
        inputs = block.inputs[1:]
    if len(h) < 2:
        return []
    errors = _pair_errors(koopman, h[:-1], h[1:], inputs)
    is_predicted = np.ones(len(h), dtype=bool)
    is_predicted[block.offsets] = False
    return [(block.rows[is_predicted], errors[is_predicted[1:]])]


def _errors_at_cut(koopman: Koopman, cut: Cut) -> RowErrors:
    before, after = as_operand(cut.before), as_operand(cut.after)
    return [(cut.rows, _pair_errors(koopman, before, after, cut.inputs))]


def _pair_errors(koopman: Koopman, x: AnyArray, y: AnyArray, inputs: AnyArray | None) -> Float[Array, " k"]:
    """Errors of the states y predicted from x, both in float64; NaN for states that are zero.

    An infinite error says that x or y are not finite, or that their squares are not.
    """
    residual = koopman.predict(x, inputs=inputs) - y
    missed, size = as_numpy((residual**2).sum(-1)), as_numpy((y**2).sum(-1))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        errors = missed / size
    errors = np.where(np.isinf(errors), np.nan, errors)  # y is zero, or as good as zero
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


def agreement(koopman: Koopman, states: Any, readout: Readout, *, threshold: float = 0.0) -> float:
    """Fraction of sequences whose class, read out from the last state, is the same if that state is predicted.

    The class is the largest of several outputs, or whether a single one exceeds ``threshold``. Sequences of one state,
    whose last state nothing predicts, are left out.
    """
    states = as_states(states)
    drive = _inputs(koopman, states)
    ends = (states.starts + states.lengths - 1)[states.lengths > 1]
    if not len(ends):
        raise KannError("no last state can be predicted: every sequence has one step only")
    before, last = take_rows(states.values, ends - 1), take_rows(states.values, ends)
    inputs = None
    if drive is not None:
        inputs = take_rows(drive, ends)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        predicted = koopman.predict(before, inputs=inputs)
    if not (np.isfinite(last).all() and np.isfinite(predicted).all()):
        refuse_not_finite(states, inputs=drive is not None)
    true, ours = (decide(read_out(readout, h), threshold=threshold) for h in (last, predicted))
    return float(np.mean(true == ours))


def hybrid(koopman: Koopman, states: Any, known: int) -> States:
    """The first ``known`` states of each sequence as they are, the rest rolled out from the last of them."""
    known = require_whole_number(known, "known", too_small="leaves no state to start from")
    states = as_states(states)
    drive = _inputs(koopman, states)
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
    """Distance of C from an orthogonal matrix: |CᵀC − I|² / |C|², as in the paper's appendix on the copy task."""
    require_instance(koopman, Koopman, "koopman")
    C = koopman.matrix
    return float(np.linalg.norm(C.T @ C - np.eye(len(C))) ** 2 / np.linalg.norm(C) ** 2)


def _inputs(koopman: Koopman, states: States) -> Any:
    """What drives the operator: the states' inputs, or None if it is autonomous. States of other units are refused."""
    require_instance(koopman, Koopman, "koopman")
    require_width(states.values, koopman.dim, what="states", of="the operator")
    if koopman.drive is None:
        return None
    if states.inputs is None:
        raise KannError("the operator is driven and these states have no inputs; record them with inputs=True")
    return states.inputs
