"""The pseudospectrum is what its definition says, point by point."""

import numpy as np
import pytest

import kann
from tests.systems import AS_IN_PAPER, noisy_states


def pairs(states, koopman, inputs=None):
    """Coordinates of states and next states, about their means, less what the inputs added."""
    x, y = (koopman.encode(part.reshape(-1, states.shape[-1])) for part in (states[:, :-1], states[:, 1:]))
    if inputs is not None:
        y = y - inputs[:, 1:].reshape(-1, inputs.shape[-1]) @ koopman.drive
    if koopman.offset is not None:
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return x, y


def smallest(x, y, zeta):
    """The definition: min |Y v − ζ X v| / |X v|, from a QR of the rows themselves."""
    r = np.linalg.qr(x, mode="r")
    return np.linalg.svd((y - zeta * x) @ np.linalg.inv(r), compute_uv=False)[-1]


@pytest.mark.parametrize("options", [{}, AS_IN_PAPER, {"rank": 3}], ids=["centred", "paper", "rank 3"])
def test_it_is_the_smallest_residual_over_all_vectors(rng, options):
    states = noisy_states(rng, d=5) + 2.0
    koopman = kann.fit(states, **options)
    grid = rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))
    found = kann.pseudospectrum(koopman, states, grid=grid)
    x, y = pairs(states, koopman)
    expected = [[smallest(x, y, zeta) for zeta in row] for row in grid]
    # Squares of residuals are computed, which leaves half of float64's digits.
    np.testing.assert_allclose(found.residual, expected, rtol=1e-7)
    np.testing.assert_array_equal(found.grid, grid)


def test_what_inputs_added_is_taken_off(rng):
    inputs = rng.normal(size=(15, 30, 2))
    states = noisy_states(rng, sequences=15, steps=30, d=4)
    states[:, 1:] += inputs[:, 1:] @ rng.normal(size=(2, 4))
    recorded = kann.States.from_padded(states, inputs=inputs)
    koopman = kann.fit(recorded, driven=True)
    x, y = pairs(states, koopman, inputs)
    found = kann.pseudospectrum(koopman, recorded, grid=np.array([0.3, 0.9j]))
    np.testing.assert_allclose(found.residual, [smallest(x, y, zeta) for zeta in (0.3, 0.9j)], rtol=1e-7)


def test_no_eigenpair_has_a_smaller_residual_than_its_point(rng):
    states = noisy_states(rng)
    koopman = kann.fit(states)
    at_eigenvalues = kann.pseudospectrum(koopman, states, grid=koopman.eigenvalues).residual
    assert (at_eigenvalues <= koopman.residuals * (1 + 1e-7)).all()


def test_of_a_normal_system_with_even_noise_the_eigenvalues_residual_is_the_best(rng):
    # A scaled rotation in noise that is alike in all directions: no other vector does better than the eigenvectors.
    turn = 0.9 * np.array([[np.cos(0.5), np.sin(0.5)], [-np.sin(0.5), np.cos(0.5)]])
    path = [rng.normal(size=(2000, 2))]
    for _ in range(20):
        path.append(path[-1] @ turn + rng.normal(size=(2000, 2)))
    states = np.stack(path, axis=1)
    koopman = kann.fit(states)
    found = kann.pseudospectrum(koopman, states, grid=koopman.eigenvalues).residual
    np.testing.assert_allclose(found, koopman.residuals, rtol=0.01)  # noise of 40,000 pairs is even to about 0.5 %


def test_it_is_symmetric_and_1_lipschitz(rng):
    states = noisy_states(rng, d=6)
    found = kann.pseudospectrum(kann.fit(states), states)
    np.testing.assert_allclose(found.residual, found.residual[::-1], rtol=1e-12)
    apart = np.abs(np.diff(found.grid, axis=1))
    assert (np.abs(np.diff(found.residual, axis=1)) <= apart * (1 + 1e-7)).all()
    assert np.abs(found.grid).min() == 0
    assert np.abs(found.grid).max() > 1.1 * np.sqrt(2)


def test_an_exact_system_has_its_eigenvalues_where_the_residual_is_zero(rng):
    matrix = np.diag([0.9, 0.5, -0.3])
    start = rng.normal(size=(6, 3))
    states = np.stack([start @ np.linalg.matrix_power(matrix, t) for t in range(12)], axis=1)
    koopman = kann.fit(states, **AS_IN_PAPER)
    found = kann.pseudospectrum(koopman, states, grid=np.array([0.9, 0.5, -0.3, 0.7]))
    assert (found.residual[:3] < 1e-6).all()
    assert found.residual[3] > 1e-3


def test_moments_say_the_same(rng):
    states = noisy_states(rng)
    koopman = kann.fit(states)
    grid = np.array([0.1, 0.5 + 0.5j, 0.99])
    whole = kann.pseudospectrum(koopman, states, grid=grid).residual
    groups = [kann.Moments.of(states[:5]), kann.Moments.of(states[5:])]
    for data in (kann.Moments.of(states), groups):
        np.testing.assert_allclose(kann.pseudospectrum(koopman, data, grid=grid).residual, whole, rtol=1e-7)


@pytest.mark.parametrize(
    ("data", "grid", "message"),
    [
        (np.zeros((3, 4, 7)), None, "states have 7 columns"),
        (kann.Moments.of(np.ones((2, 5, 7))), None, "do not belong to an operator"),
        (np.ones((3, 1, 10)), None, "no sequence has two states"),
        (np.ones((3, 4, 10)), np.array([np.nan]), "no complex number of modulus up to"),
        (np.ones((3, 4, 10)), np.array(["a"]), "no complex number of modulus up to"),
    ],
)
def test_wrong_arguments(rng, data, grid, message):
    koopman = kann.fit(noisy_states(rng))
    with pytest.raises(kann.KannError, match=message):
        kann.pseudospectrum(koopman, data, grid=grid)
