"""The one reduction over states, wherever they are: in memory, on a GPU, on disk, or in chunks on Dask.

This module alone knows where rows live. A quantity is described to it by an `Accumulator`, which is handed blocks of
rows in float64, and the pairs of states that lie on two sides of the end of a block. States in this process are one
block, read piece by piece. Dask reads chunk by chunk, on the current client or in this process, and adds the results:
nothing leaves a worker but results, and one row for each sequence that a chunk cuts. With `summed_over_ranks` the
results of all ranks of torch.distributed are added too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kann.backends._distributed import add_results
from kann.backends.arrays import as_numpy, block_rows, float64_copy, is_contiguous, is_dask
from kann.backends.dask import compute_sum, current_client, delayed, map_chunks
from kann.data import store
from kann.data.chunks import Chunk, RaggedRows, chunks_of_padded, chunks_of_rows, chunks_of_store
from kann.data.rows import Block, Cut, LazyRows, NotFinite, PaddedRows, Projection, find_not_finite, float64_blocks
from kann.data.store import StoredRows
from kann.errors import KannError
from kann.progress import progress
from kann.typing import AnyArray, Array, Int

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
    here = partial(_accumulate_here, states, make, inputs=inputs, projection=projection, what=what)
    if _over_ranks.get():
        return add_results(here)
    return here()


@contextmanager
def summed_over_ranks(over_ranks: bool = True) -> Iterator[None]:
    """Let every `accumulate` inside add up what all ranks of torch.distributed find; or let none of them."""
    token = _over_ranks.set(over_ranks)
    try:
        yield
    finally:
        _over_ranks.reset(token)


def are_summed_over_ranks() -> bool:
    """Whether `accumulate` adds up what all ranks find."""
    return _over_ranks.get()


def number_of_all_ranks(own: int) -> int:
    """The sum of a number over the ranks, where `accumulate` sums over them; else the number itself."""
    if _over_ranks.get():
        return add_results(lambda: own)
    return own


def _accumulate_here(
    states: RaggedRows,
    make: Callable[[], Accumulator],
    *,
    inputs: bool,
    projection: Projection | None,
    what: str,
) -> Any:
    """The sum over the states of this process."""
    inputs = inputs and states.inputs is not None
    if runs_on_dask(states):
        return _accumulate_on_dask(states, make, inputs=inputs, projection=projection)
    return _reduce_block(make(), _as_one_block(states), inputs=inputs, projection=projection, what=what)


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


def require_on_dask(data: Any) -> None:
    """Refuse data that the workers of Dask cannot read by themselves."""
    if not (isinstance(data, RaggedRows) and runs_on_dask(data)):
        raise KannError("--scheduler is for zarr stores, which workers can read; leave it out for other files")


def _source_array(values: AnyArray) -> AnyArray:
    """The array that rows are taken from: of padded rows the padded one, else the rows themselves."""
    if isinstance(values, PaddedRows):
        return values.padded
    return values


# In this process


def _as_one_block(states: RaggedRows) -> Block:
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


def _chunks(states: RaggedRows, *, inputs: bool) -> Iterator[Chunk]:
    values, drive = states.values, None
    if inputs:
        drive = states.inputs
    if isinstance(values, StoredRows):
        return chunks_of_store(states, values)
    if isinstance(values, PaddedRows):
        return chunks_of_padded(states, values, drive)
    return chunks_of_rows(states, drive)
