import json

import numpy as np
import pytest
import torch

import kann
from kann.errors import KannError
from kann.fitting.basis import FIXED_BASES
from tests.systems import (
    AS_IN_PAPER,
    eigenvalue_distance,
    full_operator,
    noisy_states,
    relative,
    rotation,
    run,
    stable_matrix,
)


def test_a_known_non_normal_operator_with_complex_eigenvalues_is_recovered(rng):
    A = stable_matrix(rng, 7)
    koopman = kann.fit(run(A, rng.normal(size=(20, 7)), 50))
    np.testing.assert_allclose(full_operator(koopman), A, rtol=1e-8, atol=1e-8)
    assert eigenvalue_distance(koopman.eigenvalues, np.linalg.eigvals(A)) < 1e-8


def test_rows_are_states(rng):
    """The convention z[t+1] = z[t] C, guarded by a matrix that is far from its transpose."""
    A = np.array([[0.5, 0.9], [0.0, 0.3]])
    koopman = kann.fit(run(A, rng.normal(size=(5, 2)), 10))
    h = rng.normal(size=2)
    np.testing.assert_allclose(koopman.predict(h), h @ A, atol=1e-9)
    np.testing.assert_allclose(koopman.matrix @ koopman.right, koopman.right * koopman.eigenvalues, atol=1e-12)


def test_an_orthogonal_change_of_units_does_not_change_the_spectrum(rng):
    values = noisy_states(rng)
    turned = values @ rotation(rng, 10)
    for basis in ("svd", "pca"):
        np.testing.assert_allclose(
            kann.fit(values, basis=basis).eigenvalues, kann.fit(turned, basis=basis).eigenvalues, atol=1e-10
        )


def test_padding_is_fitted_only_on_request(rng):
    values, lengths = noisy_states(rng), rng.integers(2, 40, 12)
    values[np.arange(40) >= lengths[:, None]] = 0
    assert relative(kann.fit(values).matrix, kann.fit(values, lengths=lengths).matrix) > 1e-3


def test_states_moments_lists_arrays_and_tensors_give_one_operator(rng):
    values = noisy_states(rng)
    reference = full_operator(kann.fit(values))
    states = kann.States.from_padded(values)
    for data in (states, kann.Moments.of(states), list(values), torch.tensor(values)):
        np.testing.assert_allclose(full_operator(kann.fit(data)), reference, atol=1e-11)


def test_rank_counts_directions_or_explains_a_fraction_of_the_variance(rng):
    values = noisy_states(rng) * np.logspace(0, -2, 10)
    every = kann.fit(values)
    assert every.rank == 10
    assert kann.fit(values, rank=3).rank == 3
    np.testing.assert_allclose(every.explained.sum(), 1)
    most = kann.fit(values, rank=0.95)
    assert most.explained.sum() >= 0.95
    assert most.explained[:-1].sum() < 0.95
    assert kann.fit(values, rank=1.0).rank == 10


def test_pca_is_svd_about_the_mean(rng):
    values = noisy_states(rng) + 5 * rng.normal(size=10)
    mean = values.reshape(-1, 10).mean(0)
    pca, svd = kann.fit(values, basis="pca", rank=4), kann.fit(values - mean, basis="svd", rank=4)
    np.testing.assert_array_equal(svd.mean, 0.0)
    np.testing.assert_allclose(pca.mean, mean)
    np.testing.assert_allclose(full_operator(pca), full_operator(svd), atol=1e-9)
    h = values[0, 3]
    np.testing.assert_allclose(pca.predict(h), svd.predict(h - mean) + mean, atol=1e-9)
    np.testing.assert_allclose(pca.decode(pca.encode(mean)), mean)


def test_a_basis_that_looks_at_no_data_needs_its_name_and_its_columns_alone(rng, monkeypatch):
    monkeypatch.setitem(FIXED_BASES, "units", np.eye)
    values = noisy_states(rng)
    koopman = kann.fit(values, basis="units", rank=4)
    np.testing.assert_array_equal(koopman.basis, np.eye(10)[:, :4])
    np.testing.assert_allclose(koopman.explained, np.sum(values**2, axis=(0, 1))[:4] / np.sum(values**2))


