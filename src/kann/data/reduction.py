"""The one reduction over states, wherever they are: in memory, on a GPU, on disk, or in chunks on Dask.

This module alone knows where rows live. A quantity is described to it by an `Accumulator`, which is handed blocks of
rows in float64, and the pairs of states that lie on two sides of the end of a block. States in this process are one
block, read piece by piece. Dask reads chunk by chunk, on the current client or in this process, and adds the results:
nothing leaves a worker but results, and one row for each sequence that a chunk cuts.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kann.backends.arrays import as_array, as_numpy, block_rows, float64_copy, is_contiguous, is_dask
from kann.backends.dask import as_dask_array, compute_sum, current_client, delayed, map_chunks
from kann.data import store
from kann.data.blocks import Block, Cut, NotFinite, find_not_finite, float64_blocks, pieces
from kann.data.rows import LazyRows, PaddedRows, Projection
from kann.data.store import StoredRows
from kann.errors import KannError
from kann.progress import progress
from kann.typing import AnyArray, Array, Int

MIN_TASK_BYTES = 64 * 2**20
"""How much of a store one task reads at least, part by part, so that there are far fewer tasks than parts."""

MIN_TASK_ROWS_PER_UNIT = 8
"""How many rows of a store one task reads at least, for each unit: they must outweigh the d × d matrices it sends."""

MAX_STORE_TASKS = 4096
"""Into how many tasks a store is cut at most: of more data each task reads more, and no more matrices are sent."""

CORRECT_CHUNKS = "correct its chunks, as with dask's compute_chunk_sizes()"
"""The remedy where chunks have other shapes than the dask array says."""


@runtime_checkable
class RaggedRows(Protocol):
    """Rows of sequences of different lengths, one after the other: `kann.States`, or what looks like it."""

    @property
    def values(self) -> AnyArray:
        """(N, d) the rows."""

    @property
    def inputs(self) -> AnyArray | None:
        """(N, p) what led to each of them, or None."""

    @property
    def lengths(self) -> Any:
        """(S,) how many rows each sequence has."""

    @property
    def starts(self) -> Any:
        """(S,) the row at which each sequence starts."""


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
        """The sum. Results of several accumulators must add up with ``+``."""


class Total:
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
        """The sum over all blocks and cuts."""
        return self._total


def accumulate(
    states: RaggedRows,
    make: Callable[[], Accumulator],
    *,
    inputs: bool = False,
    projection: Projection | None = None,
    what: str = "states",
) -> Any:
    """Hand all states to accumulators that ``make`` makes, and return the sum of their results.

    ``inputs`` says whether the inputs are needed. With a ``projection`` the accumulators are handed coordinates instead
    of states. ``what`` is the title of the progress bar.
    """
    inputs = inputs and states.inputs is not None
    if runs_on_dask(states):
        return _accumulate_on_dask(states, make, inputs=inputs, projection=projection)
    return _reduce_block(make(), _whole(states), inputs=inputs, projection=projection, what=what)


def require_finite(states: RaggedRows, *, inputs: bool) -> None:
    """Refuse states or inputs that are NaN or infinite, and say where the first one is. Reads everything."""
    found = accumulate(states, partial(Total, _not_finite), inputs=inputs, what="search for NaN")
    if found:
        raise min(found).error()


def _not_finite(block: Block) -> list[NotFinite]:
    found = find_not_finite(block)
    if found is None:
        return []
    return [found]


def map_rows(values: AnyArray, function: Callable[[AnyArray], AnyArray], *, width: int, dtype: Any) -> AnyArray:
    """Apply a function of single states to all of them; it makes rows of ``width`` numbers.

    Of a dask array the result is a dask array. Rows on disk are read in blocks, into a numpy array.
    """
    if is_dask(values):
        return map_chunks(values, function, width=width, dtype=dtype)
    if not isinstance(values, LazyRows):
        return function(values)
    result = np.empty((len(values), width), dtype=dtype)
    step = block_rows(values[0:1], values.shape[1])
    for start in range(0, len(values), step):
        result[start : start + step] = as_numpy(function(values[start : start + step]))
    return result


def take_rows(values: AnyArray, rows: Int[Array, " k"]) -> AnyArray:
    """Some rows, in increasing order, as a numpy array; of a dask array in a single computation."""
    source = _source_array(values)
    if is_dask(source) and source is not values:
        sequences = np.searchsorted(np.cumsum(values.lengths), rows, side="right")
        steps = rows - (np.cumsum(values.lengths) - values.lengths)[sequences]
        return as_numpy(source.vindex[sequences, steps])
    return as_numpy(values[rows])


def rows_of_padded(values: AnyArray, lengths: Int[Array, " s"]) -> AnyArray:
    """The real steps of padded (S, T, d) values one after the other, without copying them."""
    if is_contiguous(values) and (lengths == values.shape[1]).all():
        return values.reshape(-1, values.shape[2])
    return PaddedRows(values, lengths)


def read_unless_dask(rows: AnyArray, inputs: AnyArray | None) -> tuple[AnyArray, AnyArray | None]:
    """Rows and inputs in memory; where the rows are those of a dask array, both stay as they are."""
    if is_dask(_source_array(rows)):
        return rows, inputs
    if inputs is not None:
        inputs = inputs[:]
    return rows[:], inputs


def runs_on_dask(states: RaggedRows) -> bool:
    """Whether Dask reads these states: a dask array, a store at an address, or any store if there is a client."""
    values = _source_array(states.values)
    if is_dask(values):
        return True
    if isinstance(values, StoredRows):
        return store.is_url(values.path) or current_client() is not None
    return store.is_zarr(values) and (store.is_remote(values) or current_client() is not None)


def _source_array(values: AnyArray) -> AnyArray:
    """The array that rows are taken from: of padded rows the padded one, else the rows themselves."""
    if isinstance(values, PaddedRows):
        return values.padded
    return values


# In this process


def _whole(states: RaggedRows) -> Block:
    """All states as one block without cuts."""
    number = np.arange(len(states.lengths))
    return Block(
        values=states.values,
        inputs=states.inputs,
        lengths=states.lengths,
        numbers=number,
        starts=states.starts,
        steps=np.zeros_like(number),
    )


def _reduce_block(
    accumulator: Accumulator, block: Block, *, inputs: bool, projection: Projection | None, what: str = "states"
) -> Any:
    """Read a block piece by piece, and hand over each piece and each pair that two pieces separate."""
    read = float64_blocks(block, inputs=inputs, projection=projection)
    sequence, last_row = -1, None
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found in the result
        for piece in progress(read, what=what, unit="block"):
            if piece.numbers[0] == sequence:  # the piece before ended inside this sequence
                accumulator.add_cut(_cut_before(piece, last_row))
            sequence, last_row = piece.numbers[-1], piece.values[-1:] + 0
            accumulator.add(piece)
        return accumulator.result()


def _cut_before(piece: Block, last_row: AnyArray) -> Cut:
    """The pair of the row before a piece and its first row, copied since the piece may be overwritten."""
    inputs = piece.inputs
    if inputs is not None:
        inputs = inputs[:1] + 0
    return Cut(before=last_row, after=piece.values[:1] + 0, inputs=inputs, rows=piece.starts[:1] + piece.steps[:1])


# On Dask


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Chunk:
    """A chunk that a worker will read, and what is known of it before."""

    name: str
    read: Callable[..., Block]
    """Makes the block on a worker, from these arguments, some of which are delayed."""
    arguments: tuple
    cut: tuple | None = None
    """Arguments of `_add_cut` for the end of this chunk, some of which are delayed; None if it cuts no sequence."""


def _accumulate_on_dask(
    states: RaggedRows,
    make: Callable[[], Accumulator],
    *,
    inputs: bool,
    projection: Projection | None,
) -> Any:
    shared = delayed(make), delayed(projection)  # in the graph once, not once for each chunk
    needs_pairs = make().needs_pairs
    tasks = []
    for chunk in _chunks(states, inputs=inputs):
        tasks.append(delayed(_add_chunk)(*shared, inputs, chunk.name, chunk.read, *chunk.arguments))
        if needs_pairs and chunk.cut is not None:
            tasks.append(delayed(_add_cut)(*shared, *chunk.cut))
    return compute_sum(tasks)


def _add_chunk(
    make: Callable[[], Accumulator],
    projection: Projection | None,
    inputs: bool,
    name: str,
    read: Callable[..., Block],
    *arguments: Any,
) -> Any:
    """Run on a worker: the result for one chunk. An error says which chunk it was."""
    try:
        return _reduce_block(make(), read(name, *arguments), inputs=inputs, projection=projection)
    except KannError as error:
        message = str(error)
    # Raised outside of the block above: the cause of an error need not be something that can be sent.
    raise KannError(f"{name}: {message}")


def _add_cut(
    make: Callable[[], Accumulator],
    projection: Projection | None,
    before: AnyArray,
    after: AnyArray,
    inputs: AnyArray | None,
    rows: Int[Array, " k"],
) -> Any:
    """Run on a worker: the result for the pairs that the end of a chunk separates."""
    before, after = float64_copy(before), float64_copy(after)
    if inputs is not None:
        inputs = float64_copy(inputs)
    if projection is not None:
        before, after = projection.of(before), projection.of(after)
        if inputs is not None:
            inputs = projection.of_inputs(inputs)
    accumulator = make()
    with np.errstate(over="ignore", invalid="ignore"):
        accumulator.add_cut(Cut(before=before, after=after, inputs=inputs, rows=rows))
        return accumulator.result()


def _chunks(states: RaggedRows, *, inputs: bool) -> Iterator[_Chunk]:
    values, drive = states.values, None
    if inputs:
        drive = states.inputs
    if isinstance(values, StoredRows):
        return _chunks_of_store(states, values)
    if isinstance(values, PaddedRows):
        return _chunks_of_padded(states, values, drive)
    return _chunks_of_rows(states, drive)


def _as_dask(array: Any, *, chunks: Any = None) -> Any:
    if store.is_zarr(array):
        array = store.ReachableArray(array)
    return as_dask_array(array, chunks=chunks)


def _bounds(sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(number, start, stop) of each chunk along an axis, without the empty ones."""
    stops = np.cumsum(sizes).tolist()
    return [(i, stop - size, stop) for i, (size, stop) in enumerate(zip(sizes, stops, strict=True)) if size]


