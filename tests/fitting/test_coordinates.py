"""Operators on coordinates that are not orthonormal: balanced coordinates and arrays of directions."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg

import kann
from kann.errors import KannError
from tests.systems import eigenvalue_distance, noisy_states, relative, run, stable_matrix


@pytest.fixture
def directions(rng):
    """Three directions of ten units, of different lengths and not orthogonal."""
    return rng.normal(size=(10, 3)) * [1.0, 10.0, 0.1]


@pytest.fixture
def states(rng):
    values = noisy_states(rng) + rng.normal(size=10)
    return kann.States.from_padded(values, inputs=rng.normal(size=(12, 40, 2)))


def regression(x, y):
    """Coefficients and constant of the least-squares regression of y on x."""
    found = np.linalg.lstsq(np.hstack([x, np.ones((len(x), 1))]), y, rcond=None)[0]
    return found[:-1], found[-1]


@pytest.mark.parametrize("offset", [True, False])
def test_coordinates_are_those_of_the_array_and_states_their_regression(states, directions, offset):
    koopman = kann.fit(states, basis=directions, offset=offset)
    z = states.values @ directions
    np.testing.assert_allclose(koopman.encode(states.values), z, atol=1e-10)
    slope, constant = regression(z, states.values) if offset else (np.linalg.lstsq(z, states.values, rcond=None)[0], 0)
    np.testing.assert_allclose(koopman.decode(z), z @ slope + constant, atol=1e-10)
    x, y = (part @ directions for part in states.pairs())
    expected = regression(x, y)[0] if offset else np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(koopman.matrix, expected, atol=1e-10)
    missed = states.values - koopman.decode(z)
    about = states.values - offset * states.values.mean(0)
    assert koopman.explained.sum() == pytest.approx(1 - np.sum(missed**2) / np.sum(about**2))


def test_coordinates_of_a_balance_are_its_own(states, directions):
    balance = SimpleNamespace(directions=directions, mean=states.values.mean(0) + 0.3)
    koopman = kann.fit(states, basis=balance, rank=2)
    z = (states.values - balance.mean) @ directions[:, :2]
    np.testing.assert_allclose(koopman.encode(states.values), z, atol=1e-10)
    slope, constant = regression(z, states.values)
    np.testing.assert_allclose(koopman.decode(z), z @ slope + constant, atol=1e-10)
    np.testing.assert_allclose(koopman.eigenvalues, kann.fit(states, basis=directions[:, :2]).eigenvalues, atol=1e-10)


@pytest.mark.parametrize("driven", [False, True, "bilinear"])
def test_an_invertible_change_of_coordinates_changes_no_eigenvalue_and_no_prediction(states, directions, driven, rng):
    change = rng.normal(size=(3, 3))
    options = {"driven": driven, "ridge": 0.0}
    ours, theirs = (kann.fit(states, basis=basis, **options) for basis in (directions, directions @ change))
    h, inputs = states.values[:5], states.inputs[:5] if driven else None
    np.testing.assert_allclose(
        ours.predict(h, inputs=inputs), theirs.predict(h, inputs=inputs), atol=1e-3 if driven == "bilinear" else 1e-9
    )
    if driven == "bilinear":
        ours, theirs = ours.at([0.5, -0.5]), theirs.at([0.5, -0.5])
    assert eigenvalue_distance(ours.eigenvalues, theirs.eigenvalues) < 1e-9
    np.testing.assert_allclose(ours.residuals, theirs.residuals, rtol=1e-6)
    assert relative(theirs.state_vectors, np.linalg.inv(change) @ ours.state_vectors) < 1e-9


def test_balanced_truncation_of_a_linear_system(rng):
    """Of h ← h A + u E read by h R, balanced coordinates truncate to the reduced model of Moore (1981)."""
    d, k = 8, 3
    A, E, R = stable_matrix(rng, d) * 0.9, rng.normal(size=(2, d)) * 0.3, rng.normal(size=(d, 2)) * 0.3
    reach = scipy.linalg.solve_discrete_lyapunov(A.T, E.T @ E)
    observe = scipy.linalg.solve_discrete_lyapunov(A, R @ R.T)
    X, Y = np.linalg.cholesky(reach), np.linalg.cholesky(observe)
    U, values, Vt = np.linalg.svd(Y.T @ X)
    directions = Y @ U[:, :k] / np.sqrt(values[:k])
    vectors = (X @ Vt[:k].T / np.sqrt(values[:k])).T
    inputs = rng.normal(size=(40, 400, 2))
    values = run(A, rng.multivariate_normal(np.zeros(d), reach, size=40), 400, push=inputs @ E)
    states = kann.States.from_padded(values, inputs=inputs)
    koopman = kann.fit(states, basis=directions, driven=True)
    # Sampling errors of 16,000 pairs.
    assert relative(koopman.matrix, vectors @ A @ directions) < 0.03
    assert relative(koopman.drive, E @ directions) < 0.03
    assert relative(koopman.decoder, vectors) < 0.05


def test_everything_that_restores_a_state_uses_the_regression(states, directions, rng):
    koopman = kann.fit(states, basis=directions)
    h = states.values[:6]
    step = koopman.decode(koopman.encode(h) @ koopman.matrix + koopman.offset)
    np.testing.assert_allclose(koopman.predict(h), step, atol=1e-10)
    every = range(len(koopman.modes))
    np.testing.assert_allclose(kann.reconstruct(koopman, h, every), koopman.decode(koopman.encode(h)), atol=1e-9)
    weight = rng.normal(size=(2, 10))
    parts = kann.contributions(koopman, h, weight)
    within = (koopman.decode(koopman.encode(h)) - koopman.mean) @ weight.T
    np.testing.assert_allclose(parts.modes.sum(axis=-2), within, atol=1e-9)
    np.testing.assert_allclose(parts.total, h @ weight.T, atol=1e-9)


def test_errors_are_those_of_the_coordinates(rng):
    """Two slow units decide; eight others are noise that nothing predicts, and that is not modelled."""
    slow = run(np.diag([0.95, 0.8]), rng.normal(size=(30, 2)), 40, push=0.1 * rng.normal(size=(30, 40, 2)))
    mixed = np.concatenate([slow, rng.normal(size=(30, 40, 8))], axis=2)
    states = kann.States.from_padded(mixed)
    basis = np.eye(10)[:, :2] @ np.array([[1.0, 0.5], [0.0, 1.0]])
    alone = kann.trust(kann.fit(slow, basis=basis[:2]), slow)
    found = kann.trust(kann.fit(states, basis=basis), states)
    np.testing.assert_allclose(found.error, alone.error * np.ones_like(found.error), rtol=0.5)
    assert found.error[0] < 0.5
    curve = kann.fit(states, basis=basis, rank="auto").rank_curve
    assert curve.errors[-1, 0] == pytest.approx(found.error[0], rel=0.2)
    parts = [kann.Moments.of(states[np.arange(i, 30, 5)]) for i in range(5)]
    of_moments = kann.trust(kann.fit(states, basis=basis), parts)
    assert of_moments.error[0] == pytest.approx(found.error[0], rel=0.2)


@pytest.mark.parametrize("driven", [False, True, "bilinear"])
def test_operators_with_a_decoder_survive_a_file(states, directions, driven, tmp_path):
    koopman = kann.fit(states, basis=directions, driven=driven, **({"ridge": 1e-3} if driven == "bilinear" else {}))
    koopman.save(tmp_path / "operator")
    loaded = type(koopman).load(tmp_path / "operator")
    np.testing.assert_array_equal(loaded.decoder, koopman.decoder)
    np.testing.assert_array_equal(loaded.decode(np.ones(3)), koopman.decode(np.ones(3)))


def test_an_orthonormal_array_of_all_units_decodes_exactly(states, rng):
    koopman = kann.fit(states, basis=np.linalg.qr(rng.normal(size=(10, 10)))[0])
    assert koopman.decoder is None
    assert not koopman.in_coordinates


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (np.ones((10, 2)), "depend on each other"),
        (np.zeros((10, 2)), "zero or not finite"),
        (np.full((10, 1), np.nan), "zero or not finite"),
    ],
)
def test_directions_that_are_no_coordinates_are_refused(states, columns, message):
    with pytest.raises(KannError, match=message):
        kann.fit(states, basis=columns)
