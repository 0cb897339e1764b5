"""States: the hidden states of sequences, one row for each step, with the inputs that led to them."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from kann import _display
from kann.backends.arrays import as_array, as_array_or_dask, as_numpy, block_rows, is_dask, namespace
from kann.checks import (
    array_of,
    call_of_user,
    require_array,
    require_dense,
    require_flag,
    require_float,
    require_path,
    require_sequence,
    require_whole_number,
    short_repr,
)
from kann.data import store
from kann.data.archives import damage_explained, npz_names, open_npy, read_npz
from kann.data.atomic_write import all_beside, replacing
from kann.data.reduction import (
    Block,
    SumOverBlocks,
    accumulate,
    read_unless_dask,
    row_ranges,
    rows_of_padded,
    runs_on_dask,
    sequence_ranges,
)
from kann.errors import KannError
from kann.typing import AnyArray, Array, Int, Shaped


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """A part of a state, such as h and c of an LSTM: its columns follow those of the parts before it."""

    name: str
    """The argument or attribute in which the layer reads it, such as ``h``."""
    shape: tuple[int, ...]
    """Its axes in the layer; a row of states has them as one."""
    source: str = ""
    """Under which name a call of the layer gives it; empty for a layer of torch."""

    @property
    def width(self) -> int:
        """The number of its columns."""
        return math.prod(self.shape)

    def as_list(self) -> list[Any]:
        """Return it as JSON can hold it."""
        return [self.name, list(self.shape), self.source]

    @staticmethod
    def of_list(entries: Any) -> "StatePart":
        """Read what `as_list` wrote."""
        name, shape, source = entries
        return StatePart(name=str(name), shape=tuple(map(int, shape)), source=str(source))

    def __str__(self) -> str:
        return f"{self.name} {' × '.join(map(str, self.shape))}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class States:
    """Hidden states as rows, the sequences one after the other, without padding.

    Make them with `from_padded`, `from_sequences` or `open`, or with `kann.record`.

    >>> states = States.from_sequences([np.ones((5, 3)), np.ones((2, 3))])
    >>> len(states), states.dim, states.lengths.tolist()
    (2, 3, [5, 2])
    """

    values: AnyArray
    """(N, d) the states of all sequences: a numpy array, a torch tensor, a dask array, or rows on disk that are read
    when sliced."""
    lengths: Any
    """(S,) the number of states of each sequence, each at least 1."""
    inputs: AnyArray | None = None
    """(N, p) what the network read to reach each state, or None."""
    reverse: bool = False
    """Whether the sequences were read from their end, as by the second direction of a bidirectional layer. States and
    inputs are in the order of reading: the first state of a sequence is the one after its last token."""
    parts: Any = ()
    """(k,) each `StatePart` of a state, such as h and c; empty if they are unknown."""
    starts: Int[Array, " s"] = field(init=False, repr=False)
    """(S,) the row at which each sequence starts."""

    def __post_init__(self) -> None:
        require_array(self.values, what="rows of states")
        if self.values.ndim != 2:
            raise KannError(f"rows of states have shape (N, d); got {tuple(self.values.shape)}; see States.from_padded")
        require_float(self.values, what="states")
        require_flag(self.reverse, "reverse")
        object.__setattr__(self, "reverse", bool(self.reverse))
        object.__setattr__(self, "lengths", _checked_lengths(self.lengths))
        if not len(self.lengths):
            raise KannError("there are no sequences; pass at least one")
        if min(self.values.shape) == 0:
            raise KannError(f"states of shape {tuple(self.values.shape)} are empty; pass at least one unit")
        # Lengths beyond the rows are looked for too: their sum may overflow to the right number.
        if self.lengths.max() > self.values.shape[0] or self.lengths.sum() != self.values.shape[0]:
            raise KannError(
                f"lengths sum to {self.lengths.sum()}, the smallest is {self.lengths.min()}; there are "
                f"{self.values.shape[0]} rows; pass one length of at least 1 per sequence"
            )
        if not isinstance(self.parts, tuple) or not all(isinstance(part, StatePart) for part in self.parts):
            raise KannError(f"parts is {short_repr(self.parts)}; pass a tuple of StatePart, or ()")
        if self.parts and sum(part.width for part in self.parts) != self.values.shape[1]:
            names = ", ".join(map(str, self.parts))
            raise KannError(f"states have {self.values.shape[1]} units, and their parts are {names}; pass parts=()")
        if self.inputs is not None:
            require_array(self.inputs, what="inputs")
            _require_lined_up(self.inputs, self.values)
            require_float(self.inputs, what="inputs")
            if namespace(self.inputs[:0]) is not namespace(self.values[:0]):
                raise KannError("of states and inputs, one is a torch tensor; pass both as the same")
        object.__setattr__(self, "starts", np.cumsum(self.lengths) - self.lengths)

    @staticmethod
    def from_padded(values: AnyArray, lengths: Any = None, *, inputs: AnyArray | None = None) -> "States":
        """Take (S, T, d) states and the (S,) numbers of real steps; what lies behind them is dropped.

        Without ``lengths`` every step counts. ``inputs`` are (S, T, p). Dask arrays stay as lazy as they are.
        """
        values = as_array_or_dask(values)
        if values.ndim != 3:
            raise KannError(f"padded states have axes (sequence, time, unit); got shape {tuple(values.shape)}")
        states = states_of(values, lengths, inputs=inputs)
        rows, drive = read_unless_dask(states.values, states.inputs)
        return replace(states, values=rows, inputs=drive)

    @staticmethod
    def from_sequences(sequences: Sequence[AnyArray], inputs: Sequence[AnyArray] | None = None) -> "States":
        """Take a list of (T_i, d) states and, if given, of (T_i, p) inputs."""
        rows, lengths = _join(sequences, what="states")
        if inputs is None:
            return States(values=rows, lengths=lengths)
        input_rows, input_lengths = _join(inputs, what="inputs")
        if not np.array_equal(lengths, input_lengths):
            raise KannError(
                f"inputs have lengths {input_lengths.tolist()}; the states have {lengths.tolist()}; "
                "pass one input for each state"
            )
        return States(values=rows, lengths=lengths, inputs=input_rows)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> "States":
        """Open what `save` wrote, or an ``.npy``, ``.npz`` or zarr v3 file of states. Values are read when used.

        A zarr store may also be given by an address that fsspec knows, such as ``s3://bucket/states.zarr``.

        An ``.npy`` file or a bare zarr array holds (S, T, d), or (T, d) for a single sequence. An ``.npz`` file or a
        zarr group holds ``values``, and may hold ``lengths`` and ``inputs``; with ``lengths``, two-dimensional values
        are the rows of all sequences one after the other.
        """
        require_path(path)
        if not store.is_url(path) and not os.path.exists(path):
            # Perhaps a recording was killed before it took its name.
            unfinished = all_beside(Path(os.path.realpath(path)), store.UNFINISHED)
            where = f"; a recording that was stopped is at {unfinished[-1]}" if unfinished else ""
            raise FileNotFoundError(f"no states at {path}{where}")
        if not store.is_url(path) and Path(path).suffix in store.NUMPY_FILES:
            values, lengths, inputs, reverse = _read_numpy(Path(path))
        else:
            values, lengths, inputs = store.read(path)
            reverse = getattr(values, "reverse", False)  # a store that kann wrote knows it
        with damage_explained(path, problem="holds no states that can be used", remedy="save it again"):
            states = states_of(values, lengths, inputs=inputs, reverse=bool(reverse))
            return replace(states, parts=tuple(map(StatePart.of_list, getattr(values, "state_parts", ()))))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a zarr store in chunks that end where sequences end; replaces a store that is there already."""
        store.require_store_name(path, verb="save")
        with replacing(path) as temporary:
            store.require_replaceable(path)
            with store.Writer(temporary) as writer:
                writer.note(reverse=self.reverse, parts=[part.as_list() for part in self.parts])
                for first, last in sequence_ranges(self.lengths, self._rows_at_a_time()):
                    rows = slice(self.span(first).start, self.span(last - 1).stop)
                    inputs = None if self.inputs is None else self.inputs[rows]
                    writer.append(self.values[rows], self.lengths[first:last], inputs)
            store.require_replaceable(path)  # writing may have taken long

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return int(self.values.shape[1])

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        steps = " to ".join(map(str, np.unique([self.lengths.min(), self.lengths.max()])))
        shapes = ", ".join(map(str, self.parts))
        parts = f" ({shapes})" if len(self.parts) > 1 or any(len(part.shape) > 1 for part in self.parts) else ""
        driven = f", {self.inputs.shape[1]} inputs" if self.inputs is not None else ""
        kind = str(self.values.dtype).removeprefix("torch.")
        direction = ", read from the end" if self.reverse else ""
        return f"States({len(self)} sequences of {steps} steps, {self.dim} units{parts}{driven}, {kind}{direction})"

    def _repr_html_(self) -> str:
        shown = zip(self.lengths[:8].tolist(), self.starts[:8].tolist(), strict=True)
        rows = [(str(i), length, f"{start} to {start + length - 1}") for i, (length, start) in enumerate(shown)]
        if len(self) > len(rows):
            rows.append((f"… {len(self) - len(rows)} more", int(self.lengths[8:].sum()), ""))
        return _display.table(repr(self), ("sequence", "steps", "rows of values"), rows)

    @overload
    def __getitem__(self, key: int) -> Array: ...
    @overload
    def __getitem__(self, key: slice | list[int] | Array) -> "States": ...
    def __getitem__(self, key: Any) -> Any:
        """Return one sequence as a (T_i, d) array, or several as `States`: a slice, their numbers, or a mask."""
        if isinstance(key, slice | list | np.ndarray):
            spans = [self.span(i) for i in np.arange(len(self))[key].tolist()]
            inputs = [self.inputs[span] for span in spans] if self.inputs is not None else None
            chosen = States.from_sequences([self.values[span] for span in spans], inputs=inputs)
            return replace(chosen, reverse=self.reverse, parts=self.parts)
        return as_numpy(self.values[self.span(range(len(self))[key])])

    def span(self, i: Any) -> slice:
        """Return the rows of sequence ``i`` in ``values`` and ``inputs``."""
        return slice(int(self.starts[i]), int(self.starts[i] + self.lengths[i]))

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def padded(self, *, fill: float = 0.0) -> Shaped[Array, "s t d"]:
        """Return all sequences as one (S, T, d) array, ``fill`` behind the shorter ones."""
        filled = np.arange(self.lengths.max()) < self.lengths[:, None]
        values = as_numpy(self.values)
        padded = np.full((*filled.shape, self.dim), fill, dtype=values.dtype)
        padded[filled] = values
        return padded

    def pairs(self) -> tuple[Shaped[Array, "p d"], Shaped[Array, "p d"]]:
        """Return all (h_t, h_{t+1}) as two (P, d) arrays, never across the end of a sequence."""
        values, is_first = as_numpy(self.values), np.zeros(len(self.values), dtype=bool)
        is_first[self.starts] = True
        return values[~np.append(is_first[1:], True)], values[~is_first]

    def _rows_at_a_time(self) -> int:
        """Return the number of rows to hold in memory at a time."""
        return block_rows(self.values[0:1], self.dim)

    def ranges(self, max_rows: int | None = None) -> Iterator[tuple[int, int]]:
        """Return ranges ``(start, stop)`` of at most ``max_rows`` rows; only a sequence longer than that is cut."""
        max_rows = self._rows_at_a_time() if max_rows is None else max_rows
        return row_ranges(self.lengths, require_whole_number(max_rows, "max_rows"))


