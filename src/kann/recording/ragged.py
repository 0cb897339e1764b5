"""From a padded or packed batch of sequences of different lengths to their rows, one sequence after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from kann.backends.arrays import as_numpy, indices_for, run_indices
from kann.checks import require_dense, require_float
from kann.errors import KannError
from kann.typing import AnyArray, Array, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SequenceRows:
    """The states that a layer reached in whole sequences, one row a step; padding is dropped when they are read."""

    padded_values: Float[Tensor, "m d"]
    """The states of all steps, padding included."""
    lengths: Int[Array, " s"]
    """How many real steps each sequence has."""
    firsts: Int[Array, " s"] | None = None
    """The row at which each sequence begins; None if they follow each other without padding."""
    padded_inputs: Float[Tensor, "m p"] | None = None
    """What the layer read to reach each state, padding included, or None."""
    batch_sequences: int
    """How many sequences the batch held, those included that were not to be recorded."""
    reverse: bool = False
    """Whether the sequences were read from their end: the rows of each are in the order of reading."""
    origins: Int[Array, " s"] | None = None
    """The sequence of the data that each of these comes from: along depth a sequence gives one for each position. None
    if they are those of the batch."""

    @property
    def sequence_numbers(self) -> Int[Array, " s"]:
        """The origins; by default every sequence comes from itself."""
        if self.origins is None:
            return np.arange(len(self.lengths))
        return self.origins

    def with_origins(self, first: int) -> "SequenceRows":
        """The same rows with origins that are numbered from ``first`` on."""
        return replace(self, origins=self.sequence_numbers + first)

    def without_padding(self) -> "SequenceRows":
        """The same rows, copied out of the padding."""
        if self.firsts is None:
            return self
        return replace(self, padded_values=self.values, padded_inputs=self.inputs, firsts=None)

    def on_host(self) -> "SequenceRows":
        """The same rows in the memory of the host."""
        inputs = self.padded_inputs
        if inputs is not None:
            inputs = inputs.cpu()
        return replace(self, padded_values=self.padded_values.cpu(), padded_inputs=inputs)

    @property
    def values(self) -> Float[Tensor, "n d"]:
        """The states, one sequence after the other."""
        return self._real_rows(self.padded_values)

    @property
    def inputs(self) -> Float[Tensor, "n p"] | None:
        """What the layer read to reach each of them, or None."""
        if self.padded_inputs is None:
            return None
        return self._real_rows(self.padded_inputs)

    def _real_rows(self, rows: Float[Tensor, "m _"]) -> Float[Tensor, "n _"]:
        if self.firsts is None:
            return rows
        return rows[run_indices(self.firsts, self.lengths, rows)]


def joined(parts: Sequence[SequenceRows]) -> SequenceRows:
    """The rows of several batches as one object: dropping their padding at once is cheaper than batch by batch."""
    if len(parts) == 1:
        return parts[0]
    firsts = None
    if any(part.firsts is not None for part in parts):
        firsts = _joined_firsts(parts)
    inputs = [part.padded_inputs for part in parts if part.padded_inputs is not None]
    origins = None
    if parts[0].origins is not None:
        origins = np.concatenate([part.origins for part in parts if part.origins is not None])
    return SequenceRows(
        padded_values=torch.cat([part.padded_values for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        firsts=firsts,
        padded_inputs=torch.cat(inputs) if inputs else None,
        batch_sequences=sum(part.batch_sequences for part in parts),
        reverse=parts[0].reverse,
        origins=origins,
    )


def _joined_firsts(parts: Sequence[SequenceRows]) -> Int[Array, " s"]:
    """The row at which each sequence begins once the rows of all parts, padding included, follow each other."""
    firsts, offset = [], 0
    for part in parts:
        own = part.firsts
        if own is None:
            own = starts_of(part.lengths)
        firsts.append(own + offset)
        offset += len(part.padded_values)
    return np.concatenate(firsts)


def starts_of(lengths: Int[Array, " s"]) -> Int[Array, " s"]:
    """Where sequences of these lengths begin if they follow each other without padding."""
    return np.cumsum(lengths) - lengths


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RealSteps:
    """Which steps of each sequence of a padded batch are real: ``lengths`` many, from ``starts`` on."""

    lengths: Int[Array, " s"]
    """The number of real steps of each sequence."""
    starts: Int[Array, " s"] | None = None
    """Where they begin if the padding is on the left; None if every sequence begins at step 0."""

    def __getitem__(self, key: slice) -> "RealSteps":
        starts = self.starts
        if starts is not None:
            starts = starts[key]
        return RealSteps(lengths=self.lengths[key], starts=starts)

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Padded:
    """What a layer did with a batch in which every sequence takes the same number of steps."""

    values: Float[Tensor, "b t d"]
    """The states."""
    inputs: Float[Tensor, "b t p"] | None = None
    """What the layer read to reach them, or None."""
    initial: Float[Tensor, "b d"] | None = None
    """The state before the first step, where it is to be recorded too."""

    def rows(self, real: RealSteps | None, *, limit: int | None, layer: str) -> SequenceRows:
        """The rows of the real steps of the first ``limit`` sequences; all steps are real if ``real`` is None."""
        _require_states(self.values, layer)
        batch_sequences, steps = self.values.shape[:2]
        values, inputs = self._with_initial(limit)
        sequences, rows_each = values.shape[:2]
        firsts, lengths = None, np.full(sequences, rows_each)
        if real is not None:
            _require_fits(real, sequences=batch_sequences, steps=steps, layer=layer)
            firsts = np.arange(sequences) * rows_each
            if real.starts is not None:
                firsts += real.starts[:limit]
            lengths = real.lengths[:limit] + (rows_each - steps)  # one more if the initial state is included
        if inputs is not None:
            inputs = inputs.reshape(-1, inputs.shape[2])
        return SequenceRows(
            padded_values=values.reshape(-1, values.shape[2]),
            lengths=lengths,
            firsts=firsts,
            padded_inputs=inputs,
            batch_sequences=batch_sequences,
        )

    def _with_initial(self, limit: int | None) -> tuple[Float[Tensor, "s u d"], Float[Tensor, "s u p"] | None]:
        """States and inputs of the first ``limit`` sequences, the initial state before the others."""
        values, inputs = self.values[:limit], self.inputs
        if inputs is not None:
            inputs = inputs[:limit]
        if self.initial is None:
            return values, inputs
        values = torch.cat([self.initial[:limit, None], values], dim=1)
        if inputs is not None:
            inputs = pad(inputs, (0, 0, 1, 0))  # nothing was read to reach the initial state
        return values, inputs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Packed:
    """What a layer did with a batch that is sorted by step: step t holds the first ``sizes[t]``, longest sequences."""

    values: Float[Tensor, "n d"]
    """The states."""
    sizes: Int[Array, " t"]
    """How many sequences are still running at each step; never increasing."""
    inputs: Float[Tensor, "n p"] | None = None
    """What the layer read to reach them, or None."""
    initial: Float[Tensor, "b d"] | None = None
    """The state before the first step, where it is to be recorded too."""
    order: Int[Array, " b"] | None = None
    """The place of each sequence of the batch among the sorted ones; None if they were sorted from the start."""
    reverse: bool = False
    """Whether the sequences were read from their end."""

    def rows(self, *, limit: int | None) -> SequenceRows:
        """The rows of the first ``limit`` sequences in the order of the batch, each in the order it was read in."""
        order = self.order
        if order is None:
            order = np.arange(self.sizes[0])
        batch_sequences, order = len(order), order[:limit]
        lengths = packed_lengths(self.sizes)[order]
        places = _packed_places(self.sizes, order, lengths, reverse=self.reverse)
        values, inputs = self.values, self.inputs
        if self.initial is not None:
            # The initial states come first, one for each sorted sequence, so that all other places move on by sizes[0].
            values = torch.cat([self.initial, values])
            places = np.insert(places + self.sizes[0], starts_of(lengths), order)
            lengths = lengths + 1
            if inputs is not None:
                inputs = pad(inputs, (0, 0, int(self.sizes[0]), 0))
        (places,) = indices_for(values, places)
        if inputs is not None:
            inputs = inputs[places]
        return SequenceRows(
            padded_values=values[places],
            lengths=lengths,
            padded_inputs=inputs,
            batch_sequences=batch_sequences,
            reverse=self.reverse,
        )


def packed_lengths(sizes: Int[Array, " t"]) -> Int[Array, " b"]:
    """How long each of the sorted sequences is."""
    return (sizes[None] > np.arange(sizes[0])[:, None]).sum(axis=1)


def previous_places(sizes: Int[Array, " t"], *, reverse: bool) -> Int[Array, " n"]:
    """For every packed step, the row of the state before it in [initial states; packed states]."""
    batch, steps = int(sizes[0]), np.repeat(np.arange(len(sizes)), sizes)
    offsets = starts_of(sizes)
    sequence = np.arange(len(steps)) - offsets[steps]
    before = steps - 1
    if reverse:
        before = steps + 1
    inside = (before >= 0) & (before < len(sizes))
    before = before.clip(0, len(sizes) - 1)
    inside &= sequence < sizes[before]  # read from the end, a shorter sequence starts later
    return np.where(inside, batch + offsets[before] + sequence, sequence)


def _packed_places(
    sizes: Int[Array, " t"], order: Int[Array, " s"], lengths: Int[Array, " s"], *, reverse: bool
) -> Int[Array, " n"]:
    """The packed row of every step of every sequence, one sequence after the other."""
    steps = np.arange(lengths.sum()) - np.repeat(starts_of(lengths), lengths)  # 0, 1, … in each sequence
    if reverse:
        steps = np.repeat(lengths, lengths) - 1 - steps
    return starts_of(sizes)[steps] + np.repeat(order, lengths)


def _require_states(values: Tensor, layer: str) -> None:
    """Refuse what a layer gave if it is not an array of real numbers with at least one unit."""
    require_dense(values)
    require_float(values, what=f"states of layer {layer!r}")
    if 0 in values.shape[1:]:
        raise KannError(
            f"layer {layer!r} gave {tuple(values.shape)}, which holds no numbers; pass one that gives (sequences, "
            "steps, units)"
        )


def _require_fits(real: RealSteps, *, sequences: int, steps: int, layer: str) -> None:
    """Refuse lengths of other sequences than a layer saw, or that reach further than it went."""
    if len(real) != sequences:
        raise KannError(
            f"layer {layer!r} gave {sequences} sequences; there are {len(real)} lengths for this batch; "
            "pass one length per sequence, or lengths= as a function of the batch"
        )
    ends = real.lengths
    if real.starts is not None:
        ends = real.starts + real.lengths
    if ends.max() > steps:
        raise KannError(
            f"lengths reach {ends.max()} (sequence {int(ends.argmax())} of the batch); layer {layer!r} gave {steps} "
            f"steps; pass lengths of at most {steps}, counted in the layer's own steps"
        )


def require_right_padding(real: RealSteps, *, layer: str) -> None:
    """Refuse padding on the left for a layer that reads step after step, and so the padding before the sequence."""
    if real.starts is not None:
        raise KannError(
            f"the padding of the batch is on the left, where {layer!r} reads it before the sequence; pad on the right"
        )


def real_steps(value: AnyArray, *, marks_padding: bool = False) -> RealSteps:
    """Read (S,) lengths, or an (S, T) mask, which is true for the real steps unless it ``marks_padding``."""
    array = as_numpy(value)
    if array.ndim == 2:
        return _real_steps_of_mask((array != 0) != marks_padding)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):  # numpy takes [] for real numbers
        raise KannError(
            f"lengths are {array.dtype} of shape {array.shape}; pass one whole number per sequence, "
            "or a mask of shape (sequences, steps)"
        )
    _require_steps(array)
    return RealSteps(lengths=array.astype(np.int64))


def _real_steps_of_mask(real: Array) -> RealSteps:
    """Lengths and starts of the real steps, which must follow each other without a hole."""
    if not real.shape[1]:
        raise KannError(f"lengths are a mask of shape {real.shape}, without a step; pass (sequences, steps)")
    lengths = real.sum(axis=1)
    _require_steps(lengths)
    starts = real.argmax(axis=1)
    ends = real.shape[1] - real[:, ::-1].argmax(axis=1)
    broken = np.flatnonzero(ends - starts != lengths)
    if len(broken):
        raise KannError(
            f"the mask of sequence {broken[0]} of the batch has holes: {lengths[broken[0]]} real steps between "
            f"{starts[broken[0]]} and {ends[broken[0]] - 1}; pass a mask whose real steps follow each other"
        )
    if not starts.any():
        return RealSteps(lengths=lengths)
    return RealSteps(lengths=lengths, starts=starts)


def _require_steps(lengths: Int[Array, " s"]) -> None:
    """Refuse sequences without a step."""
    if len(lengths) and lengths.min() < 1:
        raise KannError(
            f"sequence {int(lengths.argmin())} has length {lengths.min()}; every sequence needs at least one step; "
            "leave it out"
        )
