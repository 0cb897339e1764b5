"""Which tokens, inputs, phrases or steps push each mode, how far, and with which confidence."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann import _display
from kann._display import in_columns
from kann._format import confidence, signed
from kann.analysis.decisions import linear_weight
from kann.analysis.intervals import jackknife_error, require_level, student_width
from kann.analysis.modes import chosen_modes, mode_variances
from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_instance, require_names, require_width
from kann.data.moments import MeanAndCovariance, mean_and_covariance
from kann.data.reduction import Projection, SumOverBlocks, accumulate, take_rows
from kann.data.serialization import Saved, Stored
from kann.data.states import States, as_states, checked_tokens
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LabelMeans:
    """The mean of each label over the places where it occurs."""

    mean: Float[Array, "k m"]
    error: Float[Array, "k m"]
    """Standard error over sequences; infinite for a label that occurs in one sequence only."""
    count: Int[Array, " k"]
    """Number of places in which it occurs."""
    sequences: Int[Array, " k"]
    """Number of sequences in which it occurs."""
    freedom: Int[Array, " k"]
    """Degrees of freedom of the standard errors."""

    def half_width(self, level: float) -> Float[Array, "k m"]:
        """Return half the width of the intervals that hold the mean with probability ``level``."""
        return student_width(level, np.maximum(self.freedom, 1))[:, None] * self.error


def means_by_label(
    values: Float[Array, "n m"], labels: Int[Array, " n"], sequences: Int[Array, " n"], *, count: int
) -> LabelMeans:
    """Average the values whose label is 0, 1, …, ``count`` − 1.

    With S the sum and n the number of values of a label in a sequence, the mean is ΣS / Σn, and its variance is that of
    a ratio, K / (K − 1) · Σ (S − mean n)² / (Σn)² over the K sequences in which the label stands.
    """
    width = int(sequences.max(initial=0)) + 1
    pairs, places = np.unique(labels * width + sequences, return_inverse=True)
    label_of = pairs // width
    own_count = np.bincount(places)  # of each label in each sequence
    sums = _summed(values, places, len(pairs))
    total_count = np.bincount(label_of, weights=own_count, minlength=count)
    mean = _summed(sums, label_of, count) / np.maximum(total_count, 1)[:, None]
    gaps = sums - mean[label_of] * own_count[:, None]
    clusters = np.bincount(label_of, minlength=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        correction = clusters / (clusters - 1)
        error = np.sqrt(correction[:, None] * _summed(gaps**2, label_of, count)) / total_count[:, None]
    error[clusters < 2] = np.inf
    return LabelMeans(
        mean=mean, error=error, count=total_count.astype(np.int64), sequences=clusters, freedom=clusters - 1
    )


def _summed(values: Float[Array, "p m"], labels: Int[Array, " p"], count: int) -> Float[Array, "k m"]:
    return np.stack([np.bincount(labels, weights=column, minlength=count) for column in values.T], axis=1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pushes:
    """One number for each mode, its coordinate along the widest axis of a conjugate pair, and what pushes it."""

    values: Complex[Array, "n m"]
    """x[t+1] − λ x[t] − c for the coordinates x of the modes, at each step that has one before it."""
    rows: Int[Array, " n"]
    """The row of each push among all states: the state that it led to."""
    sequences: Int[Array, " n"]
    """Which sequence it is in."""
    steps: Int[Array, " n"]
    """Which step of the sequence it is; the first that can be pushed is 1."""
    coordinates: Complex[Array, "N m"]
    """The coordinate of every state, about the mean."""
    eigenvalues: Complex[Array, " m"]
    turns: Complex[Array, " m"]
    """A coordinate times this has its widest axis along the real numbers, and a standard deviation of 1 there."""
    effects: Float[Array, "m d"]
    """The change of a state that raises the number of a mode by one."""

    def real(self, coordinates: Complex[Array, "... m"]) -> Float[Array, "... m"]:
        """Return coordinates, or pushes of them, in standard deviations."""
        return np.real(coordinates * self.turns)


def pushes_of(
    koopman: Koopman,
    states: States,
    numbers: Sequence[int],
    spread: MeanAndCovariance,
    weight: Float[Array, "o d"] | None = None,
) -> Pushes:
    """Compute the pushes of some modes at every step but the first of each sequence.

    With the weight of a readout, up raises the output that the mode moves most.
    """
    modes = [koopman.modes[number] for number in numbers]
    firsts = [mode.indices[0] for mode in modes]
    right, eigenvalues = koopman.right[:, firsts], koopman.eigenvalues[firsts]
    directions = koopman.basis @ right
    turns = np.array([_turn(spread, direction) for direction in directions.T])
    # The mode's part of a state is Re(coordinate · left), twice for a pair; one unit along the axis is 1/turn.
    size = np.array([len(mode.indices) for mode in modes])[:, None]
    effects = size * np.real((koopman.left[firsts] @ koopman.state_vectors) / turns[:, None])
    if weight is not None:
        moved = effects @ weight.T
        up = np.where(np.take_along_axis(moved, np.abs(moved).argmax(axis=1)[:, None], axis=1) < 0, -1.0, 1.0)
        turns, effects = turns * up[:, 0], effects * up
    x = _coordinates(states, directions, koopman.mean)
    sequences = np.repeat(np.arange(len(states)), states.lengths)
    steps = np.arange(len(sequences)) - states.starts[sequences]
    rows = np.flatnonzero(steps)
    offset = koopman.offset @ right if koopman.offset is not None else 0.0
    return Pushes(
        values=x[rows] - eigenvalues * x[rows - 1] - offset,
        rows=rows,
        sequences=sequences[rows],
        steps=steps[rows],
        coordinates=x - (spread.mean - koopman.mean) @ directions,
        eigenvalues=eigenvalues,
        turns=turns,
        effects=effects,
    )


def _turn(spread: MeanAndCovariance, direction: Complex[Array, " d"]) -> complex:
    """Return the factor that turns the widest axis of a coordinate real, with a standard deviation of 1."""
    values, vectors = np.linalg.eigh(spread.along(np.stack([np.real(direction), np.imag(direction)], axis=1)))
    cosine, sine = vectors[:, -1]
    return complex(cosine, -sine) / np.sqrt(max(values[-1], np.finfo(float).tiny))


def _coordinates(states: States, directions: Complex[Array, "d m"], mean: Float[Array, " d"]) -> Complex[Array, "N m"]:
    """Compute the coordinates of all states along complex directions."""
    parts = Projection(matrix=np.concatenate([np.real(directions), np.imag(directions)], axis=1), mean=mean)
    found = np.empty((int(states.lengths.sum()), parts.matrix.shape[1]))
    make = partial(SumOverBlocks, lambda block: [(block.rows, as_numpy(block.values).copy())])
    for rows, values in accumulate(states, make, projection=parts, what="pushes"):
        found[rows] = values
    real, imaginary = np.split(found, 2, axis=1)
    return real + 1j * imaginary


GROUPS = 20
"""Groups of sequences that are left out in turn for the standard errors."""


def input_slopes(push: Float[Array, "n m"], pushes: Pushes, states: States) -> tuple[tuple[str, ...], LabelMeans]:
    """Regress pushes on the inputs, in standard deviations of each; errors by a jackknife over sequences."""
    inputs = as_numpy(take_rows(states.inputs, pushes.rows)).astype(np.float64)
    spread = inputs.std(axis=0)
    varies = spread > 0
    scaled = np.zeros_like(inputs)
    scaled[:, varies] = (inputs[:, varies] - inputs[:, varies].mean(axis=0)) / spread[varies]
    used, group = np.unique(pushes.sequences, return_inverse=True)
    groups, width = min(GROUPS, len(used)), scaled.shape[1] + 1
    columns = np.concatenate([scaled, np.ones((len(scaled), 1)), push], axis=1)
    parts = [columns[group % groups == g].T @ columns[group % groups == g] for g in range(groups)]
    total = np.sum(parts, axis=0)

    def slopes_of(products: Float[Array, "q q"]) -> Float[Array, "p m"]:
        """Solve for slopes without the constant; the smallest ones where inputs depend on each other."""
        return np.linalg.lstsq(products[:width, :width], products[:width, width:], rcond=None)[0][:-1]

    slopes, error = slopes_of(total), np.full((width - 1, push.shape[1]), np.inf)
    if groups > 1:
        without = np.stack([slopes_of(total - part).ravel() for part in parts])
        error = jackknife_error(without).reshape(error.shape)
    means = LabelMeans(
        mean=slopes,
        error=error,
        count=np.count_nonzero(inputs, axis=0),
        sequences=np.array([len(np.unique(pushes.sequences[column != 0])) for column in inputs.T]),
        freedom=np.full(inputs.shape[1], groups - 1),
    )
    return tuple(f"input {i}" for i in range(inputs.shape[1])), means


LEAST_COUNT = 5
"""Minimum number of sequences with a phrase to judge it: there are many rarer ones, and little is known of each."""

MOST_PHRASES = 20
"""Number of phrases kept for each mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanPush(Stored):
    """The mean push of a mode by something that is read, in standard deviations of the mode's coordinate."""

    push: float
    """Mean push; for an input, by one standard deviation of it, and for a phrase of both steps together."""
    low: float
    high: float
    """The interval over sequences; for a phrase that of ``push − expected``."""
    count: int
    """How often it occurs."""
    sequences: int
    """Number of sequences with it."""
    sure: bool
    """Whether the interval excludes zero even if widened for the number of names or phrases that were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase(MeanPush):
    """Two tokens in a row, and how they push a mode together."""

    words: tuple[str, str]
    expected: float
    """The sum of the mean pushes of its words, the first of which has decayed by one step."""


def phrases_of(
    pushes: Pushes, labels: Int[Array, " n"], names: tuple[str, ...], *, level: float
) -> tuple[tuple[Phrase, ...], ...]:
    """Find for each mode the phrases of two tokens whose push differs from the sum of their tokens', surest first."""
    own, eigenvalues = pushes.values, pushes.eigenvalues
    # The pushes that end a phrase which occurs often enough, the number of the phrase at each, and all phrases.
    second = np.flatnonzero(np.diff(pushes.rows) == 1) + 1
    pairs, phrase, count = np.unique(
        labels[second - 1] * len(names) + labels[second], return_inverse=True, return_counts=True
    )
    is_frequent = count >= LEAST_COUNT
    if not is_frequent.any():
        return tuple(() for _ in eigenvalues)
    second, phrase = second[is_frequent[phrase]], (np.cumsum(is_frequent) - 1)[phrase[is_frequent[phrase]]]
    words = [(names[pair // len(names)], names[pair % len(names)]) for pair in pairs[is_frequent].tolist()]
    sums = _summed(np.real(own), labels, len(names)) + 1j * _summed(np.imag(own), labels, len(names))
    mean = sums / np.maximum(np.bincount(labels, minlength=len(names)), 1)[:, None]
    together = pushes.real(eigenvalues * own[second - 1] + own[second])
    expected = pushes.real(eigenvalues * mean[labels[second - 1]] + mean[labels[second]])
    means = means_by_label(together - expected, phrase, pushes.sequences[second], count=len(words))
    alone = means_by_label(expected, phrase, pushes.sequences[second], count=len(words)).mean
    width, widened = means.half_width(level), means.half_width(1 - (1 - level) / len(words))  # Bonferroni
    bound = np.where(means.sequences[:, None] >= LEAST_COUNT, np.abs(means.mean) - width, -np.inf)

    def phrase_of(i: int, column: int) -> Phrase:
        gap, half = float(means.mean[i, column]), float(width[i, column])
        return Phrase(
            words=words[i],
            push=gap + float(alone[i, column]),
            expected=float(alone[i, column]),
            low=gap - half,
            high=gap + half,
            count=int(means.count[i]),
            sequences=int(means.sequences[i]),
            sure=bool(abs(gap) > widened[i, column]),
        )

    order = np.argsort(-bound, axis=0, kind="stable")[:MOST_PHRASES]
    return tuple(
        tuple(phrase_of(i, column) for i in own.tolist() if bound[i, column] > 0) for column, own in enumerate(order.T)
    )


BY = ("tokens", "inputs", "steps")
"""Causes of pushes: tokens, numbers that the network reads, or the time at which it reads."""

MODES_STUDIED = 16
"""Number of modes studied if none are named: those with the largest contribution to the readout, or to the state."""

MOST_BINS = 40
"""Largest number of spans of steps; spans of longer sequences have several steps each."""

ROWS_SHOWN = 6
"""Number of modes, and of tokens of each, that a notebook shows."""


MODES_PRINTED, NAMES_PRINTED = 4, 12
"""Number of modes and names that ``print`` shows: four columns with intervals fit a line of 120 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover(MeanPush):
    """One token, input or span of steps, and how it pushes a mode.

    >>> import numpy as np, kann
    >>> rng = np.random.default_rng(0)
    >>> pulses = (rng.random((30, 50, 1)) < 0.2) * rng.choice([-1.0, 1.0], size=(30, 50, 1))
    >>> held = np.ones((30, 50, 1))
    >>> for t in range(1, 50):
    ...     held[:, t] = np.where(pulses[:, t] == 0, held[:, t - 1], pulses[:, t])
    >>> states = kann.States.from_padded(held, inputs=pulses)
    >>> found = kann.movers(kann.fit(states, driven=True), states, None)
    >>> mover = found.up(0)[0]
    >>> mover.name, round(mover.push, 1), mover.sure
    ('input 0', 0.5, True)
    """

    name: str

    def __str__(self) -> str:
        return f"{signed(self.push)} [{signed(self.low)}, {signed(self.high)}]{'*' if self.sure else ' '}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Movers(Saved):
    """Tokens, inputs or steps that push the modes of an operator, and how far.

    A push is what a step adds to the coordinate of a mode beyond the mode's own decay, x[t+1] − λ x[t] − c, in standard
    deviations of the coordinate. Of a conjugate pair it is taken along the axis on which the states vary most.

    >>> import numpy as np, kann
    >>> rng = np.random.default_rng(0)
    >>> pulses = (rng.random((30, 50, 1)) < 0.2) * rng.choice([-1.0, 1.0], size=(30, 50, 1))
    >>> held = np.ones((30, 50, 1))
    >>> for t in range(1, 50):
    ...     held[:, t] = np.where(pulses[:, t] == 0, held[:, t - 1], pulses[:, t])
    >>> states = kann.States.from_padded(held, inputs=pulses)
    >>> found = kann.movers(kann.fit(states), states, None)
    >>> found
    Movers(1 inputs, 1 modes)
    >>> found.by
    'inputs'
    """

    by: str
    """``"tokens"``, ``"inputs"`` or ``"steps"``."""
    modes: tuple[int, ...]
    """Numbers of the modes, as in ``koopman.modes``."""
    names: tuple[str, ...]
    """The tokens, inputs or spans of steps."""
    push: Float[Array, "k m"]
    """Mean push of each mode, one row for each name."""
    low: Float[Array, "k m"]
    high: Float[Array, "k m"]
    """Intervals over sequences."""
    sure: Float[Array, "k m"]
    """How far the interval, widened for the number of names, stays from zero; negative if it does not exclude it."""
    count: Int[Array, " k"]
    """How often each name occurs."""
    sequences: Int[Array, " k"]
    """Number of sequences with each name."""
    level: float
    """Confidence level of the intervals."""
    outputs: Float[Array, "m o"] | None
    """Change of each output of the readout by one standard deviation of each mode; None without a readout."""
    phrases: tuple[tuple[Phrase, ...], ...]
    """For each mode the phrases whose push differs from the sum of their words', the surest first."""

    def up(self, mode: int, most: int = 10) -> list[Mover]:
        """List what pushes a mode up, the surest first and then the strongest."""
        return self._ranked(mode, sign=1, most=most)

    def down(self, mode: int, most: int = 10) -> list[Mover]:
        """List what pushes a mode down, the surest first and then the strongest."""
        return self._ranked(mode, sign=-1, most=most)

    def of(self, name: str, mode: int) -> Mover:
        """Return the push of a mode by one token, input or span."""
        if name not in self.names:
            raise KannError(f"{name!r} is not among the {len(self.names)} {self.by}; see .names")
        return self._mover(self.names.index(name), self._column(mode))

    def _ranked(self, mode: int, *, sign: int, most: int) -> list[Mover]:
        column = self._column(mode)
        push, sure = sign * self.push[:, column], self.sure[:, column]
        order = np.lexsort((-push, -np.maximum(sure, 0.0)))
        return [self._mover(row, column) for row in order.tolist() if push[row] > 0][:most]

    def _column(self, mode: int) -> int:
        if mode not in self.modes:
            raise KannError(f"mode {mode} was not studied; the modes are {self.modes}, and modes= names others")
        return self.modes.index(mode)

    def _mover(self, row: int, column: int) -> Mover:
        return Mover(
            name=self.names[row],
            push=float(self.push[row, column]),
            low=float(self.low[row, column]),
            high=float(self.high[row, column]),
            count=int(self.count[row]),
            sequences=int(self.sequences[row]),
            sure=bool(self.sure[row, column] > 0),
        )

    def __repr__(self) -> str:
        return f"Movers({len(self.names)} {self.by}, {len(self.modes)} modes)"

    def __str__(self) -> str:
        """Write a table of the push of each mode by each name, with its interval, sure ones marked."""
        modes, rows = self.modes[:MODES_PRINTED], self._rows_printed()
        table = [["", *(f"mode {mode}" for mode in modes)]]
        table += [[self.names[row], *(str(self._mover(row, column)) for column in range(len(modes)))] for row in rows]
        lines = [
            f"{self!r}: pushes in standard deviations of the mode [{confidence(self.level)} interval]",
            *in_columns(table),
            "  * the interval excludes zero, also if widened for the number of names that were looked at",
        ]
        left = [(len(self.names) - len(rows), self.by), (len(self.modes) - len(modes), "modes")]
        more = " and ".join(f"{count} more {what}" for count, what in left if count)
        if more:
            lines.append(f"  not shown: {more}; .up(mode) and .down(mode) list what pushes a mode")
        return "\n".join(lines)

    def _rows_printed(self) -> list[int]:
        """Choose the rows to print: all, or of many names the strongest of any mode shown, sure ones first."""
        if len(self.names) <= NAMES_PRINTED:
            return list(range(len(self.names)))
        strength = np.abs(self.push[:, :MODES_PRINTED])
        if_sure = np.where(self.sure[:, :MODES_PRINTED] > 0, strength, 0.0)
        return np.lexsort((-strength.max(axis=1), -if_sure.max(axis=1)))[:NAMES_PRINTED].tolist()

    def _repr_html_(self) -> str:
        rows = []
        for mode in self.modes[:ROWS_SHOWN]:
            sides = (self.up(mode, ROWS_SHOWN), self.down(mode, ROWS_SHOWN))
            rows.append([mode, *(", ".join(f"{each.name} {signed(each.push)}" for each in side) for side in sides)])
        return _display.table(repr(self), ("mode", "pushed up by", "pushed down by"), rows)


def movers(
    koopman: Koopman,
    states: Any,
    tokens: Sequence[Any] | None = None,
    *,
    readout: Any = None,
    modes: Any = None,
    by: str | None = None,
    names: Sequence[str] | None = None,
    level: float = 0.95,
) -> Movers:
    """Find which tokens (or inputs, or steps of a signal) push each mode, how far, and how surely.

    >>> import kann, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> words = rng.choice(["good", "bad", "the"], size=(30, 20))
    >>> read = (words == "good") * 1.0 - (words == "bad")
    >>> states = np.cumsum(read, axis=1)[..., None] + 0.01 * rng.normal(size=(30, 20, 1))
    >>> found = kann.movers(kann.fit(states), states, words.tolist(), readout=np.array([[1.0]]))
    >>> found.up(0)[0].name, found.down(0)[0].name
    ('good', 'bad')

    Parameters
    ----------
    koopman, states
        An operator, and states with what was read to reach them. The first state of a sequence is left out: what its
        token did cannot be told from where the network starts.
    tokens
        The token read at each step, a list for each sequence, in the order of the text.
    readout
        A linear readout: a module, or its weight (o, d). Modes are then oriented so that up raises the output (of
        several, the one that the mode moves most), and ``.outputs`` holds what a mode adds to each.
    modes
        Which modes, by their numbers; the 16 with the largest contribution if None.
    by
        ``"tokens"``, ``"inputs"`` (a regression on ``states.inputs``) or ``"steps"`` (when in the sequence). The first
        of these for which there are data if None.
    names
        The names of the inputs, such as ``["force", "gate"]``; "input 0", "input 1", … if None.
    level
        Confidence level of the intervals over sequences.

    Returns
    -------
    Movers
        Pushes in standard deviations of each mode's coordinate, with intervals; ``up(mode)`` and ``down(mode)`` list
        the strongest.
    """
    require_instance(koopman, Koopman, "koopman")
    states = as_states(states)
    require_width(states.values, koopman.dim, what="states", of="the operator")
    level = require_level(level)
    by = _chosen_way(by, tokens, states)
    given_names = _names_of_inputs(names, by, states)
    weight = linear_weight(readout, koopman.dim)
    spread = mean_and_covariance(states)
    numbers = _numbers(koopman, modes, mode_variances(koopman, spread, weight))
    pushes = pushes_of(koopman, states, numbers, spread, weight)
    if not len(pushes.rows):
        raise KannError("no step can be judged: every sequence has one state only; pass longer sequences")
    real, phrases = pushes.real(pushes.values), tuple(() for _ in numbers)
    if by == "inputs":
        found, means = input_slopes(real, pushes, states)
    else:
        found, labels = _spans(pushes.steps) if by == "steps" else _numbered(tokens, states, pushes.rows)
        means = means_by_label(real, labels, pushes.sequences, count=len(found))
        if by == "tokens":
            phrases = phrases_of(pushes, labels, found, level=level)
    width = means.half_width(level)
    # Bonferroni: of a thousand words some stand apart by chance.
    safe = means.half_width(1 - (1 - level) / max(1, len(found)))
    return Movers(
        by=by,
        modes=tuple(numbers),
        names=given_names or found,
        push=means.mean,
        low=means.mean - width,
        high=means.mean + width,
        sure=np.abs(means.mean) - safe,
        count=means.count,
        sequences=means.sequences,
        level=level,
        outputs=pushes.effects @ weight.T if weight is not None else None,
        phrases=phrases,
    )


def _chosen_way(by: Any, tokens: Any, states: States) -> str:
    """Return the user's ``by``, or the first for which there are data."""
    if by is not None:
        require_choice(by, "by", BY)
    available = {"tokens": tokens is not None, "inputs": states.inputs is not None, "steps": True}
    by = by or next(name for name in BY if available[name])
    if not available[by]:
        remedies = {"tokens": "pass tokens", "inputs": "record the states with inputs=True"}
        raise KannError(f"by={by!r} needs {by}; {remedies[by]}")
    return by


def _names_of_inputs(names: Any, by: str, states: States) -> tuple[str, ...] | None:
    """Return the names that the user gives to inputs; None without any."""
    if names is None:
        return None
    if by != "inputs" or states.inputs is None:
        raise KannError(
            f"names= are of inputs, and these modes are pushed by {by}; leave names= out, or pass by='inputs'"
        )
    width = int(states.inputs.shape[1])
    return require_names(names, width, "names", of=f"the states were recorded with {width} inputs")


def _numbers(koopman: Koopman, modes: Any, variances: Float[Array, " m"]) -> list[int]:
    """Return the modes that the user names, or those with the largest contributions."""
    if modes is None:
        return np.argsort(-variances, kind="stable")[:MODES_STUDIED].tolist()
    wanted = modes if isinstance(modes, Iterable) else [modes]
    every = [mode.indices for mode in koopman.modes]
    return [every.index(mode.indices) for mode in chosen_modes(koopman, wanted)]


def _numbered(tokens: Any, states: States, rows: Int[Array, " n"]) -> tuple[tuple[str, ...], Int[Array, " n"]]:
    """Return the different tokens of some rows, and the number of the token of each row."""
    every, number_of = [token for own in checked_tokens(tokens, states) for token in own], {}
    labels = [number_of.setdefault(every[row], len(number_of)) for row in rows.tolist()]
    return tuple(number_of), np.array(labels)


def _spans(steps: Int[Array, " n"]) -> tuple[tuple[str, ...], Int[Array, " n"]]:
    """Return names and numbers of the spans of steps that the pushes lie in."""
    size = -(-int(steps.max()) // MOST_BINS)
    labels = (steps - 1) // size
    if size == 1:
        return tuple(f"step {1 + i}" for i in range(labels.max() + 1)), labels
    return tuple(f"steps {1 + i * size} to {(i + 1) * size}" for i in range(labels.max() + 1)), labels
