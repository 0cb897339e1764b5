"""What workers of Dask find must be what the states said when they were opened."""

import dask.array as da
import numpy as np
import pytest

import kann
from kann.errors import KannError

SMALLER = r"chunk.*(it has shape .*, and|is smaller than) the dask array says.*; correct its chunks"


def _lazy(values, chunks, keep):
    """A dask array whose chunks are cut by ``keep`` behind its back."""
    array = da.from_array(values, chunks=chunks)
    return array.map_blocks(lambda block: block[keep], dtype=values.dtype, chunks=array.chunks)


@pytest.mark.parametrize("keep", [np.s_[:-1], np.s_[:, :-1], np.s_[:, :, :-1], np.s_[:, :1, None, 0]])
def test_a_chunk_that_is_smaller_than_declared_is_refused(rng, keep):
    values = rng.normal(size=(6, 20, 4))
    for chunks in ((6, 20, 4), (2, 7, 4)):
        with pytest.raises(KannError, match=SMALLER):
            kann.fit(_lazy(values, chunks, keep))
    with pytest.raises(KannError, match=SMALLER):
        kann.fit(_lazy(values.reshape(-1, 4), (40, 4), np.s_[:-1]), lengths=np.full(6, 20))
    lazy = da.from_array(values, chunks=(2, 7, 4))
    states = kann.States.from_padded(lazy, inputs=_lazy(values, (2, 7, 4), np.s_[:-1]))
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
