"""Find what each input does to the state where few different ones occur, and what moves the outputs meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kann._format import significant
from kann.backends.arrays import as_numpy
from kann.data.serialization import Stored
from kann.data.states import States, checked_tokens
from kann.errors import KannError
from kann.explaining.layer_search import evenly_spaced
from kann.explaining.operators import reads_nothing
from kann.explaining.sequences import Sequences, reads_channels
from kann.explaining.setup import Recorded, Setup
from kann.live._intervene import with_tensors
from kann.recording.sequence_data import tensors_of
from kann.typing import Array, Float, Int, Shaped

MOST_CASES = 6
"""Largest number of different inputs that are described one by one."""

RARE = 0.02
"""Inputs read at a smaller fraction of the steps are left out; if together they are more, none are described."""

MOST_CHANNELS = 16
"""Of wider inputs no channels are looked at."""

PAIRS_PER_UNKNOWN = 10
"""Minimum number of pairs of states per unknown of a map. With fewer, the fit mostly reflects noise."""

HELD_OUT_OF = 4
"""One in this number of sequences is held out to measure the error of the maps."""

SETTLED = 3
"""Where zeros are read between other inputs: largest number of them before and after an input, so that the state has
settled. The network may take some steps to turn or flip it."""

KEEPS, CLEARS = 0.9, 0.5
"""|λ| from which an input keeps the state, and below which it clears it."""

TURNS = 15.0
"""Angle in degrees from which an input turns the state. Smaller ones are within the error of a fit."""

PULSES, PULSED = 8, 64
"""Number of steps at which a channel is moved, one at a time, and of sequences that are run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFact(Stored):
    """Effect of one input on the coordinates that the outputs depend on."""

    name: str
    eigenvalue: complex
    """The slowest eigenvalue of the map from the state before the input to the state after it."""
    does: str
    """"keeps", "fades", "turns", "flips" or "clears"."""
    adds: float | None = None
    """Of a single coordinate: how far the input moves it from its mean, in standard deviations."""
    moves: Mapping[str, float] | None = None
    """How far one standard deviation of each other channel, at one step at which this is read, moves the output: right
    away where there is an output at every step, else at the end. None if there are no other channels."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputCases(Stored):
    """Effects of a few inputs, and how well maps of single inputs predict."""

    inputs: tuple[InputFact, ...]
    missed: float
    """Fraction of the variance that the maps miss on held-out sequences."""
    is_counter: bool = False
    """True if every input keeps a single coordinate and some push it up, others down."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cases:
    """The different inputs that are named, and what is read besides."""

    names: tuple[str, ...]
    at: Int[Array, " n"]
    """For each step the number of its input; −1 for rare ones."""
    others: Float[Array, "n c"]
    """The channels that take many values."""
    channels: tuple[str, ...]
    """Their names."""
    columns: tuple[int, ...]
    """Their numbers."""
    is_zero: Shaped[Array, " n"]


def find_input_cases(setup: Setup, recorded: Recorded, directions: Float[Array, "d k"]) -> InputCases | None:
    """Fit a map of the coordinates for each input; None if inputs are many."""
    states = recorded.states
    if states.inputs is None:
        return None
    cases = _cases_of(setup, recorded)
    if cases is None:
        return None
    values = as_numpy(states.values).astype(np.float64)
    z = (values - values.mean(axis=0)) @ directions
    z /= z.std(axis=0).mean() or 1.0
    after = np.setdiff1d(np.arange(len(z)), states.starts)  # steps that have a state before them
    fits = [_fit_case(z, cases, after, number, states.starts) for number in range(len(cases.names))]
    known = [number for number, matrix in enumerate(fits) if matrix is not None]
    if len(known) < 2:
        return None
    missed = _missed(z, cases, after, states)
    moves = _moved(setup, recorded, cases)
    facts = []
    for number in known:
        matrix, offset = fits[number]  # type: ignore[misc]
        eigenvalues = np.linalg.eigvals(matrix)
        slowest = complex(eigenvalues[np.abs(eigenvalues).argmax()])
        facts.append(
            InputFact(
                name=cases.names[number],
                eigenvalue=slowest,
                does=what_it_does(slowest),
                adds=float(offset[0]) if len(offset) == 1 else None,
                moves=moves.get(number),
            )
        )
    return InputCases(inputs=tuple(facts), missed=missed, is_counter=_counts(facts))


