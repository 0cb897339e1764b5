"""Balanced coordinates of linear systems, whose Hankel singular values and balanced directions are known."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

import kann
from kann.fitting.balance import Balance
from tests.systems import relative, rotation, stable_matrix


def linear_system(rng, d, *, reads=3, gives=2):
    """h[t+1] = h[t] A + u[t] B, y = h C, and snapshots of it whose second moments are its two Gramians.

    States are the responses to an impulse of either sign, so that their mean is 0; adjoints are those of each output.
    """
    a, b, c = stable_matrix(rng, d), rng.normal(size=(reads, d)), rng.normal(size=(d, gives))
    states, adjoints, state, adjoint = [], [], b, c.T
    for _ in range(1500):  # 0.98^1500 = 7e-14
        states += [state, -state]
        adjoints.append(adjoint)
        state, adjoint = state @ a, adjoint @ a.T
    p = solve_discrete_lyapunov(a.T, 2 * b.T @ b)
    q = solve_discrete_lyapunov(a, c @ c.T)
    return np.concatenate(states), np.concatenate(adjoints), p, q


@pytest.mark.parametrize("d", [2, 7, 12])
def test_linear_system_is_balanced(rng, d):
    states, adjoints, p, q = linear_system(rng, d)
    balance = Balance.of_snapshots(states, adjoints)
    hankel = np.sort(np.sqrt(np.linalg.eigvals(p @ q).real))[::-1]
    assert balance.rank == d
    assert np.abs(balance.values - hankel / hankel[0]).max() < 1e-6 * balance.values[-1]
    # The directions are eigenvectors of Q P, and diagonalise both Gramians.
    a, w = balance.directions, balance.decoder
    assert relative(q @ p @ a, a * hankel**2) < 1e-6
    assert np.abs(w @ a - np.eye(d)).max() < 1e-6
    assert np.abs(a.T @ p @ a / len(states) - np.diag(balance.values)).max() < 1e-6
    assert relative(w @ q @ w.T / hankel[0] ** 2 * len(states), np.diag(balance.values)) < 1e-6


def test_small_values_keep_their_digits(rng):
    """A Gram matrix would lose values below 1e-8 of the largest; factors keep them."""
    scales = 10.0 ** -np.arange(6)
    turn = rotation(rng, 6)
    states = np.concatenate([np.eye(6), -np.eye(6)]) * scales @ turn
    adjoints = np.eye(6) * scales @ turn
    balance = Balance.of_snapshots(states, adjoints)
    np.testing.assert_allclose(balance.values, scales**2, rtol=1e-5)


@pytest.mark.parametrize(("n", "m", "d"), [(400, 300, 8), (30, 20, 50), (300, 20, 50)])
def test_snapshots_agree_with_covariances(rng, n, m, d):
    states, adjoints = rng.normal(size=(n, d)) + 2, rng.normal(size=(m, d)) * rng.uniform(0.1, 1, d)
    mean = states.mean(axis=0)
    by_rows = Balance.of_snapshots(states, adjoints, rank=5)
    p, q = (states - mean).T @ (states - mean) / n, adjoints.T @ adjoints
    by_covariances = Balance.of_covariances(p, q, mean=mean, rank=5)
    assert relative(by_rows.values[:5], by_covariances.values[:5]) < 1e-8
    for name in ("directions", "decoder", "mean"):
        ours, theirs = getattr(by_rows, name), getattr(by_covariances, name)
        assert relative(ours, theirs) < 1e-8, name


def test_float32_snapshots_agree_with_float64(rng):
    states, adjoints = rng.normal(size=(500, 6)).astype(np.float32), rng.normal(size=(400, 6)).astype(np.float32)
    single = Balance.of_snapshots(states, adjoints)
    double = Balance.of_snapshots(states.astype(np.float64), adjoints.astype(np.float64))
    assert relative(single.directions, double.directions) < 1e-8


def test_blocks_of_units_agree_with_all_at_once(rng, monkeypatch):
    states, adjoints = rng.normal(size=(20, 64)), rng.normal(size=(30, 64))
    whole = Balance.of_snapshots(states, adjoints, rank=4)
    monkeypatch.setattr("kann.fitting.balance.BLOCK_NUMBERS", 200)
    parts = Balance.of_snapshots(states, adjoints, rank=4)
    assert relative(parts.directions, whole.directions) < 1e-12
    assert relative(parts.decoder, whole.decoder) < 1e-12


def test_orthogonal_change_of_units(rng):
    states, adjoints, turn = rng.normal(size=(200, 6)) + 1, rng.normal(size=(90, 6)), rotation(rng, 6)
    one, other = Balance.of_snapshots(states, adjoints), Balance.of_snapshots(states @ turn, adjoints @ turn)
    np.testing.assert_allclose(one.values, other.values, rtol=1e-10)
    s, turned = one.coordinates(states), other.coordinates(states @ turn)
    np.testing.assert_allclose(np.abs(s), np.abs(turned), atol=1e-10)


def test_coordinates_and_completion(rng):
    states = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5)) + 3
    balance = Balance.of_snapshots(states, rng.normal(size=(100, 5)))
    s = balance.coordinates(states)
    np.testing.assert_allclose(np.cov(s.T, bias=True), np.diag(balance.values), atol=1e-10)
    np.testing.assert_allclose(balance.complete(s), states, atol=1e-10)
    # Two coordinates are completed by the linear regression of the state on them.
    design = np.column_stack([np.ones(300), s[:, :2]])
    fitted = design @ np.linalg.lstsq(design, states, rcond=None)[0]
    np.testing.assert_allclose(balance.complete(s[:, :2]), fitted, atol=1e-10)
    with pytest.raises(kann.KannError, match="j<=5"):
        balance.complete(np.ones((3, 6)))
    with pytest.raises(kann.KannError, match="5"):
        balance.coordinates(np.ones((3, 4)))


def test_scale_of_the_adjoints_does_not_matter(rng):
    states, adjoints = rng.normal(size=(50, 4)), rng.normal(size=(50, 4))
    one, other = Balance.of_snapshots(states, adjoints), Balance.of_snapshots(states, 1e3 * adjoints)
    np.testing.assert_allclose(one.directions, other.directions, rtol=1e-9)
    np.testing.assert_allclose(one.decoder, other.decoder, rtol=1e-9)


@pytest.mark.parametrize("n", [300, 12])
def test_without_adjoints_directions_are_principal_components(rng, n):
    states = rng.normal(size=(1, n, 20)) * np.linspace(1, 3, 20) + 1
    balance = Balance.of_states(states)
    _, singular, components = np.linalg.svd(states[0] - states[0].mean(axis=0))
    np.testing.assert_allclose(
        balance.values[: balance.rank], (singular**2 / singular[0] ** 2)[: balance.rank], rtol=1e-6
    )
    scaled = balance.directions / np.linalg.norm(balance.directions, axis=0)
    np.testing.assert_allclose(np.abs(np.sum(scaled * components[: balance.rank].T, axis=0)), 1, atol=1e-6)
    assert balance.count is None
    assert not balance.has_adjoints


def test_small_components_keep_their_digits_wherever_the_states_are(rng):
    values = rng.normal(size=(6, 50, 3)) * [1.0, 1e-3, 1e-6] @ rotation(rng, 3) + 1
    variances = np.linalg.svd((values - values.mean(axis=(0, 1))).reshape(-1, 3), compute_uv=False) ** 2
    for states in (values, da.from_array(values, chunks=(2, 20, 3)), torch.tensor(values)):
        balance = Balance.of_states(kann.States.from_padded(states))
        np.testing.assert_allclose(balance.values, variances / variances[0], rtol=1e-6)
        assert balance.rank == 3


def test_saved_and_loaded(rng, tmp_path):
    states = rng.normal(size=(60, 4))
    balance = Balance.of_snapshots(states, rng.normal(size=(2, 60, 4)), sequences=np.arange(60) // 6)
    balance.save(tmp_path / "balance.npz")
    loaded = kann.Balance.load(tmp_path / "balance.npz")
    for name in ("values", "directions", "decoder", "mean", "resampled"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(balance, name))
    replace(balance, decoder=balance.decoder + 1, resampled=None).save(tmp_path / "balance.npz")
    with pytest.raises(kann.KannError, match="decoder"):
        Balance.load(tmp_path / "balance.npz")


def test_snapshots_without_anything_to_balance(rng):
    noise = rng.normal(size=(50, 4))
    with pytest.raises(kann.KannError, match="of_states"):
        Balance.of_snapshots(noise, np.zeros((5, 4)))
    with pytest.raises(kann.KannError, match="every state is the same"):
        Balance.of_snapshots(np.ones((5, 4)), noise)
    with pytest.raises(kann.KannError, match="of_states"):
        Balance.of_snapshots(noise * [1, 1, 0, 0], noise * [0, 0, 1, 1])
    with pytest.raises(kann.KannError, match="NaN"):
        Balance.of_snapshots(noise, noise * np.nan)
    with pytest.raises(kann.KannError, match="same width"):
        Balance.of_snapshots(noise, np.ones((5, 3)))
    with pytest.raises(kann.KannError, match="equally many"):
        Balance.of_snapshots(noise, noise[:7], sequences=np.arange(50))


def test_printed(rng):
    states = rng.normal(size=(500, 5)) * [1, 1, 1, 0.01, 0.01]
    balance = Balance.of_snapshots(states, rng.normal(size=(500, 5)), sequences=np.arange(500) // 5)
    assert "count 3 (3–3)" in repr(balance)
    assert "3 <" in str(balance)
