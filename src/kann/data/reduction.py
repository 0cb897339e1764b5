"""The one reduction over states, wherever they are: in memory, on a GPU, on disk, or in chunks on Dask.

This module alone knows where rows live. A quantity is described to it by an `Accumulator`, which is handed blocks of
rows in float64, and the pairs of states that lie on two sides of the end of a block. States in this process are one
block, read piece by piece. Dask reads chunk by chunk (`kann.data.chunks`) and adds the results. With
`summed_over_ranks` the results of all ranks of torch.distributed are added too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from kann.backends._distributed import add_results
from kann.backends.arrays import (
    HOST_MIN_ROWS,
    Float64Buffer,
    as_array,
    as_numpy,
    block_rows,
    is_contiguous,
    is_dask,
    namespace,
    run_indices,
    threads_for,
    to_device_of,
)
from kann.errors import KannError, NotFiniteError
from kann.progress import progress
from kann.typing import AnyArray, Array, Float, Int


class LazyRows(ABC):
    """(N, d) rows with numpy's indexing along the first axis: a number, a slice, or an array of numbers."""

    ndim = 2
    shape: tuple[int, int]
    dtype: Any

    @abstractmethod
    def read(self, start: int, stop: int) -> AnyArray:
        """Return rows from ``start`` to before ``stop``, with 0 <= start <= stop <= N."""

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
        """Return rows of the sequences that ``start:stop`` touches."""
        if start == stop:  # of the right kind and on the right device; nothing is read for it
            is_numpy = namespace(self.padded) is namespace(np.empty(0))
            return np.empty((0, self.shape[1]), dtype=self.dtype) if is_numpy else self.padded[:1, 0][:0]
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Projection:
    """Coordinates (h − mean) @ matrix of states h, to be computed as they are read."""

    matrix: Float[Array, "d r"]
    mean: Float[Array, " d"]

    def of(self, rows: AnyArray) -> AnyArray:
        """Return the coordinates of float64 rows, which are overwritten."""
        rows -= to_device_of(rows, self.mean)
        return rows @ to_device_of(rows, self.matrix)


