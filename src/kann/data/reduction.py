"""Sums over states that lie in chunks, on Dask: on the current client, or on Dask's scheduler in this process.

A chunk may cut sequences. What it holds then counts as pieces of them, and every cut adds the pair of states that it
parts: a sum over all states is the sum over the pieces, and a sum over all pairs is that over the pieces and the cuts.
So nothing leaves a worker but sums, and one row for each sequence that a chunk cuts.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from kann.backends.arrays import as_array, float64_copy, is_dask
from kann.data import store
from kann.data.rows import MappedRows, PaddedRows
from kann.data.states import States, require_finite
from kann.data.store import StoredRows
from kann.errors import KannError
from kann.progress import dask_progress
from kann.typing import AnyArray, Array, Int

FAN_IN = 4
"""How many sums are added at a time: few, since each holds matrices of d × d."""

RUN_BYTES = 64 * 2**20
"""How much of a store one task reads at least, part by part, so that there are far fewer tasks than parts."""

RUN_ROWS = 8
"""Times d: how many rows of a store one task reads at least; what it reads must outweigh the d × d that it sends."""

MOST_RUNS = 4096
"""Into how many tasks a store is cut at most: of more data each reads more, and no more matrices are sent."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Piece:
    """What a chunk holds: whole sequences, or pieces of them."""

    states: States
    """The pieces, as if they were sequences."""
    numbers: Int[Array, " k"]
    """Which sequence each is a piece of."""
    starts: Int[Array, " k"]
    """At which row of all states that sequence starts."""
    steps: Int[Array, " k"]
    """At which step of the sequence each begins."""

    @property
    def rows(self) -> Int[Array, " n"]:
        """The row of each state among all states."""
        shift = self.starts + self.steps - self.states.starts
        return np.arange(self.states.values.shape[0]) + np.repeat(shift, self.states.lengths)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cut:
    """Pairs of states that lie on two sides of a chunk's end."""

    before: AnyArray
    """(k, d) x"""
    after: AnyArray
    """(k, d) y"""
    inputs: AnyArray | None
    """(k, p) what led from x to y, or None."""
    numbers: Int[Array, " k"]
    """Of which sequence they are."""
    starts: Int[Array, " k"]
    """At which row of all states that sequence starts."""
    steps: Int[Array, " k"]
    """Which step of the sequence y is."""

    @property
    def rows(self) -> Int[Array, " k"]:
        """The row of y among all states."""
        return self.starts + self.steps


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Chunk:
    """What is known of a chunk before it is read."""

    name: str
    make: Callable[..., Piece]
    """Makes the piece on a worker, of these arguments, some of which are delayed."""
    arguments: tuple
    source: Any
    """What the user's own tasks give, to find out which of them fails; None where our task reads it."""
    cut: tuple | None
    """Fields of the `Cut` between this chunk and the next one, some of which are delayed; None where there is none."""


def is_spread(states: States) -> bool:
    """Whether sums over these states are Dask's: they are a dask array, at an address, or a store beside a client."""
    values = _innermost(states.values)
    if is_dask(values) or (isinstance(values, PaddedRows) and is_dask(values.padded)):
        return True
    if isinstance(values, StoredRows):
        return store.is_url(values.path) or _client() is not None
    array = values.padded if isinstance(values, PaddedRows) else values
    return store.is_zarr(array) and (store.is_remote(array) or _client() is not None)


def total(
    states: States, on_piece: Callable[..., Any], on_cut: Callable[..., Any] | None = None, *, shared: tuple = ()
) -> Any:
    """The sum of ``on_piece(piece, *shared)`` over all chunks and of ``on_cut(cut, *shared)`` over all cuts."""
    delayed = _dask().delayed
    values = states.values
    mapping = delayed((values.matrix, values.mean) if isinstance(values, MappedRows) else None, traverse=False)
    held = [delayed(value, traverse=False) for value in shared]
    chunks = list(_chunks(states))
    leaves = []
    for chunk in chunks:
        leaves.append(delayed(_on_piece)(on_piece, held, mapping, chunk.name, chunk.make, *chunk.arguments))
        if on_cut is not None and chunk.cut is not None:
            leaves.append(delayed(_on_cut)(on_cut, held, mapping, chunk.name, *chunk.cut))
    while len(leaves) > 1:
        leaves = [delayed(_add)(leaves[i : i + FAN_IN]) for i in range(0, len(leaves), FAN_IN)]
    return _computed(leaves[0], chunks)


