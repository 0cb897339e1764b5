"""Least squares from Gram matrices, also where columns depend on each other."""

import numpy as np
import pytest

import kann
from kann.fitting.normal_equations import solve
from tests.systems import run, stable_matrix


def from_grams(a, y):
    squares = (a**2).sum(0)
    options = {"constant_below": np.zeros_like(squares), "ridge": 0.0, "floor": 1e-13}
    return solve(a.T @ a, a.T @ y, squares=squares, **options)[0]


def test_independent_columns_give_the_least_squares_solution(rng):
    a, y = rng.normal(size=(80, 6)) * np.logspace(0, -4, 6), rng.normal(size=(80, 3))
    np.testing.assert_allclose(from_grams(a, y), np.linalg.lstsq(a, y, rcond=None)[0], rtol=1e-8)


def test_dependent_columns_give_the_solution_of_smallest_norm(rng):
    a, y = rng.normal(size=(80, 4)), rng.normal(size=(80, 3))
    a = np.hstack([a, a @ rng.normal(size=(4, 2)), np.zeros((80, 1))])
    np.testing.assert_allclose(from_grams(a, y), np.linalg.pinv(a) @ y, atol=1e-9)


def test_no_column_at_all_gives_zeros():
    np.testing.assert_array_equal(from_grams(np.zeros((5, 3)), np.ones((5, 2))), 0.0)


@pytest.mark.parametrize("step", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("seed", range(8))
def test_inputs_that_depend_on_each_other_have_no_large_weights(seed, step):
    """The position before, the position, and the velocity: exactly dependent, but no single pivot need be tiny."""
    rng = np.random.default_rng(seed)
    position = rng.normal(size=(20, 61)).cumsum(axis=1) * step + rng.normal(size=(20, 1))
    before, now = position[:, :-1], position[:, 1:]
    u = np.stack([before, now, (now - before) / step], axis=2)
    A, D = stable_matrix(rng, 3), np.array([[0.3, 0.0, 0.1], [0.1, 0.2, 0.0], [0.0, 0.1, 0.2]])
    states = kann.States.from_padded(run(A, rng.normal(size=(20, 3)), 60, push=u @ D), inputs=u)
    koopman = kann.fit(states, driven=True)
    # Of all drives that predict the same, the smallest is at most as large as the true one, up to rounding.
    assert np.linalg.norm(koopman.drive) <= 1.01 * np.linalg.norm(D)
    assert kann.relative_error(koopman, states) < 1e-15
