"""How far the linear operator can be trusted to stand for the network."""

from typing import Any

import numpy as np

from kann.analysis.decisions import Readout, decide, read_out
from kann.backends.arrays import as_numpy, as_operand, float64_copy
from kann.data.reduction import Cut, Piece, is_spread, total
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float


def relative_error(koopman: Koopman, states: Any, reduce: str = "mean") -> float | Float[Array, " n"]:
    """The paper's e_rel: |predicted − true|² / |true|² of each state predicted from the one before, averaged.

    With ``reduce="none"`` there is one number for each row of ``states.values``; the first state of a sequence, which
    nothing predicts, and states that are exactly zero have NaN, and are left out of the mean.
    """
    if reduce not in ("mean", "none"):
        raise KannError(f"reduce={reduce!r} is unknown; pass 'mean' or 'none'")
    states = as_states(states)
    _inputs(koopman, states)
    if reduce == "none":
        return _errors_in_chunks(koopman, states) if is_spread(states) else _errors(states, koopman)
    if is_spread(states):
        added, count = total(states, _summed_piece, _summed_cut, shared=(koopman,))
    else:
        added, count = _summed(_errors(states, koopman))
    if not count:
        raise KannError("no state can be compared: every sequence has one step, or every state is zero")
    return float(added / count)


def _errors(states: States, koopman: Koopman) -> Float[Array, " n"]:
    """The error of each state; NaN where it cannot be compared."""
    drive = _inputs(koopman, states)
    errors = np.full(states.values.shape[0], np.nan)
    for start, stop in states.ranges():
        # One row more in front: a range may begin in the middle of a long sequence.
        low = max(start - 1, 0)
        if stop - low > 1:
            h = as_operand(float64_copy(states.values[low:stop]))
            inputs = None if drive is None else drive[low + 1 : stop]
            errors[low + 1 : stop] = _pair_errors(koopman, h[:-1], h[1:], inputs)
    errors[states.starts] = np.nan
    return errors


def _pair_errors(koopman: Koopman, x: AnyArray, y: AnyArray, inputs: AnyArray | None) -> Float[Array, " k"]:
    """Errors of the states y predicted from x, both in float64; NaN for states that are zero."""
    missed = koopman.predict(x, inputs=inputs) - y
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = as_numpy((missed**2).sum(-1)) / as_numpy((y**2).sum(-1))
    return np.where(np.isinf(errors), np.nan, errors)


def _summed(errors: Float[Array, " n"]) -> Float[Array, "2"]:
    """Sum and number of the errors that are one."""
    return np.array([np.nansum(errors), np.sum(~np.isnan(errors))])


def _summed_piece(piece: Piece, koopman: Koopman) -> Float[Array, "2"]:
    return _summed(_errors(piece.states, koopman))


def _summed_cut(cut: Cut, koopman: Koopman) -> Float[Array, "2"]:
    return _summed(_cut_errors(cut, koopman))


def _cut_errors(cut: Cut, koopman: Koopman) -> Float[Array, " k"]:
    x, y = (as_operand(float64_copy(side)) for side in (cut.before, cut.after))
    return _pair_errors(koopman, x, y, None if koopman.drive is None else cut.inputs)


def _errors_in_chunks(koopman: Koopman, states: States) -> Float[Array, " n"]:
    """The error of each state, from all chunks and cuts, put in its row."""
    errors = np.full(states.values.shape[0], np.nan)
    for rows, found in total(states, _listed_piece, _listed_cut, shared=(koopman,)):
        errors[rows] = np.where(np.isnan(found), errors[rows], found)
    return errors


def _listed_piece(piece: Piece, koopman: Koopman) -> list[tuple[Array, Array]]:
    return [(piece.rows, _errors(piece.states, koopman))]


def _listed_cut(cut: Cut, koopman: Koopman) -> list[tuple[Array, Array]]:
    return [(cut.rows, _cut_errors(cut, koopman))]


def agreement(koopman: Koopman, states: Any, readout: Readout, *, threshold: float = 0.0) -> float:
    """Share of sequences whose class, read out from the last state, is the same if that state is predicted.

    The class is the largest of several outputs, or whether a single one exceeds ``threshold``. Sequences of one state,
    whose last state nothing predicts, are left out.
    """
    states = as_states(states)
    drive = _inputs(koopman, states)
    ends = (states.starts + states.lengths - 1)[states.lengths > 1]
    if not len(ends):
        raise KannError("no last state can be predicted: every sequence has one step only")
    before, last = (as_numpy(states.values[ends + shift]) for shift in (-1, 0))
    inputs = None if drive is None else as_numpy(drive[ends])
    predicted = koopman.predict(before, inputs=inputs)
    true, ours = (decide(read_out(readout, h), threshold=threshold) for h in (last, predicted))
    return float(np.mean(true == ours))


def hybrid(koopman: Koopman, states: Any, known: int) -> States:
    """The first ``known`` states of each sequence as they are, the rest rolled out from the last of them."""
    if known < 1:
        raise KannError(f"known={known} leaves no state to start from; pass known>=1")
    states = as_states(states)
    drive = _inputs(koopman, states)
    sequences = []
    for i, h in enumerate(states):
        steps = len(h) - known
        if steps > 0:
            inputs = None if drive is None else as_numpy(drive[states.span(i)])[known:]
            h = np.concatenate([h[:known], koopman.rollout(h[known - 1], steps, inputs=inputs)])
        sequences.append(h.astype(np.float64))
    return States(values=np.concatenate(sequences), lengths=states.lengths, inputs=states.inputs)


def orthogonality(koopman: Koopman) -> float:
    """Distance of C from an orthogonal matrix: |CᵀC − I|² / |C|², as in the paper's appendix on the copy task."""
    C = koopman.matrix
    return float(np.linalg.norm(C.T @ C - np.eye(len(C))) ** 2 / np.linalg.norm(C) ** 2)


def _inputs(koopman: Koopman, states: States) -> Any:
    """What drives the operator: the states' inputs, or None if it is autonomous."""
    if koopman.drive is not None and states.inputs is None:
        raise KannError("the operator is driven and these states have no inputs; record them with inputs=True")
    return None if koopman.drive is None else states.inputs