def map_rows(array: Any, function: Callable[..., AnyArray], *, width: int, dtype: Any, shared: tuple) -> Any:
    """A dask array of ``function(block, *shared)``, where the last axis becomes ``width`` wide."""
    whole = array.rechunk({array.ndim - 1: -1})
    held = [_dask().delayed(value, traverse=False) for value in shared]  # once in the graph, not once a block
    return whole.map_blocks(
        function, *held, dtype=dtype, chunks=(*whole.chunks[:-1], (width,)), meta=np.empty((0,) * array.ndim, dtype)
    )


def _dask() -> Any:
    try:
        import dask
        import dask.array
    except ImportError as error:
        raise ImportError("states in chunks and at addresses need dask: pip install 'kann[dask]'") from error
    return dask


def _client() -> Any:
    """The current Dask client, if this process has one: the one that Dask is set to, or else the default."""
    distributed, dask = sys.modules.get("distributed"), sys.modules.get("dask")
    if distributed is None or dask is None:
        return None
    chosen = dask.config.get("scheduler", None)
    try:
        return chosen if isinstance(chosen, distributed.Client) else distributed.default_client()
    except ValueError:
        return None


def _add(sums: list) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # looked for once, in the sum of all
        return reduce(add, sums)


def _on_piece(
    use: Callable[..., Any], shared: list, mapping: tuple | None, name: str, make: Callable[..., Piece], *arguments: Any
) -> Any:
    """Run on a worker: the sum over one chunk; whatever is wrong with the chunk is said with its name."""
    try:
        piece = make(*arguments)
        states = piece.states
        if mapping is not None:
            rows = MappedRows(states.values, *mapping)
            states = States(values=rows, lengths=states.lengths, inputs=states.inputs)
        return use(replace(piece, states=states), *shared)
    except KannError as error:
        wrong = _not_finite(make, arguments) or str(error)
    # Out of the block above: what caused it need not be something that can be sent.
    raise KannError(f"{name}: {wrong}")


def _not_finite(make: Callable[..., Piece], arguments: tuple) -> str:
    """Where the first NaN or Inf of a chunk is, counted over all chunks; nothing if there is none."""
    try:
        _require_finite(make(*arguments))
    except KannError as error:
        return str(error)
    return ""


def _require_finite(piece: Piece) -> None:
    """Say where the first NaN or Inf is, counted over all chunks."""
    states = piece.states
    for k, (number, step) in enumerate(zip(piece.numbers.tolist(), piece.steps.tolist(), strict=True)):
        start = np.array([-step])
        require_finite(float64_copy(states.values[states.span(k)]), start, what="states", sequence=number)
        if states.inputs is not None:
            inputs = float64_copy(states.inputs[states.span(k)])
            if step == 0:
                inputs[:1] = 0  # what led to the first state belongs to no pair
            require_finite(inputs, start, what="inputs", sequence=number)


def _on_cut(
    use: Callable[..., Any],
    shared: list,
    mapping: tuple | None,
    name: str,
    before: AnyArray,
    after: AnyArray,
    inputs: AnyArray | None,
    *places: Int[Array, " k"],
) -> Any:
    """Run on a worker: the sum over the pairs between the chunk of this name and the next one."""
    if mapping is not None:
        before, after = (MappedRows(side, *mapping)[:] for side in (before, after))
    numbers, starts, steps = places
    cut = Cut(before=before, after=after, inputs=inputs, numbers=numbers, starts=starts, steps=steps)
    try:
        return use(cut, *shared)
    except KannError as error:
        wrong = str(error)
    raise KannError(f"behind {name}: {wrong}")


def _computed(task: Any, chunks: list[_Chunk]) -> Any:
    """The result of a task, or an error that names the chunk to blame."""
    try:
        with warnings.catch_warnings(), dask_progress(what="chunks"):
            # It advises to scatter what all tasks share, which dies with its worker; in the graph it is sent again.
            warnings.filterwarnings("ignore", message="Sending large graph")
            return task.compute()
    except (KannError, ImportError):
        raise
    except Exception as error:
        if not type(error).__module__.startswith("distributed"):  # those are about workers, not about chunks
            _name_unreadable(chunks, error)
        raise