def sequence_ranges(lengths: Int[Array, " s"], max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges ``(first, last)`` of sequences with at most ``max_rows`` rows together, or of one longer one."""
    stops = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        start = int(stops[first] - lengths[first])
        last = int(np.searchsorted(stops, start + max_rows, side="right"))
        last = max(last, first + 1)
        yield first, last
        first = last


def row_ranges(lengths: Int[Array, " s"], max_rows: int) -> Iterator[tuple[int, int]]:
    """Return ranges ``(start, stop)`` of at most ``max_rows`` rows; only a sequence longer than that is cut."""
    stops = np.cumsum(lengths)
    for first, last in sequence_ranges(lengths, max_rows):
        start, end = int(stops[first] - lengths[first]), int(stops[last - 1])
        for low in range(start, end, max_rows):
            yield low, min(low + max_rows, end)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Block:
    """Consecutive rows of states: whole sequences, or pieces of sequences that were cut.

    Arrays about sequences have one entry for each of them, in the order of their rows.
    """

    values: AnyArray
    """(n, d) the states."""
    inputs: AnyArray | None
    """(n, p) what the network read to reach each state, or None."""
    lengths: Int[Array, " k"]
    """Number of rows of each sequence in this block."""
    numbers: Int[Array, " k"]
    """Which sequence it is, among all sequences."""
    starts: Int[Array, " k"]
    """The row at which that sequence starts, among all rows."""
    steps: Int[Array, " k"]
    """The step of the sequence at which its rows in this block begin: 0 unless it was cut before."""
    name: str = ""
    """The name of the block in errors; empty if there is only one."""
    rounding: float = 0.0
    """Relative spacing of the states' numbers before they were converted to float64."""
    input_rounding: float = 0.0
    """The same for the inputs."""

    @property
    def offsets(self) -> Int[Array, " k"]:
        """The row of this block at which each sequence begins."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def before(self) -> Int[Array, " m"]:
        """The row in this block of the first state of each pair inside the block."""
        return np.delete(np.arange(self.values.shape[0]), self.offsets + self.lengths - 1)

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

    Each piece may be overwritten, and is overwritten when the next one is read. ``inputs`` is True if inputs are
    wanted; where a ``projection`` is given, states are projected.
    """
    source = block.inputs if inputs else None
    width = block.values.shape[1] + (0 if source is None else source.shape[1])
    max_rows = min(block_rows(block.values[0:1], width), block.values.shape[0])
    states = Float64Buffer(block.values, max_rows)
    drives = None if source is None else Float64Buffer(source, max_rows)
    offsets = block.offsets
    for start, stop in row_ranges(block.lengths, max_rows):
        at, steps, lengths = pieces(offsets, start, stop)
        values = states.read(start, stop)
        yield Block(
            values=values if projection is None else projection.of(values),
            inputs=drives and drives.read(start, stop),
            lengths=lengths,
            numbers=block.numbers[at],
            starts=block.starts[at],
            steps=block.steps[at] + steps,
            name=block.name,
            rounding=states.rounding,
            input_rounding=drives.rounding if drives else 0.0,
        )


def pieces(offsets: Int[Array, " s"], start: int, stop: int) -> tuple[slice, Int[Array, " k"], Int[Array, " k"]]:
    """Find the sequences in rows ``start:stop``: which of those that begin at ``offsets``, first steps, lengths."""
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, stop))
    begin = np.maximum(offsets[first:last], start)
    return slice(first, last), begin - offsets[first:last], np.diff(np.append(begin, stop))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NotFinite:
    """A NaN or an infinite number, and its position; the first of several is the smallest."""

    sequence: int
    step: int
    unit: int
    what: str
    """``"states"`` or ``"inputs"``."""
    value: float
    block: str
    """The name of the block that holds it."""

    def error(self, *, of: str = "") -> KannError:
        """Return the error to raise; ``of`` names the owner of the states, such as ``" of layer 'rnn'"``."""
        where = f"{self.block}: " if self.block else ""
        value = str(self.value).replace("nan", "NaN")
        return NotFiniteError(
            f"{where}{self.what}{of} hold {value} at sequence {self.sequence}, step {self.step}, unit {self.unit}; "
            "look for NaN in the data of that sequence, or leave it out if the network diverged there"
        )


def find_not_finite(block: Block, *, first_inputs: bool = False) -> NotFinite | None:
    """Return the first NaN or infinite number of a block, if it holds one.

    The input that led to the first state of a sequence belongs to no pair of states. It counts only with
    ``first_inputs``.
    """
    found = []
    for what, values in {"states": block.values, "inputs": block.inputs}.items():
        xp = namespace(values)
        # A sum that is finite needs no second look; one that is not may have overflowed.
        if values is None or bool(xp.isfinite(xp.sum(values))) or bool(xp.all(xp.isfinite(values))):
            continue
        bad = ~np.isfinite(as_numpy(values))
        if what == "inputs" and not first_inputs:
            bad[block.offsets[block.steps == 0]] = False
        for row, unit in np.argwhere(bad)[:1].tolist():
            inside = int(np.searchsorted(block.offsets, row, side="right")) - 1
            sequence, step = int(block.numbers[inside]), int(block.steps[inside] + row - block.offsets[inside])
            value = float(values[row, unit])
            found.append(NotFinite(sequence=sequence, step=step, unit=unit, what=what, value=value, block=block.name))
    return min(found, default=None)


T = TypeVar("T", bound="Additive")


class Additive:
    """Dataclasses that are added field by field: with ``+``, or by the function that ``ADDED_BY`` names.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Seen(Additive):
    ...     count: int
    ...     largest: float
    ...     ADDED_BY = {"largest": max}
    >>> Seen(3, 0.5) + Seen(4, 0.1)
    Seen(count=7, largest=0.5)
    """

    __slots__ = ()
    ADDED_BY: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = MappingProxyType({})

    def __add__(self: T, other: T) -> T:
        if type(other) is not type(self):
            return NotImplemented
        names = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return type(self)(**{name: self.ADDED_BY.get(name, added)(*pair) for name, pair in pairs.items()})


