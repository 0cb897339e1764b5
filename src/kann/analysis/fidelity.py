"""Errors of one-step predictions, agreement of the outputs, and the copying baseline."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann.analysis.decisions import OUTPUTS, Readout, answers, read_out
from kann.backends.arrays import as_numpy, as_operand
from kann.checks import require_choice, require_instance, require_number, require_whole_number, require_width
from kann.data.moments import refuse_not_finite
from kann.data.reduction import Block, Cut, SumOverBlocks, accumulate, take_rows
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float, Int, Shaped


class Copying:
    """The naive baseline: the next state is the one before, unchanged.

    Where states move slowly it is nearly always right, so compare every error or agreement of an operator with that of
    copying. Pass `kann.copying` in place of the operator:

    >>> import kann
    >>> float(kann.relative_error(kann.copying, np.array([[[1.0], [2.0], [4.0]]])))
    0.25
    """

    def predict(self, h: AnyArray, *, inputs: AnyArray | None = None) -> AnyArray:
        """Return the states themselves, whatever the inputs."""
        return h

    def rollout(self, h: AnyArray, steps: int, *, inputs: AnyArray | None = None) -> AnyArray:
        """Repeat the state ``steps`` times: (steps, d) of a state (d,)."""
        return np.repeat(np.asarray(h)[..., None, :], steps, axis=-2)

    def __repr__(self) -> str:
        return "kann.copying"


copying = Copying()
"""The one baseline that copies the previous state."""

Predictor = Koopman | Bilinear | Copying
"""Types that `kann.relative_error`, `kann.agreement` and `kann.hybrid` accept."""


def driving_inputs(koopman: Predictor, states: States) -> Any:
    """Return the states' inputs if the operator is driven, else None; raise for another number of units."""
    if isinstance(koopman, Copying):
        return None
    if not isinstance(koopman, Bilinear):
        require_instance(koopman, Koopman, "koopman")
    require_width(states.values, koopman.dim, what="states", of="the operator")
    if koopman.drive is None:
        return None
    if states.inputs is None:
        raise KannError("the operator is driven and these states have no inputs; record them with inputs=True")
    return states.inputs


def _predicted(
    koopman: Predictor, part: Block | Cut
) -> tuple[AnyArray, AnyArray, Int[Array, " m"], Shaped[Array, " m"]]:
    """Return states, each as predicted from the row before, their rows among all states, and which are pairs.

    Rows that begin a sequence, or a piece of one, are no pair with the row before them. Behind a cut all are pairs.
    """
    if isinstance(part, Cut):
        after, predicted = as_operand(part.after), koopman.predict(as_operand(part.before), inputs=part.inputs)
        return after, predicted, part.rows, np.ones(len(part.rows), dtype=bool)
    h, inputs = as_operand(part.values), None if part.inputs is None else part.inputs[1:]
    is_pair = np.ones(len(h), dtype=bool)
    is_pair[part.offsets] = False
    return h[1:], koopman.predict(h[:-1], inputs=inputs), part.rows[1:], is_pair[1:]


def relative_error(koopman: Predictor, states: Any, reduce: str = "mean") -> float | Float[Array, " n"]:
    """Average |predicted − true|² / |true|² over states, each predicted from the one before: the paper's e_rel.

    It is a ratio of squares, a fraction of energy: 0.01 means that states are missed by a tenth of their length. Where
    states move slowly it is small for any predictor: compare it with that of ``kann.copying``, which is passed in place
    of the operator, on sequences that were not fitted.

    Parameters
    ----------
    koopman
        The operator that predicts, or ``kann.copying``.
    states
        `States`, or what can be read as states, wherever they are.
    reduce
        ``"mean"`` averages over all states. ``"none"`` keeps one number for each row of ``states.values``: first states
        of sequences, which have no prediction, and states that are exactly zero have NaN, and no mean counts them.
        ``"time"`` gives one number for each step t, |H_t predicted − H_t|² / |H_t|² with the Frobenius norm over all
        sequences that have this step, the paper's other measure; entry 0 is NaN.

    Returns
    -------
    float or array
        A number, or an array (N,) with ``reduce="none"`` and (T,) with ``reduce="time"``.

    Examples
    --------
    >>> import kann
    >>> states = [np.array([[1.0, 0.0], [0.5, 0.0], [0.25, 0.0]])]
    >>> relative_error(kann.fit(states), states) < 1e-20, relative_error(kann.copying, states)
    (True, 1.0)
    """
    require_choice(reduce, "reduce", ("mean", "none", "time"))
    states = as_states(states)
    driven = driving_inputs(koopman, states) is not None
    of_part = partial(_error_sums if reduce == "mean" else _errors, koopman)
    found = accumulate(states, partial(SumOverBlocks, of_part, of_part), inputs=driven, what="errors")
    if reduce == "mean":
        total, count = found
        if not np.isfinite(total):
            refuse_not_finite(states, inputs=driven)
        if not count:
            raise KannError("no state can be compared: every sequence has one step, or every state is zero")
        return float(total / count)
    errors = np.full(states.values.shape[0], np.nan)
    for rows, part in found:
        errors[rows] = part
    if np.isinf(errors).any():
        refuse_not_finite(states, inputs=driven)
    if reduce == "none":
        return errors
    # The mean over the states of each step, weighted with |state|², is the ratio of the summed squares.
    step = np.arange(len(errors)) - np.repeat(states.starts, states.lengths)
    size = as_numpy((states.values**2).sum(-1)).astype(np.float64)
    size[np.isnan(errors)] = 0.0
    missed = np.bincount(step, weights=np.nan_to_num(errors) * size)
    with np.errstate(invalid="ignore"):  # 0 / 0 where no state can be compared
        return missed / np.bincount(step, weights=size)