def _name_unreadable(chunks: list[_Chunk], error: Exception) -> None:
    """Read the chunks again, half of those in question at a time, until the one that fails is found."""
    dask = _dask()
    touch = dask.delayed(_touch)
    while len(chunks) > 1:
        half = chunks[: len(chunks) // 2]
        try:
            dask.compute(*(touch(chunk.source) for chunk in half))
            chunks = chunks[len(half) :]
        except Exception:
            chunks = half
    try:
        touch(chunks[0].source).compute()
    except Exception as found:
        raise KannError(
            f"{chunks[0].name} cannot be read ({type(found).__name__}: {found}); see that the workers can reach it, or "
            "leave it out"
        ) from error


def _touch(_: Any) -> None:
    """Need a chunk, and do nothing with it."""


def _innermost(values: Any) -> Any:
    return values.source if isinstance(values, MappedRows) else values


def _chunks(states: States) -> Iterator[_Chunk]:
    values, inputs = _innermost(states.values), states.inputs
    if isinstance(values, StoredRows):
        return _stored(states, values)
    if isinstance(values, PaddedRows):
        return _padded(states, values, inputs.padded if isinstance(inputs, PaddedRows) else inputs)
    return _ragged(states, _as_dask(values), inputs)


def _as_dask(array: Any, *, chunks: Any = None) -> Any:
    """A dask array in these chunks, or in its own, whose last axis is whole."""
    whole = {array.ndim - 1: -1}
    if not is_dask(array):
        source = store.ReachableArray(array) if store.is_zarr(array) else array
        auto = dict.fromkeys(range(array.ndim - 1), "auto")
        array = _dask().array.from_array(source, chunks=auto | whole)
    return array.rechunk(whole if chunks is None else dict(enumerate(chunks)) | whole)


def _bounds(sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(number, start, stop) of each chunk along an axis that is not empty."""
    stops = np.cumsum(sizes).tolist()
    return [(i, stop - size, stop) for i, (size, stop) in enumerate(zip(sizes, stops, strict=True)) if size]


def _ragged(states: States, rows: Any, inputs: Any) -> Iterator[_Chunk]:
    """Chunks of rows of all sequences one after the other, which may end anywhere."""
    blocks = rows.to_delayed()[:, 0]
    drives = None if inputs is None else _as_dask(inputs, chunks=rows.chunks[:1]).to_delayed()[:, 0]
    bounds = _bounds(rows.chunks[0])
    for (i, start, stop), (following, _, _) in zip(bounds, [*bounds[1:], (-1, 0, 0)], strict=True):
        first = int(np.searchsorted(states.starts, start, side="right")) - 1
        last = int(np.searchsorted(states.starts, stop))
        starts = states.starts[first:last]
        steps = np.maximum(start - starts, 0)
        lengths = np.diff(np.append(starts + steps, stop))
        is_cut = following >= 0 and (last == len(states) or int(states.starts[last]) != stop)
        ends = slice(-1, None), slice(0, 1)
        places = np.array([last - 1]), starts[-1:], stop - starts[-1:]
        drive = None if drives is None else drives[i]
        yield _Chunk(
            name=f"chunk {i} of the dask array (rows {start} to {stop - 1})",
            make=_piece,
            arguments=(blocks[i], drive, lengths, np.arange(first, last), starts, steps),
            source=(blocks[i], drive),
            cut=(*_parted(blocks, drives, i, following, ends), *places) if is_cut else None,
        )


def _padded(states: States, rows: PaddedRows, inputs: Any) -> Iterator[_Chunk]:
    """Chunks of padded states, which may end at any step. Those that hold padding alone are never read."""
    array = _as_dask(rows.padded)
    blocks = array.to_delayed()[..., 0]
    drives = None if inputs is None else _as_dask(inputs, chunks=array.chunks[:2]).to_delayed()[..., 0]
    times = _bounds(array.chunks[1])
    for i, low, high in _bounds(array.chunks[0]):
        lengths, starts = rows.lengths[low:high], states.starts[low:high]
        for (j, early, late), (following, _, _) in zip(times, [*times[1:], (-1, 0, 0)], strict=True):
            here = np.clip(lengths - early, 0, late - early)
            real, longer = np.flatnonzero(here), np.flatnonzero(lengths > late)
            if not len(real):
                break
            ends = (longer, -1), (longer, 0)
            places = low + longer, starts[longer], np.full(len(longer), late)
            drive = None if drives is None else drives[i, j]
            yield _Chunk(
                name=f"chunk ({i}, {j}) of the dask array (sequences {low} to {high - 1}, steps {early} to {late - 1})",
                make=_padded_piece,
                arguments=(blocks[i, j], drive, here, low + real, starts[real], np.full(len(real), early)),
                source=(blocks[i, j], drive),
                cut=(*_parted(blocks, drives, (i, j), (i, following), ends), *places) if len(longer) else None,
            )


def _parted(blocks: Any, drives: Any, here: Any, there: Any, ends: tuple) -> tuple:
    """States on both sides of the cut between two blocks, and inputs; ``ends`` are their places in the blocks."""
    at = _dask().delayed(_at)
    return at(blocks[here], ends[0]), at(blocks[there], ends[1]), None if drives is None else at(drives[there], ends[1])


def _at(block: AnyArray, places: Any) -> AnyArray:
    return as_array(block)[places]


def _piece(block: AnyArray, drive: AnyArray | None, lengths: Array, *places: Array) -> Piece:
    inputs = None if drive is None else as_array(drive)
    return _placed(States(values=as_array(block), lengths=lengths, inputs=inputs), *places)


def _padded_piece(block: AnyArray, drive: AnyArray | None, lengths: Array, *places: Array) -> Piece:
    """The real steps of a block, where ``lengths`` may be 0 and ``places`` tell of the sequences that have some."""
    inputs = None if drive is None else PaddedRows(as_array(drive), lengths)
    values = PaddedRows(as_array(block), lengths)
    return _placed(States(values=values, lengths=lengths[lengths > 0], inputs=inputs), *places)


def _placed(states: States, numbers: Array, starts: Array, steps: Array) -> Piece:
    return Piece(states=states, numbers=numbers, starts=starts, steps=steps)


def _stored(states: States, rows: StoredRows) -> Iterator[_Chunk]:
    """Runs of parts of a store, which the workers open themselves. Parts hold whole sequences, so there are no cuts."""
    stops = rows.part_stops
    path = rows.path if store.is_url(rows.path) else os.path.abspath(rows.path)  # a worker may stand elsewhere
    bytes_per_row = rows.shape[1] * rows.dtype.itemsize  # of mapped rows, what is read is wider than the states
    at_least = max(RUN_BYTES // bytes_per_row, RUN_ROWS * states.dim, len(rows) // MOST_RUNS)
    first = 0
    while first < len(stops):
        start = int(stops[first - 1]) if first else 0
        last = min(int(np.searchsorted(stops, start + at_least)) + 1, len(stops))
        sequences = slice(*np.searchsorted(states.starts, [start, stops[last - 1]]))
        numbers, starts = np.arange(len(states))[sequences], states.starts[sequences]
        yield _Chunk(
            name=f"parts {first} to {last - 1} of {rows.path}",
            make=_stored_piece,
            arguments=(path, slice(first, last), states.lengths[sequences], numbers, starts, np.zeros_like(starts)),
            source=None,
            cut=None,
        )
        first = last


def _stored_piece(path: str, parts: slice, expected: Int[Array, " k"], *places: Array) -> Piece:
    """Run on a worker: open some parts of a store."""
    try:
        if not store.is_url(path) and not os.path.exists(path):
            raise FileNotFoundError(path)
        values, lengths, inputs = store.read(path, parts)
    except (KannError, FileNotFoundError) as error:
        raise KannError("a worker finds no states there; pass an address that every worker can reach") from error
    if lengths is None or not np.array_equal(lengths, expected):
        raise KannError("a worker finds other states there; pass an address that means the same to every worker")
    return _placed(States(values=values, lengths=lengths, inputs=inputs), *places)