def _chunks_of_rows(states: RaggedRows, drive: AnyArray | None) -> Iterator[_Chunk]:
    """Chunks of the rows of all sequences one after the other, which may end anywhere."""
    array = _as_dask(states.values)
    blocks, drives = array.to_delayed()[:, 0], None
    if drive is not None:
        drives = _as_dask(drive, chunks=array.chunks[:1]).to_delayed()[:, 0]
    bounds = _bounds(array.chunks[0])
    for place, (i, start, stop) in enumerate(bounds):
        at, steps, lengths = pieces(states.starts, start, stop)
        cut = None
        ends_inside = at.stop == len(states.lengths) or int(states.starts[at.stop]) != stop
        if ends_inside and place + 1 < len(bounds):
            cut = _cut_between(
                blocks, drives, i, bounds[place + 1][0], (slice(-1, None), slice(0, 1)), np.array([stop])
            )
        yield _Chunk(
            name=f"chunk {i} of the dask array (rows {start} to {stop - 1})",
            read=_read_rows,
            arguments=(
                blocks[i],
                _entry(drives, i),
                (stop - start, array.shape[1]),
                lengths,
                np.arange(at.start, at.stop),
                states.starts[at],
                steps,
            ),
            cut=cut,
        )


def _chunks_of_padded(states: RaggedRows, rows: PaddedRows, drive: AnyArray | None) -> Iterator[_Chunk]:
    """Chunks of padded states, which may end at any step. Those that hold padding alone are never read."""
    array = _as_dask(rows.padded)
    blocks, drives = array.to_delayed()[..., 0], None
    if drive is not None:
        drives = _as_dask(_padded(drive, like=array), chunks=array.chunks[:2]).to_delayed()[..., 0]
    times = _bounds(array.chunks[1])
    for i, low, high in _bounds(array.chunks[0]):
        lengths, starts = rows.lengths[low:high], states.starts[low:high]
        for place, (j, early, late) in enumerate(times):
            here = np.clip(lengths - early, 0, late - early)
            real, longer = np.flatnonzero(here), np.flatnonzero(lengths > late)
            if not len(real):
                break
            cut = None
            if len(longer):
                ends = (longer, -1), (longer, 0)
                cut = _cut_between(blocks, drives, (i, j), (i, times[place + 1][0]), ends, starts[longer] + late)
            yield _Chunk(
                name=f"chunk ({i}, {j}) of the dask array (sequences {low} to {high - 1}, steps {early} to {late - 1})",
                read=_read_padded,
                arguments=(
                    blocks[i, j],
                    _entry(drives, (i, j)),
                    (high - low, late - early, array.shape[2]),
                    here,
                    low + real,
                    starts[real],
                    np.full(len(real), early),
                ),
                cut=cut,
            )