def added(one: Any, other: Any) -> Any:
    """Add numbers and arrays, and dicts and lists entry by entry; None, for unknown, if one of them is None."""
    if one is None or other is None:
        return None
    if isinstance(one, dict):
        return one | {key: added(one[key], value) if key in one else value for key, value in other.items()}
    return [added(*pair) for pair in zip(one, other, strict=True)] if isinstance(one, list) else one + other


_over_ranks: ContextVar[bool] = ContextVar("_over_ranks", default=False)
"""Whether results are added up over the ranks of torch.distributed."""


@runtime_checkable
class Accumulator(Protocol):
    """Something that is summed over all states, or over all pairs of consecutive states."""

    needs_pairs: bool
    """Whether pairs of states on two sides of the end of a block matter."""

    def add(self, block: Block) -> None:
        """Take the rows of a block, and the pairs inside it. The block's arrays may be overwritten."""

    def add_cut(self, cut: Cut) -> None:
        """Take the pairs that lie on two sides of the end of a block."""

    def result(self) -> Any:
        """Return the sum. Results of several accumulators must add up with ``+``."""


class SumOverBlocks:
    """Accumulates a function of a block and, where pairs matter, a function of a cut."""

    def __init__(self, of_block: Callable[[Block], Any], of_cut: Callable[[Cut], Any] | None = None):
        self._of_block, self._of_cut, self._total = of_block, of_cut, None
        self.needs_pairs = of_cut is not None

    def add(self, block: Block) -> None:
        """Add the function of a block."""
        self._add(self._of_block(block))

    def add_cut(self, cut: Cut) -> None:
        """Add the function of a cut."""
        if self._of_cut is not None:
            self._add(self._of_cut(cut))

    def _add(self, value: Any) -> None:
        if self._total is None:
            self._total = value
        else:
            self._total += value

    def result(self) -> Any:
        """Return the sum over all blocks and cuts."""
        return self._total


def add_to(totals: dict[Any, Any], name: Any, value: Any) -> None:
    """Add a value to the total of this name, in place where there is one."""
    if name in totals:
        totals[name] += value
    else:
        totals[name] = value


def accumulate(
    states: Any,
    make: Callable[[], Accumulator],
    *,
    inputs: bool = False,
    projection: Projection | None = None,
    what: str = "states",
) -> Any:
    """Hand all states to accumulators that ``make`` makes, and return the sum of their results.

    ``inputs`` is True if inputs are needed. With a ``projection`` the accumulators are handed coordinates instead
    of states. ``what`` is the title of the progress bar.
    """
    inputs = inputs and states.inputs is not None

    def here() -> Any:
        if runs_on_dask(states):
            from kann.data.chunks import accumulate_on_dask  # here, since most states are in memory

            return accumulate_on_dask(states, make, inputs=inputs, projection=projection)
        number = np.arange(len(states.lengths))
        whole = Block(
            values=states.values,
            inputs=states.inputs,
            lengths=states.lengths,
            numbers=number,
            starts=states.starts,
            steps=np.zeros_like(number),
        )
        return reduce_block(make(), whole, inputs=inputs, projection=projection, what=what)

    return add_results(here) if _over_ranks.get() else here()


@contextmanager
def summed_over_ranks(over_ranks: bool = True) -> Iterator[None]:
    """Let every `accumulate` inside add up what all ranks of torch.distributed find; or let none of them."""
    token = _over_ranks.set(over_ranks)
    try:
        yield
    finally:
        _over_ranks.reset(token)


def are_summed_over_ranks() -> bool:
    """Return whether `accumulate` adds up the results of all ranks."""
    return _over_ranks.get()


def number_of_all_ranks(own: int) -> int:
    """Return the sum of a number over the ranks, where `accumulate` sums over them; else the number itself."""
    return add_results(lambda: own) if _over_ranks.get() else own


