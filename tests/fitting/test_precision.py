"""What rounding does to a fit: states are read again where that helps, and a warning is given where it does not."""

import dask.array as da
import numpy as np
import pytest
import torch

import kann
from kann.fitting import _fit as fitting
from tests.systems import AS_IN_PAPER, eigenvalue_distance, full_operator, low_rank_states, noisy_states, rotation, run

A = np.diag([0.95, 0.6, 0.3])
D = np.array([[1.0, 0.0, 0.5]])


@pytest.fixture
def driven(rng):
    """States and inputs of a system that inputs drive."""
    u = rng.normal(size=(20, 50, 1))
    return run(A, rng.normal(size=(20, 3)), 50, push=u @ D), u


@pytest.mark.parametrize("mean", [1e6, 1e7, 1e8])
@pytest.mark.parametrize("basis", ["svd", "pca", "fourier"])
def test_a_large_mean_of_the_inputs_does_not_hide_what_they_do(driven, mean, basis):
    values, inputs = driven
    koopman = kann.fit(kann.States.from_padded(values, inputs=inputs + mean), basis=basis, driven=True)
    # The inputs themselves are rounded to mean·1e-16.
    np.testing.assert_allclose(koopman.drive @ koopman.basis.T, D, atol=1e-15 * mean)
    np.testing.assert_allclose(full_operator(koopman), A, atol=1e-15 * mean)
    path = koopman.rollout(values[:, 0], 49, inputs=inputs[:, 1:] + mean)
    np.testing.assert_allclose(path, values[:, 1:], atol=1e-13 * mean)


@pytest.mark.parametrize("mean", [1e6, 1e8])
@pytest.mark.parametrize("basis", ["svd", "pca", "fourier"])
def test_a_large_mean_of_the_states_does_not_hide_a_driven_system(driven, mean, basis):
    values, inputs = driven
    koopman = kann.fit(kann.States.from_padded(values + mean, inputs=inputs), basis=basis, driven=True)
    np.testing.assert_allclose(koopman.eigenvalues, [0.95, 0.6, 0.3], atol=1e-15 * mean)
    np.testing.assert_allclose(koopman.drive @ koopman.basis.T, D, atol=1e-15 * mean)
    assert koopman.residuals.max() < 1e-6  # the square root of rounding, as they come from squares
    np.testing.assert_allclose(
        koopman.predict(values[0, 0] + mean, inputs=inputs[0, 1]) - mean, values[0, 1], atol=1e-6
    )


def test_means_are_taken_off_wherever_the_states_are(driven, rng):
    values, inputs = driven[0] + 1e7, driven[1] + 1e7
    chunks = kann.States.from_padded(da.from_array(values, chunks=(7, 13, 3)), inputs=da.from_array(inputs))
    tensors = kann.States.from_padded(torch.tensor(values), inputs=torch.tensor(inputs))
    ragged = kann.States.from_padded(values, rng.integers(20, 50, 20), inputs=inputs)
    for states in (chunks, tensors, ragged):
        koopman = kann.fit(states, driven=True)
        np.testing.assert_allclose(koopman.eigenvalues, [0.95, 0.6, 0.3], atol=1e-7)
        np.testing.assert_allclose(koopman.drive @ koopman.basis.T, D, atol=1e-7)


def test_a_wide_driven_fit_takes_means_off_too(rng, monkeypatch):
    monkeypatch.setattr(fitting, "TWO_READINGS_FROM", 64)
    values, inputs = low_rank_states(rng, d=64), rng.normal(size=(20, 60, 2))
    plain = kann.fit(kann.States.from_padded(values, inputs=inputs), rank=5, basis="pca", driven=True)
    moved = kann.fit(kann.States.from_padded(values, inputs=inputs + 1e7), rank=5, basis="pca", driven=True)
    np.testing.assert_allclose(moved.eigenvalues, plain.eigenvalues, atol=1e-7)
    np.testing.assert_allclose(moved.drive @ moved.basis.T, plain.drive @ plain.basis.T, atol=1e-7)