def what_it_does(eigenvalue: complex | float) -> str:
    """Name what a map with this slowest eigenvalue does to the state.

    >>> [what_it_does(value) for value in (1.0, 0.8, 0.1, -0.9, 0.9j)]
    ['keeps', 'fades', 'clears', 'flips', 'turns']
    """
    angle = abs(np.degrees(np.angle(eigenvalue)))
    if abs(eigenvalue) < CLEARS:
        return "clears"
    if angle > 180 - TURNS:
        return "flips"
    if angle > TURNS:
        return "turns"
    return "keeps" if abs(eigenvalue) >= KEEPS else "fades"


LEAST_COUNTED = 0.1
"""An input counts if it moves the coordinate by this number of standard deviations."""


def _counts(facts: Sequence[InputFact]) -> bool:
    """Return True if all inputs keep one coordinate, and push it both ways."""
    if any(fact.does != "keeps" or fact.adds is None for fact in facts):
        return False
    pushes = [fact.adds or 0.0 for fact in facts]
    return max(pushes) >= LEAST_COUNTED and min(pushes) <= -LEAST_COUNTED


# The inputs


def _cases_of(setup: Setup, recorded: Recorded) -> _Cases | None:
    """Tell the different inputs apart: tokens, or rows of those channels that take few values."""
    states = recorded.states
    inputs = as_numpy(states.inputs).astype(np.float64)
    nothing = np.empty((len(inputs), 0))
    if recorded.tokens is not None:
        words = [word for own in checked_tokens(recorded.tokens, states) for word in own]
        if len(words) != len(inputs):
            return None
        found, at = np.unique(words, return_inverse=True)
        names = tuple(f"“{word}”" for word in found)
        return _without_rare(_Cases(names, at, nothing, (), (), np.zeros(len(at), dtype=bool)))
    if inputs.shape[1] > MOST_CHANNELS:
        return None
    names = setup.channels
    if names is not None and not reads_channels(setup.sequences, setup.fitted_numbers, states):
        names = None
    names = names or tuple(f"input {i}" for i in range(inputs.shape[1]))
    few = [len(np.unique(inputs[:, i])) <= MOST_CASES for i in range(inputs.shape[1])]
    if not any(few):
        return None
    rows, at = np.unique(inputs[:, few], axis=0, return_inverse=True)
    discrete = [name for name, is_few in zip(names, few, strict=True) if is_few]
    own = [name for name, is_few in zip(names, few, strict=True) if not is_few]
    columns = tuple(i for i, is_few in enumerate(few) if not is_few)
    labels = tuple(_name(row, discrete, is_alone=not own) for row in rows)
    zero = reads_nothing(inputs)
    return _without_rare(_Cases(labels, at.ravel(), inputs[:, list(columns)], tuple(own), columns, zero))


def _without_rare(cases: _Cases) -> _Cases | None:
    """Leave out rare inputs; None if these are many, or all the others are one, or too many to name."""
    counts = np.bincount(cases.at[cases.at >= 0], minlength=len(cases.names))
    kept = np.flatnonzero(counts >= RARE * len(cases.at))
    if not 2 <= len(kept) <= MOST_CASES or counts[kept].sum() < (1 - RARE) * len(cases.at):
        return None
    number = np.full(len(cases.names), -1)
    number[kept] = np.arange(len(kept))
    names = tuple(cases.names[i] for i in kept)
    return _Cases(names, number[cases.at], cases.others, cases.channels, cases.columns, cases.is_zero)


def _name(row: Float[Array, " c"], channels: Sequence[str], *, is_alone: bool) -> str:
    """Name an input: its number, the one channel that is 1, or all numbers."""
    if len(row) == 1:
        number = significant(float(row[0]))
        return number if is_alone else f"“{channels[0]}” = {number}"
    if np.count_nonzero(row) == 1 and row.max() == 1:
        return f"“{channels[int(row.argmax())]}”"
    return f"({', '.join(significant(float(value)) for value in row)})"


# Maps of the state


def _fit_case(
    z: Float[Array, "n k"], cases: _Cases, after: Int[Array, " m"], number: int, starts: Int[Array, " s"]
) -> tuple[Float[Array, "k k"], Float[Array, " k"]] | None:
    """Fit z before one input to z after it, once it has settled if zeros are read between inputs."""
    least = PAIRS_PER_UNKNOWN * (z.shape[1] + 1 + cases.others.shape[1])
    own = after[cases.at[after] == number]
    is_zero = cases.is_zero
    if not cases.others.shape[1] and is_zero.any() and not is_zero[own].all():
        sequence = np.searchsorted(starts, np.arange(len(z)), side="right")
        for steps in range(SETTLED, 0, -1):
            inside = own[(own > steps) & (own + steps < len(z))]
            around = inside[:, None] + np.array([k for k in range(-steps, steps + 1) if k])
            is_quiet = is_zero[around] & (sequence[around] == sequence[inside][:, None])
            settled = inside[is_quiet.all(axis=1)]
            if len(settled) >= least:
                return _affine(z[settled - 1], z[settled + steps])
    if len(own) < least:
        return None
    return _affine(np.hstack([z[own - 1], cases.others[own]]), z[own])


