"""The reduction on Dask: chunks of a dask array, padded or not, or of a store.

A chunk may cut sequences. Its block then holds pieces of them, and the states that follow its end come from the next
chunk.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from kann.backends.arrays import as_array, float64_copy, is_dask
from kann.data import store
from kann.data.reduction import Accumulator, Block, Cut, PaddedRows, Projection, pieces, reduce_block
from kann.data.store import StoredRows
from kann.errors import KannError
from kann.progress import SECONDS_BEFORE_BAR
from kann.typing import AnyArray, Array, Int

MIN_TASK_BYTES = 64 * 2**20
"""Bytes of a store that one task reads at least, part by part, so that there are far fewer tasks than parts."""

MIN_TASK_ROWS_PER_UNIT = 8
"""Rows of a store per unit that one task reads at least: they must outweigh the d × d matrices it sends."""

MAX_STORE_TASKS = 4096
"""Into how many tasks a store is cut at most: of more data each task reads more, and no more matrices are sent."""

SUMS_PER_TASK = 4
"""Number of sums that one task adds: few, since each of them holds d × d matrices."""

CORRECT_CHUNKS = "correct its chunks, as with dask's compute_chunk_sizes()"
"""The remedy where chunks do not have the shapes that the dask array names."""


class PartsOfStore(NamedTuple):
    """A run of parts of a store, which a worker opens itself."""

    path: str | os.PathLike[str]
    identity: str | None
    parts: slice

    def open(self, expected: Int[Array, " k"]) -> tuple[AnyArray, AnyArray | None]:
        """Return values and inputs of sequences of the expected lengths."""
        try:
            if not store.is_url(self.path) and not os.path.exists(self.path):
                raise FileNotFoundError(self.path)
            values, lengths, inputs = store.read(self.path, self.parts)
        except (KannError, FileNotFoundError) as error:
            raise KannError("a worker finds no states there; pass an address that every worker can reach") from error
        if lengths is None or not np.array_equal(lengths, expected) or values.identity != self.identity:
            raise KannError("a worker finds other states there; pass an address that means the same to every worker")
        return values, inputs


def _bounds(sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Compute (number, start, stop) of each chunk along an axis, without the empty ones."""
    stops = np.cumsum(sizes).tolist()
    return [(i, stop - size, stop) for i, (size, stop) in enumerate(zip(sizes, stops, strict=True)) if size]


def _array_tasks(states: Any, *, inputs: bool, pairs: bool) -> Iterator[tuple]:
    """Return the arguments of `_add_chunk` for each chunk of a dask array, or of an array that Dask reads."""
    rows, take, drives = states.values, delayed(_take), None
    is_padded = isinstance(rows, PaddedRows)
    array = as_dask_array(rows.padded if is_padded else rows)
    blocks = array.to_delayed()[..., 0]
    if inputs:
        drive = states.inputs
        if is_padded:  # without padding, inputs are kept as rows
            drive = drive.padded if isinstance(drive, PaddedRows) else drive.reshape(*array.shape[:2], drive.shape[1])
        drives = as_dask_array(drive, chunks=array.chunks[:-1]).to_delayed()[..., 0]

    def read(place: Any) -> tuple[Any, Any]:
        return blocks[place], None if drives is None else drives[place]

    def cut(last: Any, there: Any, first: Any, numbers: Array) -> tuple | None:
        after, drive = read(there)
        return (last, take(after, first), None if drive is None else take(drive, first), numbers) if pairs else None

    return (_padded_tasks if is_padded else _row_tasks)(states, array, read, cut)


def _row_tasks(states: Any, array: Any, read: Callable, cut: Callable) -> Iterator[tuple]:
    """Return those of rows of all sequences one after the other, whose chunks may end anywhere."""
    bounds = _bounds(array.chunks[0])
    for (i, start, stop), following in zip(bounds, [*bounds[1:], None], strict=True):
        at, steps, lengths = pieces(states.starts, start, stop)
        end = None
        if following is not None and (at.stop == len(states.lengths) or int(states.starts[at.stop]) != stop):
            end = cut(slice(-1, None), following[0], slice(0, 1), np.array([stop]))
        name, numbers = f"chunk {i} of the dask array (rows {start} to {stop - 1})", np.arange(at.start, at.stop)
        yield name, *read(i), (stop - start, array.shape[1]), lengths, numbers, states.starts[at], steps, end


