"""The same bilinear operator wherever states are: cut into blocks, on a device, in Dask's chunks, in a store."""

import dask.array as da
import numpy as np
import pytest
import torch

import kann
from kann.backends import arrays
from kann.data import reduction as blocks
from kann.fitting import gated_sums as bilinear_fit
from kann.fitting import gated_sums as gated_products
from tests.systems import noisy_states

OPTIONS = {"driven": "bilinear", "rank": 3, "features": "squares", "lift": "squares"}


@pytest.fixture
def parts(rng):
    lengths = rng.integers(1, 21, 15)
    lengths[:3] = 1, 20, 2
    return noisy_states(rng, sequences=15, steps=20, d=5), lengths, rng.normal(size=(15, 20, 2))


@pytest.fixture
def expected(parts):
    values, lengths, inputs = parts
    return kann.fit(kann.States.from_padded(values, lengths, inputs=inputs), **OPTIONS)


def assert_same(found, expected):
    for name in ("matrix", "drive", "gates", "offset", "squares", "bounds", "residual_gram", "feature_mean"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-7, atol=1e-9)
    assert found.ridge == expected.ridge


def test_blocks_that_cut_sequences_change_nothing(parts, expected, monkeypatch):
    values, lengths, inputs = parts
    monkeypatch.setattr(blocks, "block_rows", lambda *_: 7)
    monkeypatch.setattr(gated_products, "HOST_PAIRS", 5)
    assert_same(kann.fit(kann.States.from_padded(values, lengths, inputs=inputs), **OPTIONS), expected)


def test_one_fold_held_out_of_many_columns(parts, expected, monkeypatch):
    values, lengths, inputs = parts
    monkeypatch.setattr(bilinear_fit, "ALL_FOLDS_BELOW", 0)
    found = kann.fit(kann.States.from_padded(values, lengths, inputs=inputs), **(OPTIONS | {"ridge": None}))
    again = kann.fit(kann.States.from_padded(values, lengths, inputs=inputs), **(OPTIONS | {"ridge": found.ridge}))
    np.testing.assert_allclose(found.gates, again.gates, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("chunks", [(15, 20, 5), (4, 7, 5), (1, 1, 5)])
def test_dask(parts, expected, chunks):
    values, lengths, inputs = parts
    states = kann.States.from_padded(
        da.from_array(values, chunks=chunks), lengths, inputs=da.from_array(inputs, chunks=(*chunks[:2], 2))
    )
    with np.errstate(all="ignore"):
        assert_same(kann.fit(states, **OPTIONS), expected)


def test_a_store(parts, expected, tmp_path):
    values, lengths, inputs = parts
    kann.States.from_padded(values, lengths, inputs=inputs).save(tmp_path / "states.zarr")
    assert_same(kann.fit(tmp_path / "states.zarr", **OPTIONS), expected)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_torch(parts, expected, monkeypatch, kind):
    values, lengths, inputs = (torch.as_tensor(part) for part in parts)
    if kind == "device":  # the CPU under the pretence that it is no host
        monkeypatch.setattr(arrays, "HOST_DEVICES", ("mps",))
    found = kann.fit(kann.States.from_padded(values, lengths, inputs=inputs), **OPTIONS)
    assert_same(found, expected)
    path = found.simulate(inputs[:4])
    assert isinstance(path, torch.Tensor) == (kind == "device")
    np.testing.assert_allclose(path, expected.simulate(inputs[:4].numpy()), atol=1e-7)
    assert found.matrices(inputs[0]).shape == (20, 3, 3)


@pytest.mark.parametrize("where", ["mask", "function"])
@pytest.mark.parametrize("driven", [False, True, "bilinear"])
def test_chosen_pairs_are_those_of_the_pieces(parts, where, driven):
    values, lengths, inputs = parts
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    mask = states.inputs[:, 0] > -0.5
    chosen = mask
    if where == "function":
        chosen = lambda u: u[:, 0] > -0.5  # noqa: E731
    options = {"rank": 2, "ridge": 1e-3, "driven": driven}
    found = kann.fit(states, where=chosen, **options)
    begins = ~mask
    begins[states.starts] = True
    cut = kann.States(
        values=states.values, lengths=np.diff(np.append(np.flatnonzero(begins), len(mask))), inputs=states.inputs
    )
    other = kann.fit(cut, **options)
    np.testing.assert_allclose(found.matrix, other.matrix, rtol=1e-9)
    assert not np.allclose(found.matrix, kann.fit(states, **options).matrix, rtol=1e-3)


def test_chosen_pairs_on_dask(parts):
    values, lengths, inputs = parts
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    lazy = kann.States(
        values=da.from_array(states.values, chunks=(13, 5)),
        lengths=lengths,
        inputs=da.from_array(states.inputs, chunks=(13, 2)),
    )
    chosen = lambda u: u[:, 0] > -0.5  # noqa: E731
    np.testing.assert_allclose(kann.fit(lazy, where=chosen).matrix, kann.fit(states, where=chosen).matrix, atol=1e-9)
    padded = kann.States.from_padded(da.from_array(values, chunks=(4, 7, 5)), lengths)
    with pytest.raises(kann.KannError, match="cannot choose pairs of a store or of padded states that Dask reads"):
        kann.fit(padded, where=np.ones(len(states.values), dtype=bool))


def test_pieces_of_a_sequence_are_held_out_together(rng):
    """A ridge cannot be chosen from three pieces of two sequences."""
    states = kann.States.from_padded(rng.normal(size=(2, 20, 2)), inputs=rng.normal(size=(2, 20, 1)))
    mask = np.ones(40, dtype=bool)
    mask[10] = False
    with pytest.raises(kann.KannError, match="2 of two states or more are too few"):
        kann.fit(states, driven="bilinear", where=mask)
