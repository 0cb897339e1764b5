"""What was read at each step, in words: the tokens that were passed, or the numbers of words that the network reads."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from kann._format import percent
from kann.backends.arrays import as_numpy
from kann.checks import require_names
from kann.data.states import States, require_one_per_state
from kann.errors import KannError
from kann.explaining.sequences import Sequences
from kann.typing import Array, Int

FITS, FITS_NOT = 0.99, 0.9
"""Tokens fit the numbers that are read if each token has one number in this fraction of places, and do not below the
other: a vocabulary maps several tokens to one number, but never one token to several."""

SAME_TO = 1e-5
"""Numbers that are read are the same if they differ by less: data may be rounded to float32."""

COMPARED = 8
"""As many sequences tell whether a layer reads the channels: one alone may hold nothing but zeros."""


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