def as_states(data: Any, lengths: Any = None) -> States:
    """Return states of what users pass for them.

    That is `States`, the path or address of a store, a list of (T_i, d) arrays, a padded (S, T, d) array, or (N, d)
    rows of all sequences with their lengths.
    """
    if isinstance(data, States | list | tuple | str | os.PathLike):
        if lengths is not None:
            raise KannError(
                "lengths are for arrays; States, stores and lists of sequences know theirs; a store has them in an "
                "array 'lengths' next to 'values'"
            )
        if isinstance(data, list | tuple):
            return States.from_sequences(data)
        return data if isinstance(data, States) else States.open(data)
    if isinstance(data, Mapping) and data and all(isinstance(each, States) for each in data.values()):
        names = ", ".join(f"states[{name!r}]" for name in data)
        raise KannError(f"these are the states of {len(data)} layers or directions; pass one of them: {names}")
    array = as_array_or_dask(data)
    if not array.ndim:
        raise KannError(
            f"{type(data).__name__} holds no states; pass States, an array (sequences, steps, units), a list of "
            "(steps, units) arrays, or the path of a store"
        )
    if array.ndim != 3 and (array.ndim != 2 or lengths is None):
        raise KannError(
            f"hidden states have axes (sequence, time, unit); got shape {tuple(array.shape)}; pass states[None] for a "
            "single sequence, a list of (time, unit) arrays, or the rows of all sequences with their lengths"
        )
    return states_of(array, lengths)


