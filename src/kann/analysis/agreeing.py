"""How far a network's outputs stay the same if its states are predicted."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann.analysis.decisions import OUTPUTS, Readout, answers, read_out
from kann.analysis.predictors import Predictor, driving_inputs, predict_block, predict_cut
from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_number
from kann.data.blocks import Block, Cut
from kann.data.moments import refuse_not_finite
from kann.data.reduction import Total, accumulate, take_rows
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.typing import AnyArray, Array, Float


def agreement(
    koopman: Predictor,
    states: Any,
    readout: Readout,
    *,
    at: str = "last",
    outputs: str = "class",
    threshold: float = 0.0,
) -> float:
    """How far the outputs stay the same if each state is predicted from the one before: 1 if all of them do.

    Where states move slowly the agreement is high for any predictor: read it beside that of ``kann.copying``, which is
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
        networks that decide at every step. First states of sequences, which nothing predicts, are left out.
    outputs
        ``"class"``: the largest of several outputs, or whether a single one exceeds ``threshold``; the fraction of
        states whose class is unchanged. ``"labels"``: each output is an answer of its own, yes if it exceeds
        ``threshold``; the fraction of answers that are unchanged. ``"values"``: regression; R² of the outputs of
        predicted states, 1 − Σ|predicted − true|² / Σ|true − mean|² over all states and outputs.
    threshold
        What an output must exceed.
    """
    require_choice(at, "at", ("last", "every"))
    require_choice(outputs, "outputs", OUTPUTS)
    threshold = require_number(threshold, "threshold", remedy="pass the value that an output must exceed")
    states = as_states(states)
    drive = driving_inputs(koopman, states)
    if not (states.lengths > 1).any():
        raise KannError("no last state can be predicted: every sequence has one step only")
    compare = partial(_compare, readout, outputs=outputs, threshold=threshold)
    if at == "last":
        found = _compare_last(koopman, states, drive, compare)
    else:
        of_pairs = partial(_compare_block, koopman, compare), partial(_compare_cut, koopman, compare)
        found = accumulate(states, partial(Total, *of_pairs), inputs=drive is not None, what="outputs")
    if not found.is_finite:
        refuse_not_finite(states, inputs=drive is not None)
    if outputs == "values":
        return found.r_squared()
    return float(found.unchanged / found.count)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Comparison:
    """Outputs of some predicted states beside those of the true ones; comparisons of other states are added with +."""

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
        """1 − Σ|predicted − true|² / Σ|true − mean|²."""
        if not self.spread:
            raise KannError(
                "the outputs of the true states are all the same, so R² is not defined; pass states with other outputs"
            )
        return float(1 - self.missed / self.spread)


def _compare(readout: Readout, true: AnyArray, predicted: AnyArray, *, outputs: str, threshold: float) -> Comparison:
    """Compare the outputs of states with those of predicted states."""
    true, predicted = as_numpy(true), as_numpy(predicted)
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


def _compare_last(koopman: Predictor, states: States, drive: Any, compare: Any) -> Comparison:
    """Compare the last states of all sequences of two or more steps, in one call of the readout."""
    ends = (states.starts + states.lengths - 1)[states.lengths > 1]
    before, last = take_rows(states.values, ends - 1), take_rows(states.values, ends)
    inputs = None
    if drive is not None:
        inputs = take_rows(drive, ends)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found by the comparison
        return compare(last, koopman.predict(before, inputs=inputs))


def _compare_block(koopman: Predictor, compare: Any, block: Block) -> Comparison:
    true, predicted, is_pair = predict_block(koopman, block)
    return compare(as_numpy(true)[is_pair], as_numpy(predicted)[is_pair])


def _compare_cut(koopman: Predictor, compare: Any, cut: Cut) -> Comparison:
    return compare(*predict_cut(koopman, cut))
