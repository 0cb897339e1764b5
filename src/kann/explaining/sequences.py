"""The sequences of whatever holds a model's inputs, by their numbers, and what is read at each of their steps."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence
from torch.utils.data import DataLoader

from kann._format import percent
from kann.backends.arrays import as_numpy
from kann.checks import require_names
from kann.data.states import States, require_one_per_state
from kann.errors import KannError
from kann.explaining.options import Options
from kann.live.evaluation import outputs_of
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData, real_steps, tensors_of
from kann.typing import Array, Int, Shaped

MOST_BATCHES = 256
"""Batches of a loader or a generator that are kept in memory; what follows is not read."""

FITS, FITS_NOT = 0.99, 0.9
"""Tokens fit the numbers that are read if each token has one number in this fraction of places, and do not below the
other: a vocabulary maps several tokens to one number, but never one token to several."""

SAME_TO = 1e-5
"""Numbers that are read are the same if they differ by less: data may be rounded to float32."""

COMPARED = 8
"""Number of sequences that decide whether a layer reads the channels: one alone may hold only zeros."""

PADDED_ROWS, PADDED_SEQUENCES, ORDINARY_ZEROS = 3, 0.1, 0.01
"""Zeros look like padding if this fraction of the sequences end in this number of rows of zeros or more, and before
them at most the last fraction of rows is zero: where zeros are ordinary, as between pulses, they are more."""


class Sequences:
    """The sequences that the user passed, by number. Batches, which may come only once, are kept in memory."""

    def __init__(self, model: nn.Module, data: Any, options: Options):
        _require_sequences(data)
        self.model, self._run = model, options.run
        if isinstance(data, PackedSequence):
            data, self._run["collate"] = unpack_sequence(data), partial(pack_sequence, enforce_sorted=False)
        source = SequenceData(model, data, lengths=options.lengths, **self._run)
        batches = source.batches()  # raises what `kann.record` raises; nothing is read
        self._sizes: list[int] = []
        count = source.count
        if count is None and self._run["collate"] is not None:
            source.data = list(data)
            count = len(source.data)
        elif count is None:
            kept = list(islice(batches, MOST_BATCHES))
            if not kept:
                raise KannError(
                    "the data hold no batches; a generator can be read only once, so pass a new one, or a list of "
                    "batches"
                )
            source.data, self._sizes = [batch.content for batch in kept], list(map(source.count_of, kept))
            count = sum(self._sizes)
        self._source, self.axis, self.count = source, source.axis, count
        self._is_tensor = isinstance(source.data, Tensor | np.ndarray) and self._run["collate"] is None
        self.counts_padding = self._is_tensor and options.lengths is None and source.needs_lengths
        """True if the model needs lengths but none were given. All steps then count as real."""
        lengths = options.lengths
        is_by_batch = isinstance(lengths, str | int) or callable(lengths)
        self.knows_positions = not is_by_batch and not self._sizes
        """True if `positions` leaves padding out: of batches, and by lengths that they know, it cannot."""
        self._lengths = None if is_by_batch or lengths is None else as_numpy(lengths)
        if self._lengths is not None:
            source.lengths = self._lengths  # converted once
        known = data.get("attention_mask") if self._lengths is None and isinstance(data, Mapping) else self._lengths
        self._real = None if known is None else real_steps(known)
        values: Any = source.data
        has_steps = self._is_tensor and values.ndim > 1
        options.require_one_each(count, values.shape[1 - self.axis] if has_steps else None)

    def data(self, numbers: Int[Array, " k"]) -> SequenceData:
        """Return some sequences in batches, with the call of the model."""
        data, run = self.part(numbers)
        return SequenceData(self.model, data, **run)

    def outputs(
        self, numbers: Int[Array, " k"], change: Callable[[Any], Any] = lambda content: content
    ) -> Shaped[Array, "k ..."]:
        """Return the outputs by which the model decides; steps behind the end of a short sequence are NaN.

        ``change`` may replace what each batch holds.
        """
        data, found = self.data(numbers), list[Array]()
        with evaluation_mode(self.model):
            for batch in data.batches():
                batch.content = change(batch.content)
                found.append(as_numpy(outputs_of(data.call(batch), data.count_of(batch))))
        longest = np.max([part.shape[1:] for part in found], axis=0)
        missing = [[(0, most - own) for most, own in zip(longest, part.shape[1:], strict=True)] for part in found]
        padded = zip(found, missing, strict=True)
        return np.concatenate([np.pad(part, [(0, 0), *pad], constant_values=np.nan) for part, pad in padded])

    def part(self, numbers: Int[Array, " k"]) -> tuple[Any, dict[str, Any]]:
        """Return the data of some sequences and their `RunOptions`, as `kann.record` and `kann.effects` take them.

        The sequences are in this order; those of batches in the order of the data.
        """
        if not self._sizes:
            taken = self._source.take(numbers)
            return taken.data, {**self._run, "lengths": taken.lengths}
        lengths = self._source.lengths if self._lengths is None else self._lengths[np.sort(numbers)]
        # Not a list, in which matrices would be sequences.
        return DataLoader(self._batches(numbers), batch_size=None), {**self._run, "lengths": lengths}  # pyright: ignore[reportArgumentType]

    def _batches(self, numbers: Int[Array, " k"]) -> list[Any]:
        """Return batches of these sequences alone, in the order of the data."""
        sizes, ends = self._sizes, np.cumsum(self._sizes)
        batch_of = np.searchsorted(ends, numbers, side="right")
        return [
            _rows(self._source.data[i], np.sort(numbers[batch_of == i]) - (ends[i] - sizes[i]), sizes[i], self.axis)
            for i in np.unique(batch_of).tolist()
        ]

    def _only(self, number: int) -> Any:
        """Return everything that belongs to one sequence."""
        chosen = np.array([number])
        return self._batches(chosen)[0] if self._sizes else self._source.take(chosen).data

    def sorted_by_length(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        """Sort numbers by length, long sequences first, so that batches have little padding; keep padded batches."""
        if self._sizes or isinstance(self._source.data, Mapping):
            return np.sort(numbers)
        return numbers[np.argsort(-self.positions(numbers), kind="stable")]

    def positions(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        """Return the number of steps of these sequences, without padding where lengths or a mask mark it."""
        if self._real is not None:
            return self._real.lengths[numbers]
        if self._is_tensor and self._source.data.ndim > 1:
            return np.full(len(numbers), self._source.data.shape[1 - self.axis])
        return np.array([len(self.steps(number)) for number in numbers.tolist()])

    def starts(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        """Return the first real step of each of these sequences; not 0 where a mask tells of padding before them."""
        if self._real is None or self._real.starts is None:
            return np.zeros(len(numbers), dtype=np.int64)
        return self._real.starts[numbers]

    def steps(self, number: int) -> Shaped[Array, "t ..."]:
        """Return the content of the first tensor of a sequence at each step, padding included."""
        found = self._only(number)
        is_sample = isinstance(found, list) and not self._sizes  # and no batch of one
        if is_sample:
            found = found[0]
        if not isinstance(found, np.ndarray) and not _are_numbers(found):
            found = as_numpy(next(tensors_of(found), torch.zeros(1)))
        found = np.asarray(found)
        return found if is_sample else found.take(0, axis=self.axis)

    def real_steps(self, numbers: Int[Array, " k"], lengths: Int[Array, " k"]) -> list[Shaped[Array, "_ ..."]] | None:
        """Return the inputs at the real steps of some sequences, ``lengths`` of them; None if there are fewer."""
        starts = self.starts(numbers).tolist()
        ends = [start + length for start, length in zip(starts, lengths.tolist(), strict=True)]
        read = [self.steps(i)[start:end] for i, start, end in zip(numbers.tolist(), starts, ends, strict=True)]
        return read if [len(each) for each in read] == lengths.tolist() else None

    def repeats(self) -> Int[Array, " s"]:
        """Return for each sequence the number of the first one with the same input and length."""
        first: dict[bytes, int] = {}
        lengths: Any = [None] * self.count if self._lengths is None else self._lengths.tolist()
        digests = (hashlib.blake2b(_bytes_of([lengths[i], self._only(i)])).digest() for i in range(self.count))
        return np.array([first.setdefault(digest, i) for i, digest in enumerate(digests)], dtype=int)

    def require_real_steps(self) -> None:
        """Raise for lengths beyond the steps of a tensor that holds all sequences."""
        data = self._source.data
        if self._lengths is None or self._real is None or not self._is_tensor or data.ndim < 2:
            return
        steps, marks = data.shape[1 - self.axis], self._lengths
        if marks.ndim == 2 and marks.shape[1] != steps:
            raise KannError(
                f"lengths= is a mask of {marks.shape[1]} steps, and the data have {steps}; pass one mark for each step"
            )
        number = int(self._real.lengths.argmax())
        if self._real.lengths[number] > steps:
            raise KannError(
                f"sequence {number} has length {self._real.lengths[number]}, and the data have {steps} steps; "
                "pass how many steps of each sequence are real"
            )

    def ending_in_zeros(self) -> int:
        """Count the sequences that end in zeros which look like padding; 0 if all end alike, or lengths are known."""
        if self._real is not None or self._source.lengths is not None:
            return 0
        rows = zeros = 0
        endings = np.zeros(self.count, dtype=int)
        for number in range(self.count):
            steps = self.steps(number)
            is_read = np.any(steps.reshape(len(steps), -1), axis=1)
            end = int(np.flatnonzero(is_read).max(initial=-1)) + 1
            endings[number], rows, zeros = len(steps) - end, rows + end, zeros + int((~is_read[:end]).sum())
        padded = endings[endings >= PADDED_ROWS]
        is_padding = len(padded) >= PADDED_SEQUENCES * self.count and zeros <= ORDINARY_ZEROS * rows
        return len(padded) if is_padding and len(np.unique(padded)) > 1 else 0

    def require_finite(self) -> None:
        """Raise if NaN or infinite numbers in the data reach the outputs; some models read missing values."""
        if self._lengths is None and self._source.lengths is not None:
            return  # only batches know what is padding
        places: dict[int, list[int]] = {}
        for number in range(self.count):
            steps = self.steps(number)
            if steps.dtype.kind == "f" and not np.isfinite(steps).all():
                start, count = (int(of(np.array([number]))[0]) for of in (self.starts, self.positions))
                for step, *channel in np.argwhere(~np.isfinite(steps[start : start + count]))[:1].tolist():
                    places[number] = [start + step, *channel]
        if not places or np.isfinite(self.outputs(np.array([*places][:1]))).all():
            return
        number, (step, *channel) = next(iter(places.items()))
        at = f"sequence {number}, step {step}" + (f", channel {channel[0]}" if channel else "")
        raise KannError(
            f"NaN or infinite numbers in the data reach the outputs (in {len(places)} of {self.count} sequences; "
            f"first: {at}); leave these sequences out, or fill in missing values as in training"
        )


def _require_sequences(data: Any) -> None:
    """Raise if data hold no sequences, or a pair of all sequences and something else."""
    if isinstance(data, list | tuple) and not len(data):
        raise KannError("the data hold no sequences; pass at least some")
    if _is_pair(data):
        raise KannError(
            f"data is a pair of shapes {tuple(data[0].shape)} and {tuple(data[1].shape)}; pass the first alone, "
            "and the second as lengths= or labels="
        )


def _is_pair(data: Any) -> bool:
    """Return True if data are all sequences with values for each, such as lengths or labels, and no batches.

    Two batches may differ only in their numbers of sequences and steps.
    """
    if not isinstance(data, list | tuple) or len(data) != 2:
        return False
    first, second = data
    if not all(isinstance(item, Tensor | np.ndarray) and item.ndim for item in data) or first.ndim < 2:
        return False
    are_alike = first.ndim == second.ndim and first.shape[2:] == second.shape[2:] and first.dtype == second.dtype
    return len(first) == len(second) and not are_alike


def _are_numbers(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(number, int | float) for number in item)


def _bytes_of(value: Any) -> bytes:
    """Return the content of a nested structure of arrays, numbers and texts."""
    if isinstance(value, Tensor | np.ndarray):
        values = np.ascontiguousarray(as_numpy(value))
        return f"{values.shape} {values.dtype}".encode() + values.tobytes()
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple) and not _are_numbers(value):
        return b",".join(map(_bytes_of, value))
    return repr(value).encode()


def _rows(value: Any, rows: Int[Array, " k"], size: int, axis: int) -> Any:
    """Return the same nested batch with some of its sequences; what has no entry for each sequence stays as it is."""
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim > axis and value.shape[axis] == size:
            return value[:, rows] if axis else value[rows]
        return value
    if isinstance(value, Mapping):
        return {key: _rows(item, rows, size, axis) for key, item in value.items()}
    if isinstance(value, PackedSequence):
        parts = unpack_sequence(value)
        return pack_sequence([parts[i] for i in rows], enforce_sorted=False)
    if isinstance(value, list | tuple):
        return type(value)(_rows(item, rows, size, axis) for item in value)
    return value


# What is read at each step


def tokens_of(tokens: Any, sequences: Sequences, numbers: Int[Array, " k"], states: States) -> list[list[str]] | None:
    """Return tokens in the order of the text, else the numbers of words; None if no words are read."""
    if tokens is None:
        read = sequences.real_steps(numbers, states.lengths)
        if read is None or any(each.ndim != 1 or each.dtype.kind not in "iu" for each in read):
            return None
        return [list(map(str, each.tolist())) for each in read]
    own = [tokens[i] for i in numbers]
    require_one_per_state(own, states, "tokens")
    return [[str(token) for token in each] for each in own]


def require_same_direction(tokens: Sequence[Sequence[str]], sequences: Sequences, numbers: Int[Array, " k"]) -> None:
    """Raise for tokens that fit the numbers which are read only if they are turned round."""
    read = [as_numpy(sequences.steps(int(i))) for i in numbers]
    if any(each.ndim != 1 or each.dtype.kind not in "iu" for each in read):
        return
    forwards = _fit(tokens, read)
    backwards = _fit([own[::-1] for own in tokens], read)
    if forwards < FITS_NOT and backwards >= FITS:
        raise KannError(
            f"tokens run in the other direction than the data: turned round they fit the numbers of words read in "
            f"{percent(backwards)} of places, as they are in {percent(forwards)}; pass them in the order of the text"
        )


def _fit(tokens: Sequence[Sequence[str]], read: Sequence[Array]) -> float:
    """Compute the fraction of places at which a token has its most frequent number."""
    counts: dict[str, Counter[int]] = {}
    for words, ids in zip(tokens, read, strict=True):
        for word, number in zip(words, ids.tolist(), strict=False):
            counts.setdefault(word, Counter())[number] += 1
    repeated = [each for each in counts.values() if each.total() > 1]
    total = sum(each.total() for each in repeated)
    return sum(max(each.values()) for each in repeated) / total if total else 1.0


def channels_of(channels: Any, sequences: Sequences) -> tuple[str, ...] | None:
    """Return the names of what is read at each step; None without any."""
    if channels is None:
        return None
    read = sequences.steps(0)
    if read.ndim == 1 and read.dtype.kind in "iu":
        raise KannError(
            "channels= names the channels of a signal, and the network reads numbers of words; pass tokens="
        )
    if read.ndim > 2:
        raise KannError(
            f"channels= names the numbers that are read at each step, and these are arrays of shape {read.shape[1:]}; "
            "leave channels= out"
        )
    width = read.reshape(len(read), -1).shape[1]
    return require_names(channels, width, "channels", of=f"the data have {width} at each step")


def reads_channels(sequences: Sequences, numbers: Int[Array, " k"], states: States) -> bool:
    """Return True if the recorded layer reads the channels themselves, and not the outputs of other layers."""
    lengths = states.lengths[:COMPARED]
    read = None if states.inputs is None else sequences.real_steps(numbers[:COMPARED], lengths)
    if read is None:
        return False
    own = np.split(as_numpy(states.inputs[: lengths.sum()]), np.cumsum(lengths)[:-1])  # type: ignore[index]
    return _are_same(own, read) or _are_same(own, [each[::-1] for each in read])  # some networks read backwards


def _are_same(ones: Sequence[Array], others: Sequence[Array]) -> bool:
    pairs = zip(ones, others, strict=True)
    return all(one.shape == other.shape and np.allclose(one, other, atol=SAME_TO) for one, other in pairs)


def signals_of(sequences: Sequences, numbers: Int[Array, " k"], states: States) -> list[Array] | None:
    """Return the input at each step if it is real numbers, (T, channels) for each sequence; else None."""
    read = sequences.real_steps(numbers, states.lengths)
    if read is None or any(each.ndim not in (1, 2) or each.dtype.kind != "f" for each in read):
        return None
    return [each.astype(np.float64) for each in read]
