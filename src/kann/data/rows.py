"""Rows that are read when they are sliced, and ways to cut rows into ranges."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.backends.arrays import as_array, as_numpy, is_contiguous, namespace, run_indices, to_device_of
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