def _errors(koopman: Predictor, part: Block | Cut) -> list[tuple[Array, Array]]:
    """Return rows, and |predicted − true|² / |true|² of the states there: NaN for states that are zero.

    An infinite error means that states, or their squares, are not finite. Lists of parts are joined with +.
    """
    true, predicted, rows, is_pair = _predicted(koopman, part)
    missed, size = as_numpy(((predicted - true) ** 2).sum(-1)), as_numpy((true**2).sum(-1))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        errors = missed / size
    errors = np.where(np.isinf(errors), np.nan, errors)  # the state is zero, or as good as zero
    errors = np.where(np.isfinite(missed) & np.isfinite(size), errors, np.inf)
    return [(rows[is_pair], errors[is_pair])]


def _error_sums(koopman: Predictor, part: Block | Cut) -> Float[Array, "2"]:
    """Return sum and count of the errors that are not NaN."""
    ((_, errors),) = _errors(koopman, part)
    return np.array([np.nansum(errors), np.sum(~np.isnan(errors))])


def hybrid(koopman: Predictor, states: Any, known: int) -> States:
    """Keep the first ``known`` states of each sequence and roll the rest out from the last of them.

    Parameters
    ----------
    koopman
        The operator, or ``kann.copying``, which repeats the last known state.
    states
        `States`, or what can be read as states.
    known
        How many states of each sequence to keep, at least 1.

    Returns
    -------
    States
        Sequences of the same lengths, with the same inputs.

    Examples
    --------
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
            inputs = as_numpy(drive[states.span(i)])[known:] if drive is not None else None
            h = np.concatenate([h[:known], koopman.rollout(h[known - 1], steps, inputs=inputs)])
        sequences.append(h.astype(np.float64))
    inputs = states.inputs
    if inputs is not None:
        inputs = as_numpy(inputs)
    return States(values=np.concatenate(sequences), lengths=states.lengths, inputs=inputs, reverse=states.reverse)


def orthogonality(koopman: Koopman) -> float:
    """Measure how far C is from an orthogonal matrix: |CᵀC − I|² / |C|², as in the paper's appendix on the copy task.

    Parameters
    ----------
    koopman
        The operator.

    Returns
    -------
    float
        0 for an orthogonal matrix, which neither amplifies nor forgets.

    Examples
    --------
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