def _padded(drive: AnyArray, *, like: Any) -> AnyArray:
    """Inputs with the axes (sequence, time, input) of the states ``like``."""
    if isinstance(drive, PaddedRows):
        return drive.padded
    return drive.reshape(*like.shape[:2], drive.shape[1])  # without padding, they are kept as rows


def _entry(drives: Any, place: Any) -> Any:
    if drives is None:
        return None
    return drives[place]


def _cut_between(blocks: Any, drives: Any, here: Any, there: Any, ends: tuple, rows: Int[Array, " k"]) -> tuple:
    """Arguments of `_add_cut` for two blocks, of which ``ends`` are the last and the first rows."""
    take, inputs = delayed(_take), None
    if drives is not None:
        inputs = take(drives[there], ends[1])
    return take(blocks[here], ends[0]), take(blocks[there], ends[1]), inputs, rows


def _take(block: AnyArray, places: Any) -> AnyArray:
    """Run on a worker: some rows of a block."""
    try:
        return as_array(block)[places]
    except IndexError as error:
        raise KannError(f"a chunk is smaller than the dask array says; {CORRECT_CHUNKS}") from error


def _read_rows(
    name: str, values: AnyArray, inputs: AnyArray | None, declared: tuple[int, ...], lengths: Array, *places: Array
) -> Block:
    """Run on a worker: a chunk of rows."""
    values, inputs = _as_declared(values, inputs, declared)
    return _placed(name, values, inputs, lengths, *places)


