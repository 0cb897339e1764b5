"""The driven fit: z[t+1] ≈ z[t] C + u[t+1] D + c."""

import numpy as np
import pytest
import torch

import kann
from tests.systems import eigenvalue_distance, full_operator, run, stable_matrix


@pytest.fixture
def system(rng):
    """A, D, c of a driven system, its inputs (correlated over time), and its states."""
    A, D, c = stable_matrix(rng, 6), rng.normal(size=(4, 6)), rng.normal(size=6)
    u = rng.normal(size=(25, 60, 4))
    for t in range(1, 60):
        u[:, t] = 0.95 * u[:, t - 1] + 0.3 * u[:, t]
    states = run(A, rng.normal(size=(25, 6)), 60, push=u @ D + c)
    return A, D, c, u, kann.States.from_padded(states, inputs=u)


@pytest.mark.parametrize("basis", ["svd", "pca", "fourier"])
def test_a_known_driven_system_is_recovered(system, basis):
    A, D, c, _, states = system
    koopman = kann.fit(states, driven=True, basis=basis)
    np.testing.assert_allclose(full_operator(koopman), A, atol=1e-8)
    np.testing.assert_allclose(koopman.drive @ koopman.basis.T, D, atol=1e-8)
    # decode(c) with the mean: h' = (h − m) B C Bᵀ + u D + c Bᵀ + m must have the constant term of the true system.
    constant = koopman.offset @ koopman.basis.T + koopman.mean - koopman.mean @ full_operator(koopman)
    np.testing.assert_allclose(constant, c, atol=1e-8)
    assert koopman.residuals.max() < 1e-6
    assert kann.relative_error(koopman, states) < 1e-15


def test_inputs_that_are_correlated_over_time_hide_the_spectrum_from_an_autonomous_fit(system):
    A, _, _, _, states = system
    known = np.linalg.eigvals(A)
    assert eigenvalue_distance(kann.fit(states, driven=True).eigenvalues, known) < 1e-8
    assert eigenvalue_distance(kann.fit(states).eigenvalues, known) > 0.05
    assert kann.relative_error(kann.fit(states), states) > 1e-3


def test_simulation_follows_the_true_system(system, rng):
    A, D, c, _, states = system
    koopman = kann.fit(states, driven=True)
    u, start = rng.normal(size=(3, 200, 4)), rng.normal(size=(3, 6))
    path, h = [], start
    for t in range(200):
        h = h @ A + u[:, t] @ D + c
        path.append(h)
    np.testing.assert_allclose(koopman.simulate(u, start), np.stack(path, axis=1), atol=1e-6)
    np.testing.assert_allclose(koopman.simulate(torch.tensor(u[0]), start[0]), np.stack(path, axis=1)[0], atol=1e-6)


def test_simulation_starts_from_a_zero_state(system):
    _, D, c, _, states = system
    for basis in ("svd", "pca"):
        koopman = kann.fit(states, driven=True, basis=basis)
        np.testing.assert_allclose(koopman.simulate(np.ones((2, 4)))[0], np.ones(4) @ D + c, atol=1e-7)


def test_predict_rollout_and_simulate_agree(system):
    _, _, _, u, states = system
    koopman = kann.fit(states, driven=True, rank=4)
    h = states.padded()[:, 0]
    path = koopman.rollout(h, 5, inputs=u[:, 1:6])
    np.testing.assert_allclose(path, koopman.simulate(u[:, 1:6], h))
    np.testing.assert_allclose(koopman.predict(h, 5, inputs=u[:, 1:6]), path[:, -1])
    np.testing.assert_allclose(koopman.predict(h, inputs=u[:, 1]), path[:, 0])