def _padded_tasks(states: Any, array: Any, read: Callable, cut: Callable) -> Iterator[tuple]:
    """Yield those of padded states, whose chunks may end at any step. Chunks of padding alone are never read."""
    times = _bounds(array.chunks[1])
    for i, low, high in _bounds(array.chunks[0]):
        lengths, starts = states.lengths[low:high], states.starts[low:high]
        for (j, early, late), following in zip(times, [*times[1:], (0, 0, 0)], strict=True):
            here = np.clip(lengths - early, 0, late - early)
            real, longer = np.flatnonzero(here), np.flatnonzero(lengths > late)
            if not len(real):
                break
            end = cut((longer, -1), (i, following[0]), (longer, 0), starts[longer] + late) if len(longer) else None
            name = f"chunk ({i}, {j}) of the dask array (sequences {low} to {high - 1}, steps {early} to {late - 1})"
            shape, steps = (high - low, late - early, array.shape[2]), np.full(len(real), early)
            yield name, *read((i, j)), shape, here, low + real, starts[real], steps, end


def _store_tasks(states: Any) -> Iterator[tuple]:
    """Return the arguments of `_add_chunk` for runs of parts of a store. Parts hold whole sequences, so none is cut."""
    rows = states.values
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
        parts = delayed(PartsOfStore(path, rows.identity, slice(first, last)))
        numbers, name = np.arange(at.start, at.stop), f"parts {first} to {last - 1} of {rows.path}"
        yield name, parts, None, (), states.lengths[at], numbers, starts, np.zeros_like(starts), None
        first, start = last, stop


def _tasks(states: Any, *, inputs: bool, pairs: bool) -> Iterator[tuple]:
    is_stored = isinstance(states.values, StoredRows)
    return _store_tasks(states) if is_stored else _array_tasks(states, inputs=inputs, pairs=pairs)


def accumulate_on_dask(
    states: Any,
    make: Callable[[], Accumulator],
    *,
    inputs: bool,
    projection: Projection | None,
) -> Any:
    """Return the sum over all chunks; workers send results alone, and one row for each sequence cut."""
    add, shared = delayed(_add_chunk), (delayed(make), delayed(projection), inputs)  # in the graph once
    return compute_sum([add(*shared, *each) for each in _tasks(states, inputs=inputs, pairs=make().needs_pairs)])


def _take(block: AnyArray, places: Any) -> AnyArray:
    """Run on a worker: some rows of a block."""
    try:
        return as_array(block)[places]
    except IndexError as error:
        raise KannError(f"a chunk is smaller than the dask array says; {CORRECT_CHUNKS}") from error


def _add_chunk(
    make: Callable[[], Accumulator],
    projection: Projection | None,
    inputs: bool,
    name: str,
    values: Any,
    drive: AnyArray | None,
    shape: tuple[int, ...],
    lengths: Array,
    numbers: Array,
    starts: Array,
    steps: Array,
    cut: tuple | None,
) -> Any:
    """Run on a worker: the result for one chunk, and for the pairs that its end separates. An error names the chunk."""
    accumulator = make()
    try:
        if isinstance(values, PartsOfStore):
            values, drive = values.open(lengths)
        else:
            values = _as_declared(values, shape)
            drive = None if drive is None else _as_declared(drive, shape[:-1])
        if cut is not None:
            last, after, read, rows = cut
            before, after = float64_copy(values[last]), float64_copy(after)
            if projection is not None:
                before, after = projection.of(before), projection.of(after)
            read = None if read is None else float64_copy(read)
            with np.errstate(over="ignore", invalid="ignore"):
                accumulator.add_cut(Cut(before=before, after=after, inputs=read, rows=rows))
        if len(shape) == 3:
            values, drive = PaddedRows(values, lengths), None if drive is None else PaddedRows(drive, lengths)
        lengths = lengths[lengths > 0]
        block = Block(
            name=name, values=values, inputs=drive, lengths=lengths, numbers=numbers, starts=starts, steps=steps
        )
        return reduce_block(accumulator, block, inputs=inputs, projection=projection)
    except KannError as error:
        message = str(error)
    # Raised outside of the block above: the cause of an error need not be something that can be sent.
    raise KannError(f"{name}: {message}")