def test_the_fourier_basis_is_orthonormal_and_looks_at_no_data(rng):
    for d in (1, 2, 5, 8):
        values = noisy_states(rng, d=8)[..., :d]
        basis = kann.fit(values, basis="fourier").basis
        np.testing.assert_allclose(basis.T @ basis, np.eye(d), atol=1e-14)
        np.testing.assert_array_equal(basis, kann.fit(values**3, basis="fourier").basis)
        np.testing.assert_allclose(basis[:, 0], np.full(d, d**-0.5))


def test_at_full_rank_the_basis_does_not_matter(rng):
    values = noisy_states(rng)
    own = rotation(rng, 10)
    reference = full_operator(kann.fit(values))
    for basis in ("fourier", own, torch.tensor(own, dtype=torch.float64)):
        koopman = kann.fit(values, basis=basis)
        np.testing.assert_allclose(full_operator(koopman), reference, atol=1e-10)
        np.testing.assert_allclose(koopman.explained.sum(), 1)


def test_ridge_is_ridge_regression(rng):
    values = noisy_states(rng)
    koopman = kann.fit(values, ridge=3.0, **AS_IN_PAPER)
    x, y = (part @ koopman.basis for part in kann.States.from_padded(values).pairs())
    expected = np.linalg.solve(x.T @ x + 3.0 * np.eye(10), x.T @ y)
    np.testing.assert_allclose(koopman.matrix, expected, atol=1e-11)


def test_rank_deficient_states_keep_what_the_data_resolve(rng):
    mixed = noisy_states(rng, d=4) @ rng.normal(size=(4, 9))
    for values in (mixed, mixed.astype(np.float32)):
        assert kann.fit(values).rank == 4
        with pytest.warns(kann.errors.RankWarning, match="rank=8 was asked for; the states resolve 4 directions"):
            assert kann.fit(values, rank=8).rank == 4
    # A basis that ignores the data has directions without data; predictions do not suffer.
    states = kann.States.from_padded(mixed)
    errors = [kann.relative_error(kann.fit(states, basis=basis), states) for basis in ("svd", "fourier")]
    np.testing.assert_allclose(*errors, rtol=1e-8)


def test_float64_directions_that_the_gram_cannot_resolve_are_fitted_all_the_same(rng):
    """Singular values down to 1e-10 of the largest: their squares are lost in XᵀX, so the states are read again."""
    scale = np.logspace(0, -10, 8)
    A = stable_matrix(rng, 8)
    values = run(A, rng.normal(size=(30, 8)), 12, push=0.5 * rng.normal(size=(30, 12, 8))) * scale
    states = kann.States.from_padded(values)
    with pytest.warns(kann.errors.ConditionWarning):  # eigenvectors whose components span ten orders of magnitude
        koopman = kann.fit(values, **AS_IN_PAPER)
    assert koopman.rank == 8
    x, y = states.pairs()
    expected = np.linalg.lstsq(x / scale, y / scale, rcond=None)[0]
    # In units in which all directions have the same size; what is left is the rounding of the smallest, 1e-16/1e-10.
    np.testing.assert_allclose((full_operator(koopman) * scale[:, None]) / scale, expected, atol=1e-4)
    np.testing.assert_allclose(koopman.eigenvalues, kann.fit(values / scale, **AS_IN_PAPER).eigenvalues, atol=1e-4)
    # A product of two units is rounded relative to these two alone, so that moments have the small units too,
    with pytest.warns(kann.errors.ConditionWarning):
        found = kann.fit(kann.Moments.of(states), **AS_IN_PAPER).eigenvalues
    np.testing.assert_allclose(found, koopman.eigenvalues, atol=1e-4)
    # but not small directions across units, and say so.
    turned = kann.States.from_padded(values @ rotation(rng, 8))
    with (
        pytest.warns(kann.errors.PrecisionWarning, match="digits of the operator"),
        pytest.warns(kann.errors.PrecisionWarning, match="of 8 directions of the states"),
    ):
        assert kann.fit(kann.Moments.of(turned)).rank < 8


