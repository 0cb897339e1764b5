"""Blocks of rows: which sequences they hold, and where a number that is not finite stands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kann.data.reduction import Block, find_not_finite, float64_blocks, pieces

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def block_of(lengths, *, inputs=None, steps=None, dtype=np.float32):
    lengths = np.array(lengths)
    n = lengths.sum()
    return Block(
        values=np.arange(2 * n, dtype=dtype).reshape(n, 2),
        inputs=inputs,
        lengths=lengths,
        numbers=10 + np.arange(len(lengths)),
        starts=100 + np.cumsum(lengths) - lengths,
        steps=np.zeros_like(lengths) if steps is None else np.array(steps),
    )


@given(LENGTHS, st.data())
def test_pieces_cover_exactly_the_rows_between_two_cuts(lengths, data):
    offsets = np.cumsum(lengths) - lengths
    rows = int(np.sum(lengths))
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    at, steps, counts = pieces(offsets, start, stop)
    owner = np.repeat(np.arange(len(lengths)), lengths)  # the sequence of each row
    step = np.concatenate([np.arange(length) for length in lengths])
    assert list(range(at.start, at.stop)) == sorted(set(owner[start:stop].tolist()))
    for k, number in enumerate(range(at.start, at.stop)):
        inside = step[start:stop][owner[start:stop] == number]
        assert (steps[k], counts[k]) == (inside[0], len(inside))


def test_pieces_read_one_after_the_other_are_the_block_in_float64(monkeypatch):
    monkeypatch.setattr("kann.data.reduction.block_rows", lambda values, width: 3)
    block = block_of([2, 7, 1, 1, 4], inputs=np.ones((15, 1), dtype=np.float32))
    rows, numbers = [], []
    for piece in float64_blocks(block, inputs=True, projection=None):
        assert piece.values.dtype == piece.inputs.dtype == np.float64
        assert len(piece.values) == piece.lengths.sum() <= 3
        assert piece.rounding == piece.input_rounding == np.finfo(np.float32).eps
        rows.append(piece.values.copy())  # the next piece overwrites it
        numbers.append(piece.rows)
    np.testing.assert_array_equal(np.concatenate(rows), block.values)
    np.testing.assert_array_equal(np.concatenate(numbers), 100 + np.arange(15))
    assert all(piece.inputs is None for piece in float64_blocks(block, inputs=False, projection=None))


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "inf")])
def test_the_first_number_that_is_not_finite_is_found(bad, word):
    block = block_of([3, 4], dtype=np.float64)
    assert find_not_finite(block) is None
    block.values[5, 1] = block.values[6, 0] = bad
    found = find_not_finite(block)
    assert (found.sequence, found.step, found.unit, found.what) == (11, 2, 1, "states")
    assert f"states of layer 'a' hold {word} at sequence 11, step 2, unit 1" in str(found.error(of=" of layer 'a'"))


def test_what_led_to_a_first_state_counts_only_if_asked_for_or_if_the_sequence_was_cut():
    inputs = np.zeros((7, 1))
    inputs[[0, 3]] = np.nan  # the first rows of both sequences
    assert find_not_finite(block_of([3, 4], inputs=inputs)) is None
    assert find_not_finite(block_of([3, 4], inputs=inputs), first_inputs=True).sequence == 10
    found = find_not_finite(block_of([3, 4], inputs=inputs, steps=[0, 5]))
    assert (found.sequence, found.step, found.what) == (11, 5, "inputs")


def test_numbers_whose_sum_overflows_are_finite():
    block = block_of([2], dtype=np.float64)
    block.values[:] = 1.7e308
    with np.errstate(over="ignore"):
        assert find_not_finite(block) is None