def require_finite(states: Any, *, inputs: bool) -> None:
    """Raise if states or inputs are NaN or infinite, and say where the first one is. Reads everything."""
    make = partial(SumOverBlocks, lambda block: [find_not_finite(block)])
    found = [each for each in accumulate(states, make, inputs=inputs, what="search for NaN") if each is not None]
    if found:
        raise min(found).error()


def map_rows(values: AnyArray, function: Callable[[AnyArray], AnyArray], *, width: int, dtype: Any) -> AnyArray:
    """Apply a function of single states to all of them; it makes rows of ``width`` numbers.

    Of a dask array the result is a dask array. Rows on disk are read in blocks, into a numpy array.
    """
    if is_dask(values):
        from kann.data.chunks import map_chunks

        return map_chunks(values, function, width=width, dtype=dtype)
    if not isinstance(values, LazyRows):
        return function(values)
    result = np.empty((len(values), width), dtype=dtype)
    step = block_rows(values[0:1], values.shape[1])
    for start in range(0, len(values), step):
        result[start : start + step] = as_numpy(function(values[start : start + step]))
    return result


def take_rows(values: AnyArray, rows: Int[Array, " k"]) -> AnyArray:
    """Return some rows, in increasing order, as a numpy array; of a dask array in a single computation."""
    source = _source_array(values)
    if is_dask(source) and source is not values:
        sequences = np.searchsorted(np.cumsum(values.lengths), rows, side="right")
        steps = rows - (np.cumsum(values.lengths) - values.lengths)[sequences]
        return as_numpy(source.vindex[sequences, steps])
    return as_numpy(values[rows])


def rows_of_padded(values: AnyArray, lengths: Int[Array, " s"]) -> AnyArray:
    """Return the real steps of padded (S, T, d) values one after the other, without copying them."""
    if is_contiguous(values) and (lengths == values.shape[1]).all():
        return values.reshape(-1, values.shape[2])
    return PaddedRows(values, lengths)


def read_unless_dask(rows: AnyArray, inputs: AnyArray | None) -> tuple[AnyArray, AnyArray | None]:
    """Return rows and inputs in memory; where the rows are those of a dask array, both stay as they are."""
    if is_dask(_source_array(rows)):
        return rows, inputs
    return rows[:], None if inputs is None else inputs[:]


def runs_on_dask(states: Any) -> bool:
    """Return whether Dask reads these states: a dask array, a store at an address, any store if there is a client."""
    values = _source_array(states.values)
    if is_dask(values) or not hasattr(values, "is_remote"):  # only the rows and arrays of stores have it
        return is_dask(values)
    from kann.data.chunks import current_client

    return values.is_remote or current_client() is not None


def _source_array(values: AnyArray) -> AnyArray:
    """Return the array that rows are taken from: of padded rows the padded one, else the rows themselves."""
    return values.padded if isinstance(values, PaddedRows) else values


def reduce_block(
    accumulator: Accumulator, block: Block, *, inputs: bool, projection: Projection | None, what: str = "states"
) -> Any:
    """Read a block piece by piece, and hand over each piece and each pair that two pieces separate."""
    read, squares = float64_blocks(block, inputs=inputs, projection=projection), block.values.shape[1] ** 2
    if block.values.shape[0] > HOST_MIN_ROWS:  # less is read at once
        read = progress(read, what=what, unit="block")
    sequence, last_row = -1, None
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found in the result
        for piece in read:
            if piece.numbers[0] == sequence:  # the piece before ended inside this sequence
                # Copies, since the accumulator may overwrite the piece and the cut.
                after, read_there = piece.values[:1] + 0, None if piece.inputs is None else piece.inputs[:1] + 0
                at = piece.starts[:1] + piece.steps[:1]
                accumulator.add_cut(Cut(before=last_row, after=after, inputs=read_there, rows=at))
            sequence, last_row = piece.numbers[-1], piece.values[-1:] + 0
            with threads_for(len(piece.values) * squares):
                accumulator.add(piece)
        return accumulator.result()