def _read_padded(
    name: str, values: AnyArray, inputs: AnyArray | None, declared: tuple[int, ...], lengths: Array, *places: Array
) -> Block:
    """Run on a worker: a chunk of padded states. ``lengths`` may be 0; ``places`` tell of the other sequences."""
    values, inputs = _as_declared(values, inputs, declared)
    if inputs is not None:
        inputs = PaddedRows(inputs, lengths)
    return _placed(name, PaddedRows(values, lengths), inputs, lengths[lengths > 0], *places)


def _as_declared(
    values: AnyArray, inputs: AnyArray | None, declared: tuple[int, ...]
) -> tuple[AnyArray, AnyArray | None]:
    """Run on a worker: the arrays of a chunk, which must have the shape that the dask array says."""
    values = as_array(values)
    if inputs is not None:
        inputs = as_array(inputs)
    for array, shape in ((values, declared), (inputs, declared[:-1])):
        if array is not None and tuple(array.shape[: len(shape)]) != shape:
            raise KannError(f"it has shape {tuple(array.shape)}, and the dask array says {shape}; {CORRECT_CHUNKS}")
    return values, inputs


def _placed(
    name: str, values: AnyArray, inputs: AnyArray | None, lengths: Array, numbers: Array, starts: Array, steps: Array
) -> Block:
    return Block(name=name, values=values, inputs=inputs, lengths=lengths, numbers=numbers, starts=starts, steps=steps)


def _chunks_of_store(states: RaggedRows, rows: StoredRows) -> Iterator[_Chunk]:
    """Runs of parts of a store, which workers open themselves. Parts hold whole sequences, so none is cut."""
    stops = rows.part_stops
    path = rows.path
    if not store.is_url(path):
        path = os.path.abspath(path)  # a worker's current folder may be another one
    bytes_per_row = rows.shape[1] * rows.dtype.itemsize
    min_rows = max(
        MIN_TASK_BYTES // bytes_per_row, MIN_TASK_ROWS_PER_UNIT * rows.shape[1], len(rows) // MAX_STORE_TASKS
    )
    first = start = 0
    while first < len(stops):
        last = min(int(np.searchsorted(stops, start + min_rows)) + 1, len(stops))
        stop = int(stops[last - 1])
        at = slice(*np.searchsorted(states.starts, [start, stop]))
        numbers, starts = np.arange(at.start, at.stop), states.starts[at]
        yield _Chunk(
            name=f"parts {first} to {last - 1} of {rows.path}",
            read=_read_parts,
            arguments=(
                path,
                rows.identity,
                slice(first, last),
                states.lengths[at],
                numbers,
                starts,
                np.zeros_like(starts),
            ),
        )
        first, start = last, stop


def _read_parts(
    name: str, path: str, identity: str | None, parts: slice, expected: Int[Array, " k"], *places: Array
) -> Block:
    """Run on a worker: open some parts of a store."""
    try:
        if not store.is_url(path) and not os.path.exists(path):
            raise FileNotFoundError(path)
        values, lengths, inputs = store.read(path, parts)
    except (KannError, FileNotFoundError) as error:
        raise KannError("a worker finds no states there; pass an address that every worker can reach") from error
    if lengths is None or not np.array_equal(lengths, expected) or values.identity != identity:
        raise KannError("a worker finds other states there; pass an address that means the same to every worker")
    return _placed(name, values, inputs, lengths, *places)
