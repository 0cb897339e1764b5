"""The one reduction: the same sum of blocks and of cuts, wherever the rows are."""

from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kann
from kann.data import reduction as blocks
from kann.data.reduction import SumOverBlocks, accumulate, map_rows, take_rows
from kann.errors import KannError
from tests.data.test_moments import ragged_states


def sum_of_rows(block):
    return block.values.sum(0)


def products_inside(block):
    """Σ x·y over the pairs of a block, one sequence at a time."""
    spans = zip(block.offsets, block.offsets + block.lengths, strict=True)
    return sum((block.values[a : b - 1] * block.values[a + 1 : b]).sum() for a, b in spans)


def products_across(cut):
    return (cut.before * cut.after).sum()


def forms(states):
    """The same states in memory, in torch, padded, and in chunks on Dask."""
    padded, lengths = states.padded(), states.lengths
    yield states
    yield kann.States(values=torch.tensor(states.values), lengths=lengths)
    yield kann.States(values=da.from_array(states.values, chunks=(4, 2)), lengths=lengths)
    yield kann.States.from_padded(da.from_array(padded, chunks=(3, 2, 2)), lengths)


@given(ragged_states(), st.integers(1, 9))
@settings(max_examples=30)
def test_sums_over_rows_and_over_pairs_do_not_depend_on_where_rows_are(states, rows):
    x, y = states.pairs()
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(blocks, "block_rows", lambda values, width: rows)
        for form in forms(states):
            total = accumulate(form, partial(SumOverBlocks, sum_of_rows))
            np.testing.assert_allclose(np.asarray(total), states.values.sum(0), atol=1e-12)
            pairs = accumulate(form, partial(SumOverBlocks, products_inside, products_across))
            np.testing.assert_allclose(float(pairs), (x * y).sum(), atol=1e-12)


def test_an_error_inside_an_accumulator_stays_what_it_is_on_dask(rng):
    def broken(block):
        raise TypeError("a bug")

    lazy = kann.States.from_padded(da.from_array(rng.normal(size=(4, 6, 2)), chunks=(2, 3, 2)))
    with pytest.raises(TypeError, match="a bug"):
        accumulate(lazy, partial(SumOverBlocks, broken))


def test_rows_are_mapped_where_they_are(rng, tmp_path):
    states = kann.States.from_padded(rng.normal(size=(4, 6, 3)), [6, 1, 4, 2])
    states.save(tmp_path / "states.zarr")
    expected = states.values[:, :2] ** 2
    stored = kann.States.open(tmp_path / "states.zarr").values
    lazy = da.from_array(states.values, chunks=(4, 2))
    for values in (states.values, stored, lazy):
        mapped = map_rows(values, lambda rows: rows[:, :2] ** 2, width=2, dtype=np.float64)
        assert isinstance(mapped, da.Array) == (values is lazy)
        np.testing.assert_allclose(np.asarray(mapped), expected)


def test_single_rows_are_taken_from_anywhere_in_one_go(rng, tmp_path):
    padded, lengths = rng.normal(size=(4, 6, 3)), np.array([6, 1, 4, 2])
    states = kann.States.from_padded(padded, lengths)
    states.save(tmp_path / "states.zarr")
    places = np.array([0, 5, 6, 7, 12])
    computed = []
    lazy = da.from_array(padded, chunks=(2, 3, 3)).map_blocks(lambda block: computed.append(1) or block, dtype=float)
    before = len(computed)
    for values in (
        states.values,
        torch.tensor(states.values),
        kann.States.open(tmp_path / "states.zarr").values,
        da.from_array(states.values, chunks=(4, 3)),
        kann.States.from_padded(lazy, lengths).values,
    ):
        np.testing.assert_array_equal(take_rows(values, places), states.values[places])
    assert len(computed) - before <= 5  # the four chunks that hold these rows, once each, and one look by dask


SMALLER = r"chunk.*(it has shape .*, and|is smaller than) the dask array says.*; correct its chunks"


def cut_chunks(values, chunks, keep):
    """A dask array whose chunks are cut by ``keep`` behind its back."""
    array = da.from_array(values, chunks=chunks)
    return array.map_blocks(lambda block: block[keep], dtype=values.dtype, chunks=array.chunks)


@pytest.mark.parametrize("keep", [np.s_[:-1], np.s_[:, :-1], np.s_[:, :, :-1], np.s_[:, :1, None, 0]])
def test_a_chunk_that_is_smaller_than_declared_is_refused(rng, keep):
    values = rng.normal(size=(6, 20, 4))
    for chunks in ((6, 20, 4), (2, 7, 4)):
        with pytest.raises(KannError, match=SMALLER):
            kann.fit(cut_chunks(values, chunks, keep))
    with pytest.raises(KannError, match=SMALLER):
        kann.fit(cut_chunks(values.reshape(-1, 4), (40, 4), np.s_[:-1]), lengths=np.full(6, 20))
    lazy = da.from_array(values, chunks=(2, 7, 4))
    states = kann.States.from_padded(lazy, inputs=cut_chunks(values, (2, 7, 4), np.s_[:-1]))
    with pytest.raises(KannError, match=SMALLER):
        kann.fit(states, driven=True)


def test_a_store_that_was_replaced_is_not_read_by_workers(rng, tmp_path):
    """Of the same lengths: only the identity of the store tells them apart."""
    states = kann.States.from_padded(rng.normal(size=(6, 20, 4)))
    states.save(tmp_path / "s.zarr")
    opened = kann.States.open(f"file://{tmp_path}/s.zarr")
    kann.fit(opened)
    kann.States.from_padded(rng.normal(size=(6, 20, 4))).save(tmp_path / "s.zarr")
    with pytest.raises(KannError, match="a worker finds other states there"):
        kann.fit(opened)