def states_of(values: AnyArray, lengths: Any = None, *, inputs: AnyArray = None, reverse: bool = False) -> States:
    """Wrap padded (S, T, d) values, (N, d) rows with lengths, or a single (T, d) sequence, without copying.

    Inputs have the same layout.
    """
    rows, counts = _rows_of(values, lengths)
    if inputs is not None:
        require_dense(inputs)
        inputs = inputs if hasattr(inputs, "ndim") else as_array(inputs)
        _require_lined_up(inputs, values)
        inputs, _ = _rows_of(inputs, lengths)
    return States(values=rows, lengths=counts, inputs=inputs, reverse=reverse)


def _rows_of(values: AnyArray, lengths: Any) -> tuple[AnyArray, Int[Array, " s"]]:
    if values.ndim == 2:
        return values, _checked_lengths(np.array([values.shape[0]]) if lengths is None else lengths)
    if values.ndim != 3:
        raise KannError(f"padded states have axes (sequence, time, unit); got shape {tuple(values.shape)}")
    sequences, steps = values.shape[:2]
    require_float(values, what="states")
    if 0 in values.shape:
        raise KannError(f"states of shape {tuple(values.shape)} are empty; pass at least one sequence, step and unit")
    lengths = _checked_lengths(np.full(sequences, steps) if lengths is None else lengths)
    if lengths.shape != (sequences,) or lengths.max() > steps:
        raise KannError(
            f"{len(lengths)} lengths up to {lengths.max()} do not fit states of shape {tuple(values.shape)}; "
            f"pass {sequences} lengths of at most {steps}"
        )
    return rows_of_padded(values, lengths), lengths


