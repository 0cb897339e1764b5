"""Rows that are read or computed when they are sliced, in place of an array that would not fit."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from kann.backends.arrays import as_array, as_numpy, float64_copy, is_contiguous, namespace, runs
from kann.typing import AnyArray, Array, Int


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
        return rows[0] if np.ndim(key) == 0 else rows

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
        self._flat = values.reshape(-1, values.shape[2]) if is_contiguous(values) else None

    def read(self, start: int, stop: int) -> AnyArray:
        """Rows of the sequences that ``start:stop`` touches."""
        if start == stop:
            # Nothing is read for it: a tensor says by itself where it is, anything else is numpy's once it is read.
            is_tensor = namespace(self.padded) is not namespace(np.empty(0))
            return self.padded[:1, 0][:0] if is_tensor else np.empty((0, self.shape[1]), dtype=self.dtype)
        first, last = np.searchsorted(self._stops, [start, stop - 1], side="right").tolist()
        sequences = np.arange(first, last + 1)
        begin = np.maximum(start - self._starts[sequences], 0)
        lengths = np.minimum(stop - self._starts[sequences], self.lengths[sequences]) - begin
        if self._flat is not None:
            return self._flat[runs(sequences * self.padded.shape[1] + begin, lengths, self._flat)]
        # Cut the box around the wanted rows first: of values on disk, that is what gets read.
        early, late = int(begin[lengths > 0].min()), int((begin + lengths).max())
        box = as_array(self.padded[first : last + 1, early:late])
        flat = box.reshape(-1, box.shape[2])
        return flat[runs((sequences - first) * (late - early) + begin - early, lengths, flat)]


class MappedRows(LazyRows):
    """(rows − mean) @ matrix in float64."""

    def __init__(self, values: AnyArray, matrix: Array, mean: Array):
        self.source, self.matrix, self.mean = values, matrix, mean
        self.shape = (int(values.shape[0]), matrix.shape[1])
        self.dtype = matrix.dtype

    def read(self, start: int, stop: int) -> AnyArray:
        """The mapped rows, on the device where the values are."""
        rows = float64_copy(self.source[start:stop])
        matrix, mean = (namespace(rows).asarray(part, device=rows.device) for part in (self.matrix, self.mean))
        rows -= mean
        return rows @ matrix


def read_width(values: AnyArray) -> int:
    """How many numbers are read for each row: of mapped rows, those of their source."""
    return int(values.source.shape[1] if isinstance(values, MappedRows) else values.shape[1])
