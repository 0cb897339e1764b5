"""From what a batch holds, padded or packed, to the rows of its sequences one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import indices_for, run_indices
from kann.errors import KannError
from kann.typing import AnyArray, Array, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ragged:
    """The real steps of whole sequences, which are picked out of the padding when they are asked for."""

    steps: Float[Tensor, "m d"]
    """States, padding included."""
    lengths: Int[Array, " s"]
    """How many real steps each sequence has."""
    firsts: Int[Array, " s"] | None = None
    """Where each sequence begins among the steps; None if they follow each other without padding."""
    drive: Float[Tensor, "m p"] | None = None
    """What the layer read to reach each state, or None."""
    samples: int
    """How many sequences the batch held, those that were cut off included."""

    def without_padding(self) -> "Ragged":
        """The same, once the real steps are picked out."""
        return self if self.firsts is None else replace(self, steps=self.values, drive=self.inputs, firsts=None)

    @property
    def values(self) -> Float[Tensor, "n d"]:
        """The states, one sequence after the other."""
        return self._real(self.steps)

    @property
    def inputs(self) -> Float[Tensor, "n p"] | None:
        """What the layer read to reach each of them, or None."""
        return None if self.drive is None else self._real(self.drive)

    def _real(self, steps: Float[Tensor, "m _"]) -> Float[Tensor, "n _"]:
        return steps if self.firsts is None else steps[run_indices(self.firsts, self.lengths, steps)]


def joined(parts: Sequence[Ragged]) -> Ragged:
    """The rows of several batches as one. To pick them out of the padding once costs less than batch by batch."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0, *(len(part.steps) for part in parts)])
    firsts = [
        offset + (np.cumsum(part.lengths) - part.lengths if part.firsts is None else part.firsts)
        for part, offset in zip(parts, offsets, strict=False)
    ]
    drives = [part.drive for part in parts if part.drive is not None]
    return Ragged(
        steps=torch.cat([part.steps for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        firsts=None if all(part.firsts is None for part in parts) else np.concatenate(firsts),
        drive=torch.cat(drives) if drives else None,
        samples=sum(part.samples for part in parts),
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Span:
    """Which steps of a padded batch are real: those from ``starts`` on, ``lengths`` many."""

    lengths: Int[Array, " s"]
    """The number of real steps of each sequence."""
    starts: Int[Array, " s"] | None = None
    """Where they begin if the padding is on the left; None if every sequence begins at step 0."""

    def __getitem__(self, key: slice) -> "Span":
        return Span(lengths=self.lengths[key], starts=None if self.starts is None else self.starts[key])

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Padded:
    """Steps of a batch in which every sequence takes the same room."""

    values: Float[Tensor, "b t d"]
    """The states."""
    inputs: Float[Tensor, "b t p"] | None = None
    """What led to them."""
    initial: Float[Tensor, "b d"] | None = None
    """The state before the first, where it is to be included."""

    def rows(self, span: Span | None, *, keep: int | None, layer: str) -> Ragged:
        """Drop the padding, and the sequences behind the first ``keep``."""
        samples, steps = self.values.shape[:2]
        if span is not None:
            _require_fits(span, samples=samples, steps=steps, layer=layer)
        values, inputs, shift = self.values[:keep], None if self.inputs is None else self.inputs[:keep], 0
        if self.initial is not None:
            values, shift = torch.cat([self.initial[:keep, None], values], dim=1), 1
            # Nothing was read to reach the initial state.
            inputs = None if inputs is None else torch.nn.functional.pad(inputs, (0, 0, 1, 0))
        if span is None:
            firsts, lengths = None, np.full(len(values), steps + shift)
        else:
            firsts = np.arange(len(values)) * (steps + shift)
            firsts = firsts if span.starts is None else firsts + span.starts[:keep]
            lengths = span.lengths[:keep] + shift
        return Ragged(
            steps=values.reshape(-1, values.shape[2]),
            lengths=lengths,
            firsts=firsts,
            drive=None if inputs is None else inputs.reshape(-1, inputs.shape[2]),
            samples=samples,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Packed:
    """Steps in order of time: step t holds the first ``sizes[t]`` sequences, the longest sequence first."""

    values: Float[Tensor, "n d"]
    """The states."""
    sizes: Int[Array, " t"]
    """How many sequences are still running at each step; never increasing."""
    inputs: Float[Tensor, "n p"] | None = None
    """What led to them."""
    initial: Float[Tensor, "b d"] | None = None
    """The state before the first, where it is to be included."""
    order: Int[Array, " b"] | None = None
    """Where each sequence of the batch stands among the sorted ones; None if they were sorted from the start."""
    reverse: bool = False
    """Whether the sequences were read from their end."""

    def rows(self, *, keep: int | None) -> Ragged:
        """Put the sequences one after the other, in the order of the batch and each in its own order of time."""
        order = np.arange(self.sizes[0]) if self.order is None else self.order
        samples, order = len(order), order[:keep]
        lengths = packed_lengths(self.sizes)[order]
        values, inputs = self.values, self.inputs
        places = _packed_places(self.sizes, order, lengths, reverse=self.reverse)
        if self.initial is not None:
            values = torch.cat([self.initial, values])
            inputs = None if inputs is None else torch.nn.functional.pad(inputs, (0, 0, int(self.sizes[0]), 0))
            places = np.insert(places + self.sizes[0], np.cumsum(lengths) - lengths, order)
            lengths = lengths + 1
        (places,) = indices_for(values, places)
        return Ragged(
            steps=values[places],
            lengths=lengths,
            drive=None if inputs is None else inputs[places],
            samples=samples,
        )


def packed_lengths(sizes: Int[Array, " t"]) -> Int[Array, " b"]:
    """How long each of the sorted sequences is."""
    return (sizes[None] > np.arange(sizes[0])[:, None]).sum(axis=1)


def previous_places(sizes: Int[Array, " t"], *, reverse: bool) -> Int[Array, " n"]:
    """For every packed step, where the state before it stands in [initial states; packed states]."""
    batch, steps = int(sizes[0]), np.repeat(np.arange(len(sizes)), sizes)
    offsets = np.cumsum(sizes) - sizes
    sequence = np.arange(len(steps)) - offsets[steps]
    before = steps + 1 if reverse else steps - 1
    inside = (before >= 0) & (before < len(sizes))
    before = before.clip(0, len(sizes) - 1)
    inside &= sequence < sizes[before]  # read from the end, a shorter sequence starts later
    return np.where(inside, batch + offsets[before] + sequence, sequence)


def _packed_places(
    sizes: Int[Array, " t"], order: Int[Array, " s"], lengths: Int[Array, " s"], *, reverse: bool
) -> Int[Array, " n"]:
    offsets = np.cumsum(sizes) - sizes
    steps = _counting(lengths)
    if reverse:
        steps = np.repeat(lengths, lengths) - 1 - steps
    return offsets[steps] + np.repeat(order, lengths)


def _counting(lengths: Int[Array, " s"]) -> Int[Array, " n"]:
    """0, 1, … up to each of the lengths, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _require_fits(span: Span, *, samples: int, steps: int, layer: str) -> None:
    if len(span) != samples:
        raise KannError(
            f"layer {layer!r} gave {samples} sequences; there are {len(span)} lengths for this batch; "
            "pass one length per sequence, or lengths= as a function of the batch"
        )
    ends = span.lengths if span.starts is None else span.starts + span.lengths
    if ends.max() > steps:
        raise KannError(
            f"lengths reach {ends.max()} (sequence {int(ends.argmax())} of the batch); layer {layer!r} gave {steps} "
            f"steps; pass lengths of at most {steps}, counted in the layer's own steps"
        )


def as_span(value: AnyArray, *, padding: bool = False) -> Span:
    """Read (S,) lengths, or an (S, T) mask whose True, or False with ``padding``, marks the real steps."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.ndim == 2:
        return _span_of_mask((array == 0) if padding else (array != 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):  # numpy takes [] for real numbers
        raise KannError(
            f"lengths are {array.dtype} of shape {array.shape}; pass one whole number per sequence, "
            "or a mask of shape (sequences, steps)"
        )
    _require_steps(array)
    return Span(lengths=array.astype(np.int64))


def _span_of_mask(real: Array) -> Span:
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
    return Span(lengths=lengths, starts=starts if starts.any() else None)


def _require_steps(lengths: Int[Array, " s"]) -> None:
    if len(lengths) and lengths.min() < 1:
        raise KannError(
            f"sequence {int(lengths.argmin())} has length {lengths.min()}; every sequence needs at least one step; "
            "leave it out"
        )