def _checked_lengths(lengths: Any) -> Int[Array, " s"]:
    lengths = lengths if type(lengths) is np.ndarray else as_numpy(lengths)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise KannError(f"lengths are {lengths.dtype} of shape {lengths.shape}; pass one whole number per sequence")
    if len(lengths) and lengths.min() < 1:
        raise KannError(f"lengths[{int(lengths.argmin())}] is {lengths.min()}; every sequence needs at least one state")
    if len(lengths) and lengths.max() > np.iinfo(np.int64).max:
        raise KannError(f"lengths[{int(lengths.argmax())}] is {lengths.max()}; no sequence is as long")
    return lengths.astype(np.int64)


def _join(sequences: Sequence[AnyArray], *, what: str) -> tuple[AnyArray, Int[Array, " s"]]:
    """Concatenate (T_i, d) arrays, all numpy or all torch."""
    require_dense(sequences)
    if not isinstance(sequences, Iterable) or getattr(sequences, "ndim", 1) == 0:
        raise KannError(f"{what} are {short_repr(sequences)}; pass a list of (steps, units) arrays")
    arrays = [as_array(sequence) for sequence in sequences]
    if not arrays:
        raise KannError(f"the list of {what} is empty; pass at least one sequence")
    for i, array in enumerate(arrays):
        if array.ndim != 2:
            raise KannError(f"{what}[{i}] has shape {tuple(array.shape)}; pass (steps, units) for each sequence")
        if array.shape[1] != arrays[0].shape[1]:
            raise KannError(f"{what}[{i}] has {array.shape[1]} columns, {what}[0] has {arrays[0].shape[1]}")
        if namespace(array) is not namespace(arrays[0]) or array.device != arrays[0].device:
            raise KannError(
                f"{what}[{i}] is {type(array).__name__} on {array.device}, {what}[0] is {type(arrays[0]).__name__} on "
                f"{arrays[0].device}; pass all of one kind and on one device"
            )
    require_float(arrays[0], what=what)
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    return namespace(arrays[0]).concat(arrays), lengths


def _require_lined_up(inputs: AnyArray, values: AnyArray) -> None:
    """Raise unless there is one row of inputs for each state."""
    if tuple(inputs.shape[:-1]) != tuple(values.shape[:-1]) or inputs.shape[-1] == 0:
        raise KannError(
            f"inputs of shape {tuple(inputs.shape)} do not line up with states of shape {tuple(values.shape)}; "
            "pass one row of inputs for each state"
        )


def _read_numpy(path: Path) -> tuple[AnyArray, Any, Any, Any]:
    """Return values, lengths, inputs and direction."""
    if path.suffix == ".npy":
        return open_npy(path), None, None, False
    arrays = read_npz(path, names=("values", "lengths", "inputs", "reverse"))
    if "values" not in arrays:
        raise KannError(
            f"{path} has no array 'values'; it has {short_repr(sorted(npz_names(path)))}; pass "
            "numpy.savez(path, values=...)"
        )
    return arrays["values"], arrays.get("lengths"), arrays.get("inputs"), arrays.get("reverse", False)


