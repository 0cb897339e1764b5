"""Many units and few directions: two readings of the states, and the first few singular vectors alone."""

import tracemalloc

import dask.array as da
import numpy as np
import pytest

import kann
from kann.fitting import _fit as fitting
from kann.fitting import basis
from kann.fitting.basis import svd_from_gram
from tests.systems import full_operator, low_rank_states, relative


@pytest.fixture
def narrow(monkeypatch):
    """Let 64 units count as many."""
    monkeypatch.setattr(fitting, "TWO_READINGS_FROM", 64)
    monkeypatch.setattr(basis, "FULL_EIGH_BELOW", 32)


@pytest.mark.parametrize("kind", ["svd", "pca"])
@pytest.mark.parametrize("driven", [False, True])
def test_two_readings_give_the_operator_of_one(rng, narrow, monkeypatch, kind, driven):
    values, lengths = low_rank_states(rng, d=64), rng.integers(1, 61, 20)
    inputs = rng.normal(size=(20, 60, 2))
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    ours = kann.fit(states, rank=5, basis=kind, driven=driven)
    lazy = kann.States.from_padded(da.from_array(values, chunks=(7, 11, 9)), lengths, inputs=inputs)
    on_dask = kann.fit(lazy, rank=5, basis=kind, driven=driven)
    monkeypatch.setattr(fitting, "TWO_READINGS_FROM", 1000)
    theirs = kann.fit(states, rank=5, basis=kind, driven=driven)
    for other in (theirs, on_dask):
        # The basis is that of a gap of 1e3 in the singular values, squared.
        assert relative(full_operator(ours), full_operator(other)) < 1e-9
        np.testing.assert_allclose(ours.eigenvalues, other.eigenvalues, atol=1e-9)
        np.testing.assert_allclose(ours.residuals, other.residuals, atol=1e-7)
        np.testing.assert_allclose(ours.explained, other.explained, atol=1e-12)
        np.testing.assert_allclose(ours.mean, other.mean, atol=1e-12)


@pytest.mark.parametrize("kind", ["svd", "pca"])
def test_a_wide_fit_holds_two_large_matrices_at_a_time(rng, kind):
    d = 2048
    states = kann.States.from_padded(1 + rng.normal(size=(4, 600, d)).astype(np.float32))
    matrix = 8 * d * d
    tracemalloc.start()
    kann.fit(states, rank=100, basis=kind)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Blocks of rows and d × r matrices beside them.
    assert 1.5 * matrix < peak < 2.8 * matrix


def test_float64_states_that_a_gram_blurs_are_not_fitted_in_two_readings(rng, narrow, monkeypatch):
    values = low_rank_states(rng, d=64, r=12) - 1
    inner = values @ np.linalg.svd(values.reshape(-1, 64), full_matrices=False)[2][:12].T
    blurred = (inner * np.logspace(0, -7, 12)) @ np.linalg.qr(rng.normal(size=(64, 12)))[0].T
    ours = kann.fit(blurred, rank=11)
    monkeypatch.setattr(fitting, "TWO_READINGS_FROM", 1000)
    theirs = kann.fit(blurred, rank=11)
    np.testing.assert_array_equal(ours.matrix, theirs.matrix)
    assert ours.rank == 11


@pytest.mark.parametrize("largest", [4, 40])
def test_the_largest_singular_vectors_are_those_of_all(rng, largest):
    d = 600
    states = rng.normal(size=(900, d)) * np.linspace(3, 1, d)
    gram, norm = states.T @ states, np.linalg.norm(states)
    few, every = (svd_from_gram(gram, norm=norm, rounding=1e-7, largest=count) for count in (largest, None))
    assert few.vectors.shape == (d, largest)
    np.testing.assert_allclose(few.values, every.values[:largest], rtol=1e-12)
    np.testing.assert_allclose(few.vectors, every.vectors[:, :largest], atol=1e-9)  # gaps are some 1e-3 of the whole
    assert few.energy == pytest.approx(every.energy)
    assert few.resolved == largest


def test_equal_singular_values_are_all_found(rng):
    d = 1024
    squares = np.r_[np.full(20, 5.0), np.linspace(1, 0.1, d - 20)]
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    found = svd_from_gram((rotation * squares) @ rotation.T, norm=np.sqrt(squares.sum()), rounding=1e-7, largest=16)
    np.testing.assert_allclose(found.values**2, 5.0)


