"""How far each step pushes each mode: what it adds to the mode's coordinate beyond the mode's own decay."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kann.analysis.coordinates import Spread
from kann.backends.arrays import as_numpy
from kann.data.blocks import Block
from kann.data.reduction import Total, accumulate
from kann.data.rows import Projection
from kann.data.states import States
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import Array, Complex, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModeAxis:
    """One real number for a mode: its coordinate in standard deviations, along the widest axis of a conjugate pair."""

    mode: Mode
    eigenvalue: complex
    direction: Complex[Array, " d"]
    """The coordinate of a state h is (h − mean) · direction, complex for a pair."""
    offset: complex
    """What one step of the operator adds to the coordinate whatever the state."""
    turn: complex
    """The coordinate times this has its widest axis along the real numbers, and a standard deviation of 1 there."""
    effect: Float[Array, " d"]
    """The change of a state that raises the number by one."""

    def real(self, coordinate: Complex[Array, "..."]) -> Float[Array, "..."]:
        """The number of a coordinate, or of a push of it."""
        return np.real(coordinate * self.turn)

    def reversed(self) -> "ModeAxis":
        """The same axis with up and down exchanged."""
        return replace(self, turn=-self.turn, effect=-self.effect)


def axis_of(koopman: Koopman, mode: Mode, spread: Spread) -> ModeAxis:
    """The axis of a mode, for states of this mean and covariance."""
    first = mode.indices[0]
    right = koopman.right[:, first]
    direction = koopman.basis @ right
    parts = np.stack([np.real(direction), np.imag(direction)], axis=1)
    values, vectors = np.linalg.eigh(spread.along(parts))
    along = vectors[:, -1]  # cos and sin of the angle of the widest axis
    scale = 1 / np.sqrt(max(values[-1], np.finfo(float).tiny))
    turn = complex(along[0], -along[1]) * scale
    # The mode's part of a state is Re(coordinate · left), twice for a pair; one unit along the axis is 1/turn.
    effect = len(mode.indices) * np.real((koopman.left[first] @ koopman.basis.T) / turn)
    offset = 0j
    if koopman.offset is not None:
        offset = complex(koopman.offset @ right)
    return ModeAxis(
        mode=mode,
        eigenvalue=complex(koopman.eigenvalues[first]),
        direction=direction,
        offset=offset,
        turn=turn,
        effect=effect,
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pushes:
    """The push of each mode at each step that has one before it."""

    values: Complex[Array, "n m"]
    """x[t+1] − λ x[t] − c for the coordinates x of the modes."""
    rows: Int[Array, " n"]
    """The row of each push among all states: the state that it led to."""
    sequences: Int[Array, " n"]
    """Which sequence it is in."""
    steps: Int[Array, " n"]
    """Which step of the sequence it is; the first that can be pushed is 1."""


def pushes_of(koopman: Koopman, states: States, axes: Sequence[ModeAxis]) -> Pushes:
    """The pushes of some modes at every step but the first of each sequence, which nothing comes before."""
    directions = np.stack([axis.direction for axis in axes], axis=1)
    parts = np.concatenate([np.real(directions), np.imag(directions)], axis=1)
    pieces = accumulate(
        states, partial(Total, _rows_and_values), projection=Projection(matrix=parts, mean=koopman.mean), what="pushes"
    )
    found = np.empty((int(states.lengths.sum()), parts.shape[1]))
    for rows, values in pieces:
        found[rows] = values
    x = found[:, : len(axes)] + 1j * found[:, len(axes) :]
    sequences = np.repeat(np.arange(len(states)), states.lengths)
    steps = np.arange(len(sequences)) - states.starts[sequences]
    rows = np.flatnonzero(steps)
    eigenvalues = np.array([axis.eigenvalue for axis in axes])
    offsets = np.array([axis.offset for axis in axes])
    return Pushes(
        values=x[rows] - eigenvalues * x[rows - 1] - offsets,
        rows=rows,
        sequences=sequences[rows],
        steps=steps[rows],
    )


def _rows_and_values(block: Block) -> list[tuple[Int[Array, " n"], Float[Array, "n k"]]]:
    """A list of one: the values of a block, which will be overwritten, and the rows where they belong."""
    return [(block.rows, as_numpy(block.values).copy())]