def _as_declared(values: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """Run on a worker: the array of a chunk, which must begin with the shape that the dask array names."""
    values = as_array(values)
    if tuple(values.shape[: len(shape)]) != shape:
        raise KannError(f"it has shape {tuple(values.shape)}, and the dask array says {shape}; {CORRECT_CHUNKS}")
    return values


# What Dask offers


def delayed(value: Any) -> Any:
    """Return a function as one whose calls become tasks, and any other value as an entry of the graph.

    A value that many tasks share is then in the graph once, not once for each task.
    """
    return _dask().delayed(value, traverse=False)


def current_client() -> Any:
    """Return the Dask client of this process: the one that Dask is configured with, else the default, else None."""
    distributed, dask = sys.modules.get("distributed"), sys.modules.get("dask")
    if distributed is None or dask is None:
        return None
    chosen = dask.config.get("scheduler", None)
    if isinstance(chosen, distributed.Client):
        return chosen
    try:
        return distributed.default_client()
    except ValueError:
        return None


def as_dask_array(array: Any, *, chunks: Any = None) -> Any:
    """Return a dask array in these chunks, or in its own. Its last axis is never cut."""
    last = array.ndim - 1
    if not is_dask(array):
        automatic = dict.fromkeys(range(last), "auto")
        array = _dask().array.from_array(array, chunks=automatic | {last: -1})
    wanted = {last: -1}
    if chunks is not None:
        wanted |= dict(enumerate(chunks))
    return array.rechunk(wanted)


def map_chunks(array: Any, function: Callable[[AnyArray], AnyArray], *, width: int, dtype: Any) -> Any:
    """Return the dask array of ``function(chunk)``, which changes the width of the last axis to ``width``."""
    whole = array.rechunk({array.ndim - 1: -1})
    return whole.map_blocks(
        _call,
        delayed(function),
        dtype=dtype,
        chunks=(*whole.chunks[:-1], (width,)),
        meta=np.empty((0,) * array.ndim, dtype),
    )


def _call(chunk: AnyArray, function: Callable[[AnyArray], AnyArray]) -> AnyArray:
    return function(chunk)


def compute_sum(tasks: list[Any]) -> Any:
    """Compute the sum of the results of all tasks, a few at a time so that no worker holds many of them."""
    while len(tasks) > 1:
        groups = [tasks[i : i + SUMS_PER_TASK] for i in range(0, len(tasks), SUMS_PER_TASK)]
        tasks = [_dask().delayed(_add)(group) for group in groups]
    try:
        with warnings.catch_warnings(), _progress():
            # Dask advises to scatter what all tasks share, but that dies with its worker; the graph is sent again.
            warnings.filterwarnings("ignore", message="Sending large graph")
            return tasks[0].compute()
    except (OSError, EOFError, KeyError) as error:
        if type(error).__module__.startswith("distributed"):  # these are about workers, not about chunks
            raise
        raise KannError(
            f"a chunk of the states cannot be read ({type(error).__name__}: {error}); see that every worker can reach "
            "all of them"
        ) from error


def _add(sums: list) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is looked for once, in the sum of all
        return reduce(add, sums)


def _progress() -> contextlib.AbstractContextManager[Any]:
    """Return a progress bar for what Dask computes in this process; a client has its dashboard."""
    try:
        from tqdm.dask import TqdmCallback
    except ImportError:
        return contextlib.nullcontext()
    return TqdmCallback(desc="chunks", unit="task", delay=SECONDS_BEFORE_BAR, disable=None, leave=False)


def _dask() -> Any:
    try:
        import dask
        import dask.array
    except ImportError as error:
        raise ImportError("states in chunks and at addresses need dask: pip install 'kann[dask]'") from error
    return dask