def agreement(
    koopman: Predictor,
    states: Any,
    readout: Readout,
    *,
    at: str = "last",
    outputs: str = "class",
    threshold: float = 0.0,
) -> float:
    """Measure how far the outputs stay the same if each state is predicted from the one before: 1 if all of them do.

    Where states move slowly the agreement is high for any predictor: compare it with that of ``kann.copying``, which is
    passed in place of the operator, on sequences that were not fitted.

    >>> states = States.from_sequences([np.array([[1.0], [2.0], [-1.0], [-2.0]])])
    >>> from kann import copying
    >>> agreement(copying, states, lambda h: h), round(agreement(copying, states, lambda h: h, at="every"), 3)
    (1.0, 0.667)

    Parameters
    ----------
    koopman
        The operator that predicts, or ``kann.copying``.
    states
        `States`, or what can be read as states, wherever they are.
    readout
        From states (n, d) to outputs (n,) or (n, o): a function of a numpy array, or a torch module.
    at
        ``"last"`` compares the last state of each sequence; ``"every"`` all states that one before predicts, for
        networks that decide at every step. First states of sequences, which have no prediction, are left out.
    outputs
        ``"class"``: the largest of several outputs, or whether a single one exceeds ``threshold``; the fraction of
        states whose class is unchanged. ``"labels"``: each output is a separate answer, yes if it exceeds
        ``threshold``; the fraction of answers that are unchanged. ``"values"``: regression; R² of the outputs of
        predicted states, 1 − Σ|predicted − true|² / Σ|true − mean|² over all states and outputs.
    threshold
        The value that an output must exceed.

    Returns
    -------
    float
        A fraction of states or of answers, or R².
    """
    require_choice(at, "at", ("last", "every"))
    require_choice(outputs, "outputs", OUTPUTS)
    threshold = require_number(threshold, "threshold", remedy="pass the value that an output must exceed")
    states = as_states(states)
    drive = driving_inputs(koopman, states)
    if not (states.lengths > 1).any():
        raise KannError("no last state can be predicted: every sequence has one step only")
    compare = partial(_compare, koopman, readout, outputs, threshold)
    if at == "last":  # in one call of the readout
        ends = (states.starts + states.lengths - 1)[states.lengths > 1]
        before, after = take_rows(states.values, ends - 1), take_rows(states.values, ends)
        inputs = take_rows(drive, ends) if drive is not None else None
        found = compare(Cut(before=before, after=after, inputs=inputs, rows=ends))
    else:
        found = accumulate(states, partial(SumOverBlocks, compare, compare), inputs=drive is not None, what="outputs")
    if not found.is_finite:
        refuse_not_finite(states, inputs=drive is not None)
    return found.r_squared() if outputs == "values" else float(found.unchanged / found.count)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Comparison:
    """Outputs of predicted and of true states, compared. Comparisons of other states are added with +."""

    count: int = 0
    """States, or answers of several labels, that were compared."""
    unchanged: int = 0
    """How many of them are the same."""
    mean: Any = 0.0
    """(o,) mean of the true outputs, of regression."""
    spread: float = 0.0
    """Σ|true − mean|² over states and outputs."""
    missed: float = 0.0
    """Σ|predicted − true|² over states and outputs."""
    is_finite: bool = True
    """Whether all states that were compared are finite."""

    def __add__(self, other: "Comparison") -> "Comparison":
        count = self.count + other.count
        weight = other.count / max(count, 1)
        gap = other.mean - self.mean
        # Spreads are added about the common mean: Σy² − n·mean² would lose the spread of outputs with a large mean.
        between = self.count * weight * float(np.sum(np.square(gap)))
        return Comparison(
            count=count,
            unchanged=self.unchanged + other.unchanged,
            mean=self.mean + weight * gap,
            spread=self.spread + other.spread + between,
            missed=self.missed + other.missed,
            is_finite=self.is_finite and other.is_finite,
        )

    def r_squared(self) -> float:
        """Compute 1 − Σ|predicted − true|² / Σ|true − mean|²."""
        if not self.spread:
            raise KannError(
                "the outputs of the true states are all the same, so R² is not defined; pass states with other outputs"
            )
        return float(1 - self.missed / self.spread)


def _compare(koopman: Predictor, readout: Readout, outputs: str, threshold: float, part: Block | Cut) -> Comparison:
    """Compare the outputs of states with those of predicted states."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
        true, predicted, _, is_pair = _predicted(koopman, part)
    true, predicted = as_numpy(true)[is_pair], as_numpy(predicted)[is_pair]
    if not len(true):
        return Comparison()
    if not (np.isfinite(true).all() and np.isfinite(predicted).all()):
        return Comparison(is_finite=False)
    theirs, ours = read_out(readout, true), read_out(readout, predicted)
    if outputs == "values":
        return compare_values(theirs, ours)
    same = answers(theirs, kind=outputs, threshold=threshold) == answers(ours, kind=outputs, threshold=threshold)
    return Comparison(count=same.size, unchanged=int(same.sum()))


def compare_values(true: Float[Array, "n ..."], predicted: Float[Array, "n ..."]) -> Comparison:
    """Compare outputs that are numbers: how far they vary, and how much of it is missed."""
    true, predicted = (values.reshape(len(values), -1).astype(np.float64) for values in (true, predicted))
    mean = true.mean(axis=0)
    return Comparison(
        count=len(true),
        mean=mean,
        spread=float(np.square(true - mean).sum()),
        missed=float(np.square(predicted - true).sum()),
    )
