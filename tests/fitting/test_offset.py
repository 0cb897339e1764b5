"""The operator with an offset, about the mean of the states: what `kann.fit` fits unless told otherwise."""

import warnings

import numpy as np
import pytest

import kann
from tests.systems import AS_IN_PAPER, eigenvalue_distance, noisy_states, relative, run, stable_matrix


def test_the_default_is_least_squares_with_a_constant_about_the_mean(rng):
    states = kann.States.from_padded(noisy_states(rng) + 3, rng.integers(2, 40, 12))
    koopman = kann.fit(states, rank=6)
    np.testing.assert_allclose(koopman.mean, states.values.mean(0), rtol=1e-12)
    x, y = (koopman.encode(part) for part in states.pairs())
    expected = np.linalg.lstsq(np.hstack([x, np.ones((len(x), 1))]), y, rcond=None)[0]
    np.testing.assert_allclose(np.vstack([koopman.matrix, koopman.offset]), expected, atol=1e-11)


def test_a_linear_system_about_any_point_is_recovered(rng):
    A, point = stable_matrix(rng, 5), 100 * rng.normal(size=5)
    values = run(A, rng.normal(size=(10, 5)), 30) + point
    koopman = kann.fit(values)
    assert eigenvalue_distance(koopman.eigenvalues, np.linalg.eigvals(A)) < 1e-8
    np.testing.assert_allclose(koopman.predict(values[:, 0], steps=29), values[:, -1], rtol=1e-8)
    np.testing.assert_allclose(koopman.predict(point), point, rtol=1e-8)  # the fixed point stays


def test_the_mean_is_no_mode(rng):
    """States far from zero that forget at once have no eigenvalue near 1, as they have without an offset."""
    values = 0.1 * rng.normal(size=(40, 50, 4)) + np.array([5.0, 0, 0, 0])
    assert np.abs(kann.fit(values, **AS_IN_PAPER).eigenvalues).max() > 0.99
    assert np.abs(kann.fit(values).eigenvalues).max() < 0.1


def test_shifted_states_give_the_same_operator(rng):
    values = noisy_states(rng)
    here, there = kann.fit(values, rank=5), kann.fit(values + 7, rank=5)
    assert relative(there.matrix, here.matrix) < 1e-9
    np.testing.assert_allclose(there.offset, here.offset, atol=1e-9)
    np.testing.assert_allclose(there.predict(values + 7), here.predict(values) + 7, atol=1e-9)


def test_an_offset_survives_a_file(tmp_path, rng):
    values = noisy_states(rng) + 1
    koopman = kann.fit(values, rank=4)
    koopman.save(tmp_path / "operator.npz")
    again = kann.Koopman.load(tmp_path / "operator.npz")
    np.testing.assert_array_equal(again.offset, koopman.offset)
    assert again.drive is None
    np.testing.assert_array_equal(again.predict(values, steps=3), koopman.predict(values, steps=3))


def test_every_driven_operator_has_an_offset(rng):
    states = kann.States.from_padded(noisy_states(rng), inputs=rng.normal(size=(12, 40, 3)))
    with pytest.raises(kann.KannError, match="a driven operator has an offset"):
        kann.fit(states, driven=True, offset=False)


def test_fewer_than_five_pairs_for_each_unknown_are_warned_of(rng):
    values, inputs = rng.normal(size=(6, 11, 9)), rng.normal(size=(6, 11, 4))
    states = kann.States.from_padded(values, inputs=inputs)
    with pytest.warns(
        kann.errors.FewPairsWarning, match="60 pairs of states for 14 unknowns in each column.*at most 12"
    ):
        kann.fit(states, driven=True)
    with pytest.warns(kann.errors.FewPairsWarning, match="60 pairs of states for 13 unknowns"):
        kann.fit(states, rank=8, driven=True)
    assert not few_pairs_warnings(states, rank=7, driven=True)
    assert not few_pairs_warnings(states, rank=9, **AS_IN_PAPER)


def few_pairs_warnings(states, **arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kann.fit(states, **arguments)
    return [warning for warning in caught if issubclass(warning.category, kann.errors.FewPairsWarning)]


def test_inputs_that_contain_the_state_are_warned_of(rng):
    u = rng.normal(size=(20, 50, 2))
    x = run(np.diag([0.97, 0.8]), u[:, 0], 50, push=u)
    before = np.concatenate([np.zeros((20, 1, 2)), x[:, :-1]], axis=1)
    states = kann.States.from_padded(x, inputs=np.concatenate([u, before], axis=-1))
    with pytest.warns(kann.errors.DependenceWarning, match="the inputs almost determine"):
        koopman = kann.fit(states, driven=True)
    assert koopman.residuals.max() < 1e-6  # nothing else tells that its eigenvalues are wrong
    assert abs(koopman.eigenvalues[0] - 0.97) > 0.1
    # Inputs that depend on each other, such as one of n classes, hurt nothing.
    same = np.concatenate([u, u[..., :1] - u[..., 1:]], axis=-1)
    koopman = kann.fit(kann.States.from_padded(x, inputs=same), driven=True)
    np.testing.assert_allclose(np.abs(koopman.eigenvalues), [0.97, 0.8], atol=1e-9)