def test_it_is_a_least_squares_solution(rng):
    lengths = rng.integers(1, 30, 20)
    values, inputs = rng.normal(size=(20, 30, 5)), rng.normal(size=(20, 30, 3)) + 2
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    koopman = kann.fit(states, driven=True)
    x, y = (koopman.encode(part) for part in states.pairs())
    u = np.delete(states.inputs, states.starts, axis=0)
    expected = np.linalg.lstsq(np.hstack([x, u, np.ones((len(x), 1))]), y, rcond=None)[0]
    np.testing.assert_allclose(np.vstack([koopman.matrix, koopman.drive, koopman.offset]), expected, atol=1e-11)
    missed = y - np.hstack([x, u, np.ones((len(x), 1))]) @ expected
    about = (x - x.mean(0)) @ koopman.right  # the offset explains the mean
    residuals = np.linalg.norm(missed @ koopman.right, axis=0) / np.linalg.norm(about, axis=0)
    np.testing.assert_allclose(koopman.residuals, residuals, rtol=1e-9)


def test_moments_of_driven_states_give_the_same_fit(system):
    *_, states = system
    one, other = kann.fit(states, driven=True), kann.fit(kann.Moments.of(states), driven=True)
    np.testing.assert_allclose(one.drive, other.drive, atol=1e-12)


def test_one_hot_inputs_of_several_thousand_words_work(rng):
    """One-hot rows sum to one, as the offset does, and most words never occur: the smallest solution is taken."""
    words, d = 3000, 4
    A, effect = stable_matrix(rng, d), rng.normal(size=(words, d))
    read = rng.integers(0, 300, size=(30, 60))
    states = kann.States.from_padded(
        run(A, np.zeros((30, d)), 60, push=effect[read]).astype(np.float32),
        inputs=np.eye(words, dtype=np.float32)[read],
    )
    koopman = kann.fit(states, driven=True)
    np.testing.assert_allclose(full_operator(koopman), A, atol=1e-4)  # float32 states
    assert kann.relative_error(koopman, states) < 1e-9
    assert np.abs(koopman.drive[300:]).max() < 1e-6
    seen = np.unique(read[:, 1:])  # what was read before the first state drove no pair
    ours, true = koopman.drive[seen] @ koopman.basis.T, effect[seen]
    np.testing.assert_allclose(ours - ours.mean(0), true - true.mean(0), atol=1e-3)  # up to the offset


def test_ridge_shrinks_the_drive(system):
    *_, states = system
    plain, shrunk = kann.fit(states, driven=True), kann.fit(states, driven=True, ridge=100.0)
    assert np.linalg.norm(shrunk.drive) < np.linalg.norm(plain.drive)


def test_what_never_changes_drives_nothing(rng):
    """Taking its mean off a constant column leaves rounding noise, which must not become a regressor."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values, inputs = rng.normal(size=(20, 50, 4)), rng.normal(size=(20, 50, 3))
        values[..., 3], inputs[..., 2] = 1 / 3, 0.1
        koopman = kann.fit(kann.States.from_padded(values, inputs=inputs), driven=True)
        assert np.abs(koopman.eigenvalues).max() < 0.5  # white noise has no memory
        assert np.abs(koopman.drive[2]).max() < 1e-6


def test_coarse_inputs_do_not_cost_directions_of_the_states(rng):
    values = rng.normal(size=(20, 50, 4)) * np.array([1, 1e-3, 1e-7, 1e-8])
    inputs = rng.normal(size=(20, 50, 2)).astype(np.float32)
    assert kann.fit(kann.States.from_padded(values, inputs=inputs), driven=True).rank == 4


def test_inputs_that_are_not_asked_for_are_not_read(rng):
    inputs = np.full((20, 50, 2), np.nan)
    values = rng.normal(size=(20, 50, 4)) * np.array([1, 1e-3, 1e-7, 1e-8])  # read twice, as they are ill-conditioned
    assert kann.fit(kann.States.from_padded(values, inputs=inputs)).rank == 4


@pytest.mark.parametrize("scale", [1.0, 1e-3, 7.0])
def test_a_single_pair_is_all_offset(rng, scale):
    h, u = scale * rng.normal(size=(1, 2, 3)), rng.normal(size=(1, 2, 2))
    koopman = kann.fit(kann.States.from_padded(h, inputs=u), driven=True)
    np.testing.assert_array_equal(koopman.matrix, 0.0)
    np.testing.assert_array_equal(koopman.drive, 0.0)
    np.testing.assert_allclose(koopman.predict(h[:, :1], inputs=u[:, 1:]), h[:, 1:], atol=1e-12)