def test_prediction_is_repeated_multiplication(rng):
    koopman = kann.fit(noisy_states(rng), rank=6, offset=False)
    h = rng.normal(size=(3, 2, 10))
    path = koopman.rollout(h, 4)
    assert path.shape == (3, 2, 4, 10)
    np.testing.assert_allclose(path[..., -1, :], koopman.predict(h, steps=4))
    expected = koopman.decode(koopman.encode(h) @ np.linalg.matrix_power(koopman.matrix, 4))
    np.testing.assert_allclose(koopman.predict(h, steps=4), expected, atol=1e-12)
    np.testing.assert_allclose(koopman.encode(koopman.decode(koopman.encode(h))), koopman.encode(h), atol=1e-12)
    np.testing.assert_allclose(koopman.predict(torch.tensor(h)), koopman.predict(h))


def test_an_operator_survives_a_file(tmp_path, rng):
    states = kann.States.from_padded(noisy_states(rng), inputs=rng.normal(size=(12, 40, 3)))
    for driven in (False, True):
        koopman = kann.fit(states, basis="pca", rank=5, driven=driven)
        koopman.save(tmp_path / "operator")
        loaded = kann.Koopman.load(tmp_path / "operator")
        for name in ("matrix", "basis", "mean", "explained", "eigenvalues", "right", "left", "residuals"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(koopman, name))
        assert loaded.condition == koopman.condition
        assert (loaded.drive is not None) == driven
        assert repr(loaded) == repr(koopman)


def test_files_that_are_no_operator_are_refused(tmp_path, rng):
    path = tmp_path / "operator.npz"
    kann.fit(noisy_states(rng)).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KannError, match="is not a whole kann file"):
        kann.Koopman.load(path)
    np.savez(path, something=np.ones(3))
    with pytest.raises(KannError, match="is not a whole kann file"):
        kann.Koopman.load(path)
    np.savez(path, header=np.frombuffer(json.dumps({"kind": "kann.Koopman", "version": 7}).encode(), dtype=np.uint8))
    with pytest.raises(KannError, match="format 7; this release reads up to 2; upgrade kann"):
        kann.Koopman.load(path)
    np.save(path.with_suffix(".npy"), np.ones(3))
    with pytest.raises(KannError, match="is not a whole kann file"):
        kann.Koopman.load(path.with_suffix(".npy"))
    with pytest.raises(FileNotFoundError):
        kann.Koopman.load(tmp_path / "absent.npz")


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 80}, "rank=80 exceeds the 10 hidden units recorded; pass rank<=10 or rank=None"),
        ({"rank": 0}, "rank=0 keeps nothing"),
        ({"rank": 1.5}, "rank=1.5 is no fraction"),
        ({"ridge": "1"}, "ridge='1' is not a finite number; pass ridge>=0"),
        ({"ridge": np.inf}, "ridge=inf is not a finite number"),
        ({"basis": "wavelet"}, "basis='wavelet' is unknown; pass one of svd, pca, fourier"),
        ({"basis": np.ones((10, 2))}, r"depend on each other .*numpy.linalg.qr"),
        ({"basis": np.ones((9, 2))}, r"shape \(10, r\)"),
        ({"basis": np.eye(10, dtype=int)}, "basis vectors are int64"),
        ({"ridge": -1}, "ridge=-1 would reward"),
        ({"driven": True}, "driven=True needs the inputs"),
        ({"lengths": [3]}, "pass 12 lengths"),
    ],
)
def test_impossible_fits_are_refused_with_a_remedy(rng, arguments, message):
    with pytest.raises(KannError, match=message):
        kann.fit(noisy_states(rng), **arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ones((5, 3)), r"axes \(sequence, time, unit\); got shape \(5, 3\); pass states\[None\]"),
        (np.ones((5, 1, 3)), "no consecutive pairs: 5 sequences with 5 states"),
        (np.zeros((5, 4, 3)), "nothing evolves"),
        (np.ones((5, 4, 3), dtype=complex), "complex"),
        (np.ones((0, 4, 3)), "empty"),
        (np.ones((5, 4, 3), dtype=np.int32), "int32"),
        (kann.Moments(), "no consecutive pairs"),
    ],
)
def test_data_without_dynamics_are_refused(data, message):
    with pytest.raises(KannError, match=message):
        kann.fit(data)


