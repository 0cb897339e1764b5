"""The sequences of whatever holds a model's inputs, by their numbers, and what is read at each of their steps."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from kann._format import percent
from kann.backends.arrays import as_numpy
from kann.checks import require_names
from kann.data.states import States, require_one_per_state
from kann.errors import KannError
from kann.explaining.options import Options
from kann.recording.sequence_data import RealSteps, SequenceData, count_of, real_steps, tensors_of
from kann.typing import Array, Int, Shaped

MOST_BATCHES = 256
"""Batches of a loader or a generator that are kept in memory; what follows is not read."""

LEAST_BATCHES = 8
"""Batches that sequences are cut into if there are enough of them, so that live tests can set some apart."""


FITS, FITS_NOT = 0.99, 0.9
"""Tokens fit the numbers that are read if each token has one number in this fraction of places, and do not below the
other: a vocabulary maps several tokens to one number, but never one token to several."""

SAME_TO = 1e-5
"""Numbers that are read are the same if they differ by less: data may be rounded to float32."""

COMPARED = 8
"""As many sequences tell whether a layer reads the channels: one alone may hold nothing but zeros."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Part:
    """Some sequences as `kann.record` and `kann.effects` take them."""

    data: Any
    lengths: Any


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sequences:
    """Sequences by number."""

    content: Any
    """A tensor, a list of sequences or samples, a mapping of tensors, or `_Batches`."""
    count: int
    lengths: Any
    """An array for all sequences, a key or a function of the batch, or None."""
    axis: int = 0
    """Which axis of a tensor counts the sequences."""
    counts_padding: bool = False
    """Whether the model needs lengths and none were passed for a tensor. All steps then count as real."""
    is_packed: bool = False
    """Whether the model takes a PackedSequence."""
    batch_size: int = 128

    @staticmethod
    def of(model: nn.Module, data: Any, options: Options) -> "Sequences":
        """The sequences that the user passed; what can be read only once, such as a generator, is kept in memory."""
        _require_sequences(data)
        read = SequenceData(model, data, lengths=options.lengths, **options.run)
        read.batches()  # raises what `kann.record` raises; nothing is read
        axis = read.axis
        common: dict[str, Any] = {"lengths": options.lengths, "batch_size": options.batch_size}
        if isinstance(data, PackedSequence):
            content = unpack_sequence(data)
            return Sequences(content=content, count=len(content), is_packed=True, **common)
        if isinstance(data, Tensor | np.ndarray) and options.collate is None:
            counts_padding = options.lengths is None and read.needs_lengths
            return Sequences(content=data, count=data.shape[axis], axis=axis, counts_padding=counts_padding, **common)
        if isinstance(data, Mapping):
            return Sequences(content=dict(data), count=count_of(data), **common)
        if options.collate is not None or _are_sequences(data):
            content = list(data)
            return Sequences(content=content, count=len(content), **common)
        kept = _Batches.of(data)
        return Sequences(content=kept, count=sum(kept.sizes), **common)

    def part(self, numbers: Int[Array, " k"], *, least_batches: int = LEAST_BATCHES) -> Part:
        """These sequences, in this order; where they come in batches, in at least so many if there are enough."""
        lengths = self.lengths
        if lengths is not None and not isinstance(lengths, str | int) and not callable(lengths):
            lengths = as_numpy(lengths)[numbers]
        if self.is_packed:
            size = min(self.batch_size, -(-len(numbers) // least_batches))
            chunks = [numbers[first : first + size] for first in range(0, len(numbers), size)]
            data = [pack_sequence([self.content[i] for i in chunk], enforce_sorted=False) for chunk in chunks]
            return Part(data=data, lengths=lengths)
        return Part(data=_taken(self.content, numbers, self.axis, self.count), lengths=lengths)

    def sorted_by_length(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        """The same numbers, long sequences first, so that little of a batch is padding; batches keep their order."""
        if isinstance(self.content, _Batches):
            return np.sort(numbers)
        if isinstance(self.content, list):
            sizes = [len(self.content[i]) for i in numbers]
        elif self._known_lengths() is not None:
            sizes = real_steps(self._known_lengths()).lengths[numbers]
        else:
            return numbers
        return numbers[np.argsort(-np.asarray(sizes), kind="stable")]

    def positions(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        """How many steps each of these sequences has, without padding where lengths or a mask tell it."""
        real = self._real_steps()
        if real is not None:
            return real.lengths[numbers]
        return np.array([len(self.steps(int(i))) for i in numbers])

    def starts(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        """The first real step of each of these sequences; not 0 where a mask tells of padding before them."""
        real = self._real_steps()
        if real is None or real.starts is None:
            return np.zeros(len(numbers), dtype=np.int64)
        return real.starts[numbers]

    def _real_steps(self) -> RealSteps | None:
        """The real steps of all sequences, if lengths or a mask tell them."""
        known = self._known_lengths()
        if known is None and isinstance(self.content, Mapping):
            known = self.content.get("attention_mask")
        if known is None:
            return None
        return real_steps(known)

    @property
    def knows_positions(self) -> bool:
        """Whether `positions` leaves padding out; batches, and lengths that are asked of them, tell it only later."""
        by_batch = isinstance(self.lengths, str | int) or callable(self.lengths)
        return not by_batch and not isinstance(self.content, _Batches)

    def steps(self, number: int) -> Shaped[Array, "t ..."]:
        """What the first tensor of a sequence holds at each step, padding included."""
        one = _taken(self.content, np.array([number]), self.axis, self.count)
        if isinstance(self.content, list):
            found = one[0]
            if _are_numbers(found):
                return np.asarray(found)
            if not isinstance(found, Tensor | np.ndarray):
                found = next(tensors_of(found), torch.as_tensor([0.0]))
            return as_numpy(found)
        first = next(tensors_of(one), None)
        if first is None:
            return as_numpy(one).take(0, axis=self.axis)
        return as_numpy(first).take(0, axis=self.axis)

    def repeats(self) -> Int[Array, " s"]:
        """For each sequence the number of the first one that reads the same, with the same length."""
        first: dict[bytes, int] = {}
        known, numbers = self._known_lengths(), []
        for number, one in enumerate(self._each()):
            digest = hashlib.blake2b()
            if known is not None:
                digest.update(str(known[number]).encode())
            for part in _bytes_of(one):
                digest.update(part)
            numbers.append(first.setdefault(digest.digest(), number))
        return np.array(numbers, dtype=int)

    def _each(self) -> Iterator[Any]:
        """Everything that belongs to one sequence after the other."""
        if not isinstance(self.content, _Batches):
            for number in range(self.count):
                yield _taken(self.content, np.array([number]), self.axis, self.count)
            return
        for item, size in zip(self.content.items, self.content.sizes, strict=True):
            for row in range(size):
                yield _rows(item, np.array([row]), size)

    def require_real_steps(self) -> None:
        """Refuse lengths beyond the steps of a tensor that holds all sequences."""
        known = self._known_lengths()
        if known is None or not isinstance(self.content, Tensor | np.ndarray) or self.content.ndim < 2:
            return
        lengths, steps = real_steps(known).lengths, self.content.shape[1 - self.axis]
        if as_numpy(known).ndim == 2 and as_numpy(known).shape[1] != steps:
            raise KannError(
                f"lengths= is a mask of {as_numpy(known).shape[1]} steps, and the data have {steps}; pass one mark for "
                "each step"
            )
        if lengths.max() > steps:
            number = int(lengths.argmax())
            raise KannError(
                f"sequence {number} has length {lengths[number]}, and the data have {steps} steps; "
                "pass how many steps of each sequence are real"
            )

    def _known_lengths(self) -> Any:
        """The lengths of all sequences, if they were passed as numbers."""
        if isinstance(self.lengths, Sequence | np.ndarray | Tensor) and not isinstance(self.lengths, str):
            return self.lengths
        return None


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
    """Whether data are all sequences together with something for each, such as lengths or labels, and no batches.

    Two batches may differ in their numbers of sequences and steps, and in nothing else.
    """
    if not isinstance(data, list | tuple) or len(data) != 2:
        return False
    first, second = data
    if not all(isinstance(item, Tensor | np.ndarray) and item.ndim for item in data) or first.ndim < 2:
        return False
    are_alike = first.ndim == second.ndim and first.shape[2:] == second.shape[2:] and first.dtype == second.dtype
    return len(first) == len(second) and not are_alike


def _are_sequences(data: Any) -> bool:
    """Whether a list holds sequences, (T,) or (T, p) each, and not batches of them."""
    if not isinstance(data, list | tuple):
        return False
    return all(getattr(item, "ndim", 9) < 3 or _are_numbers(item) for item in data)


def _are_numbers(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(number, int | float) for number in item)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Batches:
    """Batches as a loader gave them, kept in memory."""

    items: list[Any]
    sizes: list[int]

    @staticmethod
    def of(data: Iterable[Any]) -> "_Batches":
        items = list(islice(data, MOST_BATCHES))
        if not items:
            raise KannError(
                "the data hold no batches; a generator can be read only once, so pass a new one, or a list of batches"
            )
        return _Batches(items=items, sizes=[count_of(item) for item in items])

    def take(self, numbers: Int[Array, " k"]) -> list[Any]:
        """Batches of these sequences alone, in the order of the data."""
        found, first = [], 0
        for item, size in zip(self.items, self.sizes, strict=True):
            rows = numbers[(numbers >= first) & (numbers < first + size)] - first
            if len(rows):
                found.append(_rows(item, np.sort(rows), size))
            first += size
        return found


def _bytes_of(value: Any) -> Iterator[bytes]:
    """What a nested structure of arrays, numbers and texts holds, piece by piece."""
    if isinstance(value, Tensor | np.ndarray):
        values = np.ascontiguousarray(as_numpy(value))
        yield f"{values.shape} {values.dtype}".encode()
        yield values.tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key).encode()
            yield from _bytes_of(item)
    elif isinstance(value, list | tuple) and not _are_numbers(value):
        for item in value:
            yield from _bytes_of(item)
    else:
        yield repr(value).encode()


def _taken(content: Any, numbers: Int[Array, " k"], axis: int, count: int) -> Any:
    """These sequences of a tensor, a list, a mapping or batches."""
    if isinstance(content, _Batches):
        return content.take(numbers)
    if isinstance(content, list):
        return [content[i] for i in numbers]
    if isinstance(content, Tensor):
        return content.index_select(axis, torch.as_tensor(numbers, device=content.device))
    if isinstance(content, np.ndarray):
        return content.take(numbers, axis=axis)
    return _rows(content, numbers, count)


def _rows(value: Any, rows: Int[Array, " k"], size: int) -> Any:
    """The same nested batch with some of its sequences; what has no entry for each sequence stays as it is."""
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim and len(value) == size:
            return value[rows]
        return value
    if isinstance(value, Mapping):
        return {key: _rows(item, rows, size) for key, item in value.items()}
    if isinstance(value, PackedSequence):
        parts = unpack_sequence(value)
        return pack_sequence([parts[i] for i in rows], enforce_sorted=False)
    if isinstance(value, list | tuple):
        return type(value)(_rows(item, rows, size) for item in value)
    return value


# What is read at each step


def tokens_of(tokens: Any, sequences: Sequences, numbers: Int[Array, " k"], states: States) -> list[list[str]] | None:
    """The tokens of some sequences in the order of the text; None if the network reads no tokens."""
    if tokens is None:
        return _numbers_read(sequences, numbers, states)
    own = [tokens[i] for i in numbers]
    require_one_per_state(own, states, "tokens")
    return [[str(token) for token in each] for each in own]


def _numbers_read(sequences: Sequences, numbers: Int[Array, " k"], states: States) -> list[list[str]] | None:
    """The numbers of words that sequences of whole numbers hold."""
    read = [sequences.steps(int(i)) for i in numbers]
    if any(each.ndim != 1 or each.dtype.kind not in "iu" for each in read):
        return None
    if any(len(each) < length for each, length in zip(read, states.lengths.tolist(), strict=True)):
        return None
    return [list(map(str, each[:length].tolist())) for each, length in zip(read, states.lengths.tolist(), strict=True)]


def require_same_direction(tokens: Sequence[Sequence[str]], sequences: Sequences, numbers: Int[Array, " k"]) -> None:
    """Refuse tokens that fit the numbers which are read only if they are turned round."""
    read = [as_numpy(sequences.steps(int(i))) for i in numbers]
    if any(each.ndim != 1 or each.dtype.kind not in "iu" for each in read):
        return
    forwards = _fit(tokens, read)
    backwards = _fit([own[::-1] for own in tokens], read)
    if forwards < FITS_NOT and backwards >= FITS:
        raise KannError(
            f"tokens run in the other direction than the data: turned round they fit the numbers of words that are "
            f"read in {percent(backwards)} of places, as they are in {percent(forwards)}; pass them in the order "
            f"of the text"
        )


def _fit(tokens: Sequence[Sequence[str]], read: Sequence[Array]) -> float:
    """In which fraction of places a token has the number that it has most often."""
    counts: dict[str, Counter[int]] = {}
    for words, ids in zip(tokens, read, strict=True):
        for word, number in zip(words, ids.tolist(), strict=False):
            counts.setdefault(word, Counter())[number] += 1
    repeated = [each for each in counts.values() if each.total() > 1]
    total = sum(each.total() for each in repeated)
    if not total:
        return 1.0
    return sum(max(each.values()) for each in repeated) / total


def channels_of(channels: Any, sequences: Sequences) -> tuple[str, ...] | None:
    """The names of what is read at each step; None without any."""
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
    """Whether the inputs of the recorded layer are the channels themselves, and not what other layers make of them."""
    if states.inputs is None:
        return False
    few = numbers[:COMPARED]
    lengths, ends, starts = states.lengths[: len(few)], np.cumsum(states.lengths[: len(few)]), sequences.starts(few)
    own = [as_numpy(states.inputs[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    read = [sequences.steps(int(i))[start:][:length] for i, start, length in zip(few, starts, lengths, strict=True)]
    return _are_same(own, read) or _are_same(own, [each[::-1] for each in read])  # some networks read backwards


def _are_same(ones: Sequence[Array], others: Sequence[Array]) -> bool:
    pairs = zip(ones, others, strict=True)
    return all(one.shape == other.shape and np.allclose(one, other, atol=SAME_TO) for one, other in pairs)


def signals_of(sequences: Sequences, numbers: Int[Array, " k"], states: States) -> list[Array] | None:
    """What was read at each step, if these are real numbers, (T, channels) for each sequence; else None."""
    read = [sequences.steps(int(i)) for i in numbers]
    if any(each.ndim not in (1, 2) or each.dtype.kind != "f" for each in read):
        return None
    lengths = states.lengths.tolist()
    if any(len(each) < length for each, length in zip(read, lengths, strict=True)):
        return None
    return [np.asarray(each[:length], dtype=np.float64) for each, length in zip(read, lengths, strict=True)]