def _affine(before: Float[Array, "m q"], after: Float[Array, "m k"]) -> tuple[Float[Array, "k k"], Float[Array, " k"]]:
    """Return matrix and offset of the least-squares map; columns of ``before`` beyond the state are left out."""
    weights = np.linalg.lstsq(np.hstack([before, np.ones((len(before), 1))]), after, rcond=1e-6)[0]
    return weights[: after.shape[1]], weights[-1]


def _missed(z: Float[Array, "n k"], cases: _Cases, after: Int[Array, " m"], states: States) -> float:
    """Return what one step misses on held-out sequences, with a map for each input."""
    is_held = np.repeat(np.arange(len(states)), states.lengths) % HELD_OUT_OF == 0
    missed, total = 0.0, 0.0
    for number in range(len(cases.names)):
        own = after[cases.at[after] == number]
        rows = np.hstack([z[own - 1], cases.others[own], np.ones((len(own), 1))])
        held = is_held[own]
        weights = np.linalg.lstsq(rows[~held], z[own][~held], rcond=1e-6)[0]
        missed += float(np.square(z[own][held] - rows[held] @ weights).sum())
        total += float(np.square(z[own][held] - z.mean(axis=0)).sum())
    return missed / (total or np.inf)


# Pulses in the running network


def _moved(setup: Setup, recorded: Recorded, cases: _Cases) -> dict[int, dict[str, float]]:
    """Move each other channel at single steps, by one standard deviation, and return how far the output follows.

    Nothing for several outputs, of which none is the output, and for data whose channels cannot be moved.
    """
    if not cases.channels or recorded.outputs is None or recorded.outputs.count != 1:
        return {}
    sequences = setup.sequences
    numbers = setup.held_out[evenly_spaced(len(setup.held_out), PULSED)]
    read = [sequences.steps(int(number)) for number in numbers]
    if len({each.shape for each in read}) > 1 or read[0].ndim != 2 or read[0].dtype.kind != "f":
        return {}
    if not reads_channels(sequences, setup.fitted_numbers, recorded.states):
        return {}
    steps, sizes = evenly_spaced(len(read[0]) - 1, PULSES), cases.others.std(axis=0)
    untouched = sequences.outputs(numbers)
    case_at = _case_of_steps(np.stack(read)[:, steps], cases, recorded)
    found: dict[int, dict[str, float]] = {}
    for name, column, size in zip(cases.channels, cases.columns, sizes, strict=True):
        shifts = np.empty((len(numbers), len(steps)))
        for place, step in enumerate(steps.tolist()):
            moved = _outputs_after_pulse(sequences, numbers, step, column, float(size)) - untouched
            moved = moved.reshape(len(moved), moved.shape[1] if moved.ndim > 2 else 1, -1)
            shifts[:, place] = moved[:, min(step, moved.shape[1] - 1), 0]
        for number in range(len(cases.names)):
            if (case_at == number).any():
                found.setdefault(number, {})[name] = float(shifts[case_at == number].mean())
    return found


def _case_of_steps(read: Float[Array, "s p c"], cases: _Cases, recorded: Recorded) -> Int[Array, "s p"]:
    """Return the number of the input at some steps, by the rows that were recorded."""
    inputs = as_numpy(recorded.states.inputs).astype(np.float64)
    discrete = [i for i in range(inputs.shape[1]) if i not in cases.columns]
    known, first = np.unique(inputs[:, discrete].astype(np.float32), axis=0, return_index=True)
    rows = read[:, :, discrete].astype(np.float32)
    found = np.full(read.shape[:2], -1)
    for row, place in zip(known, first, strict=True):
        found[(rows == row).all(axis=-1)] = cases.at[place]
    return found


def _outputs_after_pulse(
    sequences: Sequences, numbers: Int[Array, " k"], step: int, column: int, size: float
) -> Float[Array, "k ..."]:
    """Return the outputs for sequences with one channel moved at one step."""

    def change(content: Any) -> Any:
        tensor = next((part for part in tensors_of(content) if part.ndim == 3 and part.is_floating_point()), None)
        if tensor is None:
            raise KannError("no tensor of the batch has channels")
        moved = tensor.clone()
        moved[(step, slice(None), column) if sequences.axis else (slice(None), step, column)] += size
        return with_tensors(content, {id(tensor): moved})

    with torch.no_grad():
        return sequences.outputs(numbers, change=change)
