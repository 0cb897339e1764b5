"""The reduction on Dask: chunks of a dask array, padded or not, or of a store.

A chunk may cut sequences. Its block then holds pieces of them, and the pairs that its end separates are added by
themselves.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.backends.arrays import as_array, float64_copy
from kann.backends.dask import as_dask_array, compute_sum, delayed
from kann.data import store
from kann.data.reduction import Accumulator, Block, Cut, PaddedRows, Projection, RaggedRows, pieces, reduce_block
from kann.data.store import StoredRows
from kann.errors import KannError
from kann.typing import AnyArray, Array, Int

MIN_TASK_BYTES = 64 * 2**20
"""Bytes of a store that one task reads at least, part by part, so that there are far fewer tasks than parts."""

MIN_TASK_ROWS_PER_UNIT = 8
"""Rows of a store per unit that one task reads at least: they must outweigh the d × d matrices it sends."""

MAX_STORE_TASKS = 4096
"""Into how many tasks a store is cut at most: of more data each task reads more, and no more matrices are sent."""

CORRECT_CHUNKS = "correct its chunks, as with dask's compute_chunk_sizes()"
"""The remedy where chunks have other shapes than the dask array says."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Chunk:
    """A chunk that a worker will read, and what is known of it before."""

    name: str
    read: Callable[..., Block]
    """Makes the block on a worker, from these arguments, some of which are delayed."""
    arguments: tuple
    cut: tuple | None = None
    """The parts of the `Cut` at the end of this chunk, some of them delayed; None if no sequence is cut there."""


def _as_dask(array: Any, *, chunks: Any = None) -> Any:
    if isinstance(array, store.ForeignArray):
        array = store.ReachableArray(array)
    return as_dask_array(array, chunks=chunks)


def _bounds(sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(number, start, stop) of each chunk along an axis, without the empty ones."""
    stops = np.cumsum(sizes).tolist()
    return [(i, stop - size, stop) for i, (size, stop) in enumerate(zip(sizes, stops, strict=True)) if size]


def chunks_of_rows(states: RaggedRows, drive: AnyArray | None) -> Iterator[Chunk]:
    """Chunks of the rows of all sequences one after the other, which may end anywhere."""
    array = _as_dask(states.values)
    blocks, drives = array.to_delayed()[:, 0], None
    if drive is not None:
        drives = _as_dask(drive, chunks=array.chunks[:1]).to_delayed()[:, 0]
    bounds = _bounds(array.chunks[0])
    for place, (i, start, stop) in enumerate(bounds):
        at, steps, lengths = pieces(states.starts, start, stop)
        cut, places = None, (np.arange(at.start, at.stop), states.starts[at], steps)
        ends_inside = at.stop == len(states.lengths) or int(states.starts[at.stop]) != stop
        if ends_inside and place + 1 < len(bounds):
            ends = slice(-1, None), slice(0, 1)
            cut = _cut_between(blocks, drives, i, bounds[place + 1][0], ends, np.array([stop]))
        read = None if drives is None else drives[i]
        yield Chunk(
            name=f"chunk {i} of the dask array (rows {start} to {stop - 1})",
            read=_read_rows,
            arguments=(blocks[i], read, (stop - start, array.shape[1]), lengths, *places),
            cut=cut,
        )


def chunks_of_padded(states: RaggedRows, rows: PaddedRows, drive: AnyArray | None) -> Iterator[Chunk]:
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
            cut, places = None, (low + real, starts[real], np.full(len(real), early))
            read = None if drives is None else drives[i, j]
            if len(longer):
                ends = (longer, -1), (longer, 0)
                cut = _cut_between(blocks, drives, (i, j), (i, times[place + 1][0]), ends, starts[longer] + late)
            yield Chunk(
                name=f"chunk ({i}, {j}) of the dask array (sequences {low} to {high - 1}, steps {early} to {late - 1})",
                read=_read_padded,
                arguments=(blocks[i, j], read, (high - low, late - early, array.shape[2]), here, *places),
                cut=cut,
            )


def _padded(drive: AnyArray, *, like: Any) -> AnyArray:
    """Inputs with the axes (sequence, time, input) of the states ``like``."""
    if isinstance(drive, PaddedRows):
        return drive.padded
    return drive.reshape(*like.shape[:2], drive.shape[1])  # without padding, they are kept as rows


def _cut_between(blocks: Any, drives: Any, here: Any, there: Any, ends: tuple, rows: Int[Array, " k"]) -> tuple:
    """Return `Chunk.cut` for two blocks; ``ends`` are the last rows of one and the first rows of the other."""
    take = delayed(_take)
    inputs = None if drives is None else take(drives[there], ends[1])
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


def chunks_of_store(states: RaggedRows, rows: StoredRows) -> Iterator[Chunk]:
    """Runs of parts of a store, which workers open themselves. Parts hold whole sequences, so none is cut."""
    stops = rows.part_stops
    # A worker's current folder may be another one.
    path = rows.path if store.is_url(rows.path) else os.path.abspath(rows.path)
    bytes_per_row = rows.shape[1] * rows.dtype.itemsize
    min_rows = max(
        MIN_TASK_BYTES // bytes_per_row, MIN_TASK_ROWS_PER_UNIT * rows.shape[1], len(rows) // MAX_STORE_TASKS
    )
    first = start = 0
    while first < len(stops):
        last = min(int(np.searchsorted(stops, start + min_rows)) + 1, len(stops))
        stop = int(stops[last - 1])
        at = slice(*np.searchsorted(states.starts, [start, stop]))
        starts = states.starts[at]
        places = (np.arange(at.start, at.stop), starts, np.zeros_like(starts))
        yield Chunk(
            name=f"parts {first} to {last - 1} of {rows.path}",
            read=_read_parts,
            arguments=(path, rows.identity, slice(first, last), states.lengths[at], *places),
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


def accumulate_on_dask(
    states: RaggedRows,
    make: Callable[[], Accumulator],
    *,
    inputs: bool,
    projection: Projection | None,
) -> Any:
    """Return the sum over all chunks; nothing leaves a worker but results, and one row for each sequence cut."""
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
        return reduce_block(make(), read(name, *arguments), inputs=inputs, projection=projection)
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
    before, after, accumulator = float64_copy(before), float64_copy(after), make()
    if projection is not None:
        before, after = projection.of(before), projection.of(after)
    if inputs is not None:
        inputs = float64_copy(inputs)
    with np.errstate(over="ignore", invalid="ignore"):
        accumulator.add_cut(Cut(before=before, after=after, inputs=inputs, rows=rows))
        return accumulator.result()


def _chunks(states: RaggedRows, *, inputs: bool) -> Iterator[Chunk]:
    values, drive = states.values, states.inputs if inputs else None
    if isinstance(values, StoredRows):
        return chunks_of_store(states, values)
    return chunks_of_padded(states, values, drive) if isinstance(values, PaddedRows) else chunks_of_rows(states, drive)
