"""Which sequences are the same, so that none is fitted while its copy is held out."""

from functools import partial

import numpy as np

from kann.backends.arrays import as_numpy, bits_of, segment_sums, to_device_of
from kann.data.blocks import Block
from kann.data.reduction import Total, accumulate, summed_over_ranks
from kann.data.states import States
from kann.typing import AnyArray, Array, Float, Int

ODD = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio: multiples of it, cut to 64 bits, are spread evenly."""


def repeats_of(states: States) -> Int[Array, " s"]:
    """A number for each sequence, the same for sequences whose states are the same to the last bit.

    States are compared by a checksum of 64 bits of each sequence, in one reading of all of them; nothing is read if no
    two sequences are equally long. Sequences of one state hold no pair that could be fitted, and repeat none.

    >>> repeats_of(States.from_sequences([np.ones((3, 2)), np.zeros((3, 2)), np.ones((3, 2))])).tolist()
    [1, 0, 1]
    """
    lengths = states.lengths
    if len(np.unique(lengths)) == len(lengths):
        return np.arange(len(lengths))
    with summed_over_ranks(False):  # sequences of other ranks are not compared
        checksums = accumulate(states, partial(Total, partial(_checksums, len(lengths))), what="repeats")
    checksums = np.where(lengths > 1, checksums, np.arange(len(lengths)))
    return np.unique(np.stack([lengths, checksums], axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def row_checksums(rows: Float[AnyArray, "n d"]) -> Int[AnyArray, " n"]:
    """A number of 64 bits for each row, the same for rows that are the same to the last bit; sums overflow on purpose.

    >>> first, second, third = row_checksums(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    bits = bits_of(rows)
    sums = (bits * to_device_of(bits, _odd_numbers(np.arange(1, rows.shape[1] + 1)))).sum(1)
    return sums ^ (sums >> 32)  # float32 numbers have zeros in the low bits, and so has their sum


def _checksums(count: int, block: Block) -> Int[Array, " s"]:
    """The part of each sequence's checksum that the rows of a block give; parts are added, and overflow on purpose."""
    rows = row_checksums(block.values)
    steps = np.repeat(block.steps - block.offsets, block.lengths) + np.arange(len(rows))
    sums = segment_sums((rows * to_device_of(rows, _odd_numbers(steps + 1)))[:, None], block.lengths)
    found = np.zeros(count, dtype=np.int64)
    found[block.numbers] = as_numpy(sums)[:, 0]
    return found


def _odd_numbers(numbers: Int[Array, " n"]) -> Int[Array, " n"]:
    """A large odd number for each number: products with odd numbers lose nothing when they are cut to 64 bits."""
    return (numbers.astype(np.uint64) * np.uint64(ODD) | np.uint64(1)).view(np.int64)