def test_lanczos_that_does_not_converge_is_replaced(rng, monkeypatch):
    from scipy.sparse import linalg

    def fail(*_, **__):
        raise linalg.ArpackNoConvergence("no", np.empty(0), np.empty((0, 0)))

    states = rng.normal(size=(700, 600))
    gram, norm = states.T @ states, np.linalg.norm(states)
    expected = svd_from_gram(gram, norm=norm, rounding=1e-7, largest=4)
    monkeypatch.setattr(linalg, "eigsh", fail)
    np.testing.assert_allclose(svd_from_gram(gram, norm=norm, rounding=1e-7, largest=4).values, expected.values)


def along_few(rng, *, d, k=6):
    """Noisy states about a mean that is not zero, with inputs, and balanced coordinates of them."""
    inner, values = np.zeros((20, k)), np.empty((20, 40, k))
    inputs = rng.normal(size=(20, 40, 2))
    for t, push in enumerate(np.moveaxis(inputs @ rng.normal(size=(2, k)), 1, 0)):
        inner = inner * np.linspace(0.95, 0.5, k) + push + 0.3 * rng.normal(size=inner.shape)
        values[:, t] = inner
    states = 3 + values @ rng.normal(size=(k, d)) + 0.2 * rng.normal(size=(20, 40, d))
    balance = kann.Balance.of_snapshots(states.reshape(-1, d), rng.normal(size=(300, d)), rank=k - 1)
    return states, inputs, balance


@pytest.mark.parametrize("basis_kind", ["array", "balance"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rank": 3},
        {"rank": 0.5},
        {"rank": "auto"},
        {"offset": False},
        {"driven": True, "rank": 4},
        {"driven": "bilinear", "rank": 3, "ridge": 1e-6},
    ],
)
def test_coordinates_of_many_units_are_fitted_as_those_of_few(rng, monkeypatch, basis_kind, options):
    values, inputs, balance = along_few(rng, d=80)
    lengths, directions = rng.integers(2, 41, 20), balance if basis_kind == "balance" else rng.normal(size=(80, 6))
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    theirs = kann.fit(states, basis=directions, **options)
    monkeypatch.setattr(fitting, "TWO_READINGS_FROM", 16)
    ours = [kann.fit(states, basis=directions, **options)]
    if options.get("rank") != "auto":
        lazy = kann.States.from_padded(da.from_array(values, chunks=(7, 11, 9)), lengths, inputs=inputs)
        ours.append(kann.fit(lazy, basis=directions, **options))
    for operator in ours:
        assert operator.rank == theirs.rank
        for name in ("matrix", "mean", "decoder", "explained", "drive", "offset"):
            if getattr(theirs, name) is not None:
                np.testing.assert_allclose(getattr(operator, name), getattr(theirs, name), atol=1e-8, err_msg=name)


def test_coordinates_need_no_matrix_of_units_by_units(rng):
    d = 20_000
    values = rng.normal(size=(10, 40, 8)).cumsum(axis=1) @ rng.normal(size=(8, d))
    states = kann.States.from_padded(values.astype(np.float32))
    directions = rng.normal(size=(d, 8))
    tracemalloc.start()
    koopman = kann.fit(states, basis=directions)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300e6  # the rows in float64 take 64 MB, a matrix of units by units would take 3.2 GB
    np.testing.assert_allclose(koopman.decode(koopman.encode(states.values)), states.values, atol=1e-3)


def test_constant_states_of_many_units(rng, monkeypatch):
    monkeypatch.setattr(fitting, "TWO_READINGS_FROM", 16)
    constant = np.broadcast_to(rng.normal(size=40), (4, 30, 40))
    with pytest.raises(kann.KannError, match="every state is the same"):
        kann.fit(constant, basis=rng.normal(size=(40, 3)))
    with pytest.raises(kann.KannError, match="NaN at sequence 1, step 2"):
        kann.fit(np.where(np.arange(120).reshape(4, 30, 1) == 32, np.nan, constant), basis=rng.normal(size=(40, 3)))
    with pytest.raises(kann.KannError, match="no consecutive pairs"):
        kann.fit(rng.normal(size=(4, 1, 40)), basis=rng.normal(size=(40, 3)))