def checked_tokens(tokens: Any, states: States) -> list[list[str]]:
    """Return the tokens of each sequence as text, in the order of the states.

    Users pass them in the order of the text; for states of a direction that reads from the end they are turned round.
    """
    require_sequence(tokens, "tokens")
    require_one_per_state(tokens, states, "tokens")
    words = [[str(token) for token in own] for own in tokens]
    return [own[::-1] for own in words] if states.reverse else words


def require_one_per_state(values: Sequence[Any], states: States, what: str) -> None:
    """Raise unless there is one entry for each state of each sequence."""
    for i, own in enumerate(values):
        # A string has a length too, but its entries are letters.
        if isinstance(own, str) or not hasattr(own, "__len__"):
            raise KannError(
                f"the {what} of sequence {i} are {type(own).__name__}; pass a list with one entry for each state"
            )
    if len(values) != len(states):
        raise KannError(
            f"there are {what} for {len(values)} sequences and states for {len(states)}; pass one list for each"
        )
    for i, (own, length) in enumerate(zip(values, states.lengths.tolist(), strict=True)):
        if len(own) != length:
            raise KannError(f"sequence {i} has {length} states and {len(own)} {what}; pass one for each state")


WHERE_REMEDY = "pass a mask with one truth value for each state, or a function from inputs (n, p) to (n,) of them"


def chosen_rows(states: States, where: Any) -> Shaped[Array, " n"]:
    """Return whether the step to each state counts: a mask (N,), or a function of the inputs that returns one."""
    if not callable(where):
        mask = array_of(as_numpy(where))
        if mask.dtype != bool or mask.shape != (states.values.shape[0],):
            raise KannError(f"where={short_repr(mask)} is no mask of {states.values.shape[0]} states; {WHERE_REMEDY}")
        return mask
    if states.inputs is None:
        raise KannError("where= is a function of inputs and the states have none; record them with inputs=True")

    def marked(block: Block) -> list[tuple[Int[Array, " n"], Shaped[Array, " n"]]]:
        marks = as_numpy(call_of_user(where, block.inputs, what="where", on="the inputs", remedy=WHERE_REMEDY))
        if marks.dtype != bool or marks.shape != (block.values.shape[0],):
            shown = short_repr(marks)
            raise KannError(f"where(inputs) gave {shown} for {block.values.shape[0]} inputs; {WHERE_REMEDY}")
        return [(block.rows, marks)]

    mask = np.zeros(states.values.shape[0], dtype=bool)
    for rows, marks in accumulate(states, partial(SumOverBlocks, marked), inputs=True, what="chosen pairs"):
        mask[rows] = marks
    return mask


def only_pairs(states: States, where: Any) -> tuple[States, Int[Array, " s"]]:
    """Return states whose sequences are cut at every step that does not count, and the sequence each piece came from.

    The pieces hold all states, and no pairs but those that were chosen.
    """
    if runs_on_dask(states) and not is_dask(states.values):
        raise KannError(
            "where= cannot choose pairs of a store or of padded states that Dask reads; pass states in memory, or the "
            "rows of all sequences as a dask array with their lengths"
        )
    mask = chosen_rows(states, where)
    if not mask[np.delete(np.arange(len(mask)), states.starts)].any():
        raise KannError("where= leaves no pair of states; choose at least one step that is not a sequence's first")
    begins = ~mask
    begins[states.starts] = True
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(mask)))
    source = np.searchsorted(states.starts, starts, side="right") - 1
    return replace(states, lengths=lengths), source


HOLD_OUT_ONE_IN = 4
"""Where a single part is held out, it is every fourth sequence."""


def held_out_rows(states: States, *, most: int | None = None) -> Int[Array, " n"]:
    """Return rows of every fourth sequence; of fewer than four sequences, the last quarter of all rows.

    Of many sequences some are skipped, so that about ``most`` rows remain.
    """
    total = int(states.lengths.sum())
    if len(states) < HOLD_OUT_ONE_IN:
        return np.arange(total - total // HOLD_OUT_ONE_IN, total)
    spans = [states.span(i) for i in range(HOLD_OUT_ONE_IN - 1, len(states), HOLD_OUT_ONE_IN)]
    step = max(1, sum(span.stop - span.start for span in spans) // (most or total))
    return np.concatenate([np.arange(span.start, span.stop) for span in spans[::step]])
