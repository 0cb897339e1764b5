"""Rows of states: lazy slices, blocks of float64 rows, and the pairs cut between blocks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.backends.arrays import (
    Float64Buffer,
    as_array,
    as_numpy,
    block_rows,
    is_contiguous,
    namespace,
    rounding,
    run_indices,
    to_device_of,
)
from kann.errors import KannError, NotFiniteError
from kann.typing import AnyArray, Array, Float, Int


class LazyRows(ABC):
    """(N, d) rows with numpy's indexing along the first axis: a number, a slice, or an array of numbers."""

    ndim = 2
    shape: tuple[int, int]
    dtype: Any

    @abstractmethod
    def read(self, start: int, stop: int) -> AnyArray:
        """Rows from ``start`` to before ``stop``, with 0 <= start <= stop <= N."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> AnyArray:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self.read(start, max(start, stop))
            key = np.arange(start, stop, step)
        places = np.atleast_1d(np.arange(len(self))[key])
        if not len(places):
            return self.read(0, 0)
        rows = namespace(self.read(0, 0)).concat([self.read(int(place), int(place) + 1) for place in places])
        if np.ndim(key) == 0:
            return rows[0]
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(as_numpy(self[:]), dtype=dtype)


class PaddedRows(LazyRows):
    """The real steps of padded (S, T, d) values, gathered when they are sliced."""

    def __init__(self, values: AnyArray, lengths: Int[Array, " s"]):
        self.padded, self.lengths = values, lengths
        self._stops = np.cumsum(lengths)
        self._starts = self._stops - lengths
        self.shape = (int(self._stops[-1]), int(values.shape[2]))
        self.dtype = values.dtype
        self._flat = None
        if is_contiguous(values):
            self._flat = values.reshape(-1, values.shape[2])

    def read(self, start: int, stop: int) -> AnyArray:
        """Rows of the sequences that ``start:stop`` touches."""
        if start == stop:
            return self._no_rows()
        first, last = np.searchsorted(self._stops, [start, stop - 1], side="right").tolist()
        sequences = np.arange(first, last + 1)
        begin = np.maximum(start - self._starts[sequences], 0)
        lengths = np.minimum(stop - self._starts[sequences], self.lengths[sequences]) - begin
        if self._flat is not None:
            return self._flat[run_indices(sequences * self.padded.shape[1] + begin, lengths, self._flat)]
        # Cut the box around the wanted rows first: of values on disk, only that box is read.
        early, late = int(begin[lengths > 0].min()), int((begin + lengths).max())
        box = as_array(self.padded[first : last + 1, early:late])
        flat = box.reshape(-1, box.shape[2])
        return flat[run_indices((sequences - first) * (late - early) + begin - early, lengths, flat)]

    def _no_rows(self) -> AnyArray:
        """No rows at all, of the right kind and on the right device; nothing is read for it."""
        if namespace(self.padded) is namespace(np.empty(0)):
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        return self.padded[:1, 0][:0]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Projection:
    """Coordinates (h − mean) @ matrix of states h, and inputs about their mean, to be computed as they are read."""

    matrix: Float[Array, "d r"]
    mean: Float[Array, " d"]
    input_mean: Float[Array, " p"] | None = None
    """What is taken off the inputs; None for nothing."""

    def of(self, rows: AnyArray) -> AnyArray:
        """The coordinates of float64 rows, which are overwritten."""
        rows -= to_device_of(rows, self.mean)
        return rows @ to_device_of(rows, self.matrix)

    def of_inputs(self, rows: AnyArray) -> AnyArray:
        """Float64 inputs about their mean, written over the rows."""
        if self.input_mean is not None:
            rows -= to_device_of(rows, self.input_mean)
        return rows


def sequence_ranges(lengths: Int[Array, " s"], max_rows: int) -> Iterator[tuple[int, int]]:
    """Ranges ``(first, last)`` of sequences with at most ``max_rows`` rows together, or of one longer sequence."""
    stops = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        start = int(stops[first] - lengths[first])
        last = int(np.searchsorted(stops, start + max_rows, side="right"))
        last = max(last, first + 1)
        yield first, last
        first = last


def row_ranges(lengths: Int[Array, " s"], max_rows: int) -> Iterator[tuple[int, int]]:
    """Ranges ``(start, stop)`` of at most ``max_rows`` rows; only a sequence longer than that is cut."""
    stops = np.cumsum(lengths)
    for first, last in sequence_ranges(lengths, max_rows):
        start, end = int(stops[first] - lengths[first]), int(stops[last - 1])
        for low in range(start, end, max_rows):
            yield low, min(low + max_rows, end)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Block:
    """Consecutive rows of states: whole sequences, or pieces of sequences that were cut.

    What a block says of its sequences has one entry for each of them, in the order of their rows.
    """

    values: AnyArray
    """(n, d) the states."""
    inputs: AnyArray | None
    """(n, p) what the network read to reach each state, or None."""
    lengths: Int[Array, " k"]
    """How many of the rows belong to each sequence."""
    numbers: Int[Array, " k"]
    """Which sequence it is, among all sequences."""
    starts: Int[Array, " k"]
    """The row at which that sequence starts, among all rows."""
    steps: Int[Array, " k"]
    """The step of the sequence at which its rows in this block begin: 0 unless it was cut before."""
    name: str = ""
    """What errors call the block; empty if it is all there is."""
    rounding: float = 0.0
    """Relative spacing of the states' numbers before they were converted to float64."""
    input_rounding: float = 0.0
    """The same for the inputs."""

    @property
    def offsets(self) -> Int[Array, " k"]:
        """The row of this block at which each sequence begins."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def rows(self) -> Int[Array, " n"]:
        """The row of each state among all rows."""
        shift = self.starts + self.steps - self.offsets
        return np.arange(self.values.shape[0]) + np.repeat(shift, self.lengths)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cut:
    """Pairs of consecutive states (x, y) that lie on two sides of the end of a block."""

    before: AnyArray
    """(k, d) x, in float64."""
    after: AnyArray
    """(k, d) y, in float64."""
    inputs: AnyArray | None
    """(k, p) what led from x to y, in float64, or None."""
    rows: Int[Array, " k"]
    """The row of each y among all rows."""


def float64_blocks(block: Block, *, inputs: bool, projection: Projection | None) -> Iterator[Block]:
    """Read a block piece by piece, in float64 and in memory of bounded size.

    Each piece may be overwritten, and is overwritten when the next one is read. ``inputs`` says whether inputs are
    wanted; where a ``projection`` is given, states are projected and inputs are shifted.
    """
    source = block.inputs
    if not inputs:
        source = None
    sample, width = block.values[0:1], block.values.shape[1]
    if source is not None:
        width += source.shape[1]
    max_rows = min(block_rows(sample, width), block.values.shape[0])
    states = Float64Buffer(like=sample, shape=(max_rows, block.values.shape[1]))
    spacing, input_spacing, drives = rounding(sample), 0.0, None
    if source is not None:
        input_spacing = rounding(source[0:1])
        drives = Float64Buffer(like=source[0:1], shape=(max_rows, source.shape[1]))
    offsets = block.offsets
    for start, stop in row_ranges(block.lengths, max_rows):
        at, steps, lengths = pieces(offsets, start, stop)
        values = states.filled_with(block.values[start:stop])
        if projection is not None:
            values = projection.of(values)
        read = None
        if source is not None and drives is not None:
            read = drives.filled_with(source[start:stop])
            if projection is not None:
                read = projection.of_inputs(read)
        yield Block(
            values=values,
            inputs=read,
            lengths=lengths,
            numbers=block.numbers[at],
            starts=block.starts[at],
            steps=block.steps[at] + steps,
            name=block.name,
            rounding=spacing,
            input_rounding=input_spacing,
        )


def pieces(offsets: Int[Array, " s"], start: int, stop: int) -> tuple[slice, Int[Array, " k"], Int[Array, " k"]]:
    """The sequences in rows ``start:stop``: which of those that begin at ``offsets``, first steps and lengths."""
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, stop))
    begin = np.maximum(offsets[first:last], start)
    return slice(first, last), begin - offsets[first:last], np.diff(np.append(begin, stop))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NotFinite:
    """A NaN or an infinite number, and where it stands; the first of several is the smallest."""

    sequence: int
    step: int
    unit: int
    what: str
    """``"states"`` or ``"inputs"``."""
    value: float
    block: str
    """The name of the block that holds it."""

    def error(self, *, of: str = "") -> KannError:
        """The error to raise; ``of`` says whose states they are, such as ``" of layer 'rnn'"``."""
        where = ""
        if self.block:
            where = f"{self.block}: "
        return NotFiniteError(
            f"{where}{self.what}{of} hold {self.value} at sequence {self.sequence}, step {self.step}, unit "
            f"{self.unit}; leave that sequence out, or find out why the network diverged there"
        )


def find_not_finite(block: Block, *, first_inputs: bool = False) -> NotFinite | None:
    """The first NaN or infinite number of a block, if it holds one.

    What the network read to reach the first state of a sequence belongs to no pair of states. It counts only with
    ``first_inputs``.
    """
    found = [_in_rows(block, block.values, "states", ignored=None)]
    if block.inputs is not None:
        ignored = block.offsets[block.steps == 0]
        if first_inputs:
            ignored = None
        found.append(_in_rows(block, block.inputs, "inputs", ignored=ignored))
    return min(filter(None, found), default=None)


def _in_rows(block: Block, values: AnyArray, what: str, *, ignored: Int[Array, " k"] | None) -> NotFinite | None:
    xp = namespace(values)
    # A sum that is finite needs no second look; one that is not may have overflowed.
    if bool(xp.isfinite(xp.sum(values))) or bool(xp.all(xp.isfinite(values))):
        return None
    bad = ~np.isfinite(as_numpy(values))
    if ignored is not None:
        bad[ignored] = False
    places = np.argwhere(bad)
    if not len(places):
        return None
    row, unit = places[0].tolist()
    inside = int(np.searchsorted(block.offsets, row, side="right")) - 1
    return NotFinite(
        sequence=int(block.numbers[inside]),
        step=int(block.steps[inside] + row - block.offsets[inside]),
        unit=unit,
        what=what,
        value=float(values[row, unit]),
        block=block.name,
    )