def test_moments_about_a_large_mean_say_how_many_digits_are_left(driven, rng):
    values, inputs = driven
    by_inputs = kann.Moments.of(kann.States.from_padded(values, inputs=inputs + 1e6))
    with pytest.warns(
        kann.errors.PrecisionWarning, match=r"about 3 digits of the operator .* take a constant near the mean"
    ):
        kann.fit(by_inputs, driven=True)
    kann.fit(by_inputs)  # which does not look at the inputs
    by_states = kann.Moments.of(kann.States.from_padded(values + 1e6, inputs=inputs))
    with pytest.warns(kann.errors.PrecisionWarning, match="digits of the operator"):
        kann.fit(by_states, driven=True)
    with pytest.warns(kann.errors.PrecisionWarning, match="digits of the operator"):
        kann.fit(kann.Moments.of(kann.States.from_padded(noisy_states(rng) + 1e6)), basis="pca")
    with pytest.raises(kann.KannError, match=r"every state is the same up to rounding, .* take a constant"):
        kann.fit(kann.Moments.of(kann.States.from_padded(noisy_states(rng) + 1e8)), basis="pca")


@pytest.mark.parametrize("basis", ["svd", "pca"])
def test_small_units_of_float32_states_are_no_noise(basis):
    for seed in range(8):
        values = noisy_states(np.random.default_rng(seed), d=4)
        small = (values * np.logspace(-3, 3, 4)).astype(np.float32)
        koopman = kann.fit(small, basis=basis)
        # Each unit is rounded to 6e-8 of itself.
        assert eigenvalue_distance(koopman.eigenvalues, kann.fit(values, basis=basis).eigenvalues) < 1e-5


def test_a_small_ridge_does_not_keep_states_from_being_read_again(rng):
    values = noisy_states(rng, d=4)
    turned = (values * np.logspace(-4, 4, 4)) @ rotation(rng, 4)
    for ridge in (0.0, 1e-30):
        # 1e-16 of the largest direction is 1e-8 of the smallest.
        found = kann.fit(turned, ridge=ridge).eigenvalues
        np.testing.assert_allclose(found, kann.fit(values).eigenvalues, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("basis", ["fourier", "own"])
def test_directions_that_no_state_has_have_an_infinite_residual(dtype, basis):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        values = (noisy_states(rng, d=3) @ rng.normal(size=(3, 6))).astype(dtype)
        chosen = basis
        if basis == "own":
            chosen = rotation(rng, 6)
        for offset in (False, True):
            found = kann.fit(values, basis=chosen, offset=offset)
            assert np.isinf(found.residuals).sum() == 3
            expected = kann.fit(values, basis="svd", offset=offset).residuals
            np.testing.assert_allclose(found.residuals[:3], expected, rtol=1e-3)


def test_a_basis_that_hides_small_units_says_so(rng):
    values = noisy_states(rng, d=4) * np.logspace(-4, 4, 4)
    with (
        pytest.warns(kann.errors.PrecisionWarning, match="too small to be seen .* in this basis"),
        pytest.warns(kann.errors.PrecisionWarning, match="digits of the operator .* scale the columns alike"),
    ):
        kann.fit(values, basis="fourier")


def test_states_that_hardly_vary_say_so(rng):
    values = (1 + 1e-6 * noisy_states(rng, d=3)).astype(np.float32)
    with pytest.warns(kann.errors.PrecisionWarning, match="two digits or fewer of their variation"):
        kann.fit(values, **AS_IN_PAPER)
    with pytest.raises(kann.KannError, match="take a constant near their mean off first"):
        kann.fit(values)
    with pytest.warns(kann.errors.PrecisionWarning, match="two digits or fewer of their variation"):
        kann.fit((1 + 2e-6 * noisy_states(rng, d=3)).astype(np.float32))


def test_constants_give_no_warning(rng):
    values, inputs = rng.normal(size=(20, 50, 4)), rng.normal(size=(20, 50, 3))
    values[..., 3], inputs[..., 2] = 1e5 / 3, 1e5 / 7
    for dtype in (np.float32, np.float64):
        states = kann.States.from_padded(values.astype(dtype), inputs=inputs.astype(dtype))
        assert np.abs(kann.fit(states, driven=True).drive[2]).max() < 1e-6
    # Sequences that start at one point have an x that never changes.
    start = np.concatenate([np.zeros((20, 1, 4)), values[:, :1]], axis=1)
    koopman = kann.fit(kann.States.from_padded(start, inputs=inputs[:, :2]), driven=True)
    np.testing.assert_allclose(koopman.matrix, 0, atol=1e-12)