@pytest.mark.usefixtures("untyped")
def test_wrong_use_of_an_operator_is_refused(rng):
    states = kann.States.from_padded(noisy_states(rng), inputs=rng.normal(size=(12, 40, 3)))
    autonomous, driven = kann.fit(states, rank=4), kann.fit(states, driven=True)
    h = rng.normal(size=10)
    for call, message in [
        (lambda: autonomous.encode(h[:9]), r"states have 9 columns; the operator has 10; pass an array of shape"),
        (lambda: autonomous.encode(np.arange(10)), "states are int64"),
        (lambda: autonomous.decode(h), "coordinates have 10 columns"),
        (lambda: autonomous.predict(h, steps=0), "steps=0 predicts nothing"),
        (lambda: autonomous.predict(h, steps=1.5), "steps=1.5 is not a whole number; pass steps>=1"),
        (lambda: autonomous.predict(h, steps=10**15), "steps=1000000000000000 from states .* fit in no memory"),
        (lambda: autonomous.predict(h, steps=10**9), "steps=1000000000 would take hours; pass steps<=100000000"),
        (lambda: autonomous.predict(h + 0j), "states are complex128; pass real numbers"),
        (lambda: autonomous.decode(autonomous.encode(h) + 0j), "coordinates are complex128"),
        (lambda: autonomous.encode(np.ma.masked_array(h, h > 0)), "a masked array was passed"),
        (lambda: autonomous.modes[0].horizon("a"), "eps='a' is not a finite number; pass 0 < eps < 1"),
        (lambda: autonomous.predict(h, inputs=np.ones(3)), "autonomous and reads no inputs"),
        (lambda: autonomous.simulate(np.ones((5, 3))), "autonomous and reads no inputs"),
        (lambda: driven.predict(h), "pass inputs="),
        (lambda: driven.predict(h, inputs=np.ones(2)), "inputs have 2 columns"),
        (lambda: driven.rollout(h, 3, inputs=np.ones((2, 3))), "do not cover 3 steps"),
        (lambda: kann.fit(states, lengths=[1]), "lengths are for arrays"),
    ]:
        with pytest.raises(KannError, match=message):
            call()


@pytest.mark.parametrize("mean", [1e3, 1e6])
def test_pca_is_exact_about_a_mean_that_dwarfs_the_states(rng, mean):
    values = noisy_states(rng)
    # What is left of the states beside such a mean is rounded to mean·1e-16.
    np.testing.assert_allclose(
        kann.fit(values + mean, basis="pca").eigenvalues,
        kann.fit(values, basis="pca").eigenvalues,
        atol=1e-13 * mean,
    )


def test_rounding_noise_about_a_large_mean_is_no_direction(rng):
    line = (1000 + rng.normal(size=(20, 30, 1)) * np.array([1.0, 0.5, 0.2])).astype(np.float32)
    assert kann.fit(line, basis="pca").rank == 1


def test_lists_know_their_lengths(rng):
    with pytest.raises(KannError, match="lists of sequences know theirs"):
        kann.fit(list(noisy_states(rng)), lengths=[5] * 12)


def test_a_rank_must_be_a_number_that_the_basis_has(rng):
    values = noisy_states(rng)
    for rank in (True, "3"):
        with pytest.raises(KannError, match="is no number"):
            kann.fit(values, rank=rank)
    with pytest.raises(KannError, match="rank=3 exceeds the 2 columns of the basis"):
        kann.fit(values, basis=np.eye(10)[:, :2], rank=3)
    assert kann.fit(values, rank=np.int64(3)).rank == 3
