"""The same operator as the published code's: TruncatedSVD of all states, then least squares over all pairs."""

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD

import kann
from tests.systems import AS_IN_PAPER, eigenvalue_distance, full_operator, noisy_states, relative, rotation


def published(states, rank):
    """B C Bᵀ and the eigenvalues of C by the published way, in the precision of the states."""
    svd = TruncatedSVD(n_components=rank, random_state=0).fit(states.values)
    x, y = (svd.transform(part) for part in states.pairs())
    C = np.linalg.lstsq(x, y, rcond=None)[0]
    B = svd.components_.T
    return B @ C @ B.T, np.linalg.eigvals(C)


def exact(states, rank):
    """B C Bᵀ by a float64 SVD and a float64 least-squares solution."""
    B = np.linalg.svd(np.asarray(states.values, dtype=np.float64), full_matrices=False)[2][:rank].T
    x, y = (part.astype(np.float64) @ B for part in states.pairs())
    C = np.linalg.lstsq(x, y, rcond=None)[0]
    return B @ C @ B.T, np.linalg.eigvals(C)


def random(rng):
    return kann.States.from_padded(rng.normal(size=(16, 50, 24)) * np.linspace(1, 2, 24))


def structured(rng):
    scale = np.logspace(0, -1.5, 24)
    return kann.States.from_padded(noisy_states(rng, sequences=16, steps=50, d=24) * scale @ rotation(rng, 24))


def ragged(rng):
    padded = noisy_states(rng, sequences=40, steps=60, d=24) * np.linspace(1, 2, 24)
    return kann.States.from_padded(padded, rng.integers(1, 60, 40))


def rank_deficient(rng):
    return kann.States.from_padded(noisy_states(rng, sequences=16, steps=50, d=6) @ rng.normal(size=(6, 24)))


def recurrent(rng):
    """A random tanh network driven by noise."""
    W, h, path = 1.1 * rng.normal(size=(24, 24)) / np.sqrt(24), np.zeros((16, 24)), []
    for _ in range(60):
        h = np.tanh(h @ W + 0.5 * rng.normal(size=h.shape))
        path.append(h)
    return kann.States.from_padded(np.stack(path, axis=1))


KINDS = [(random, 23), (structured, 23), (ragged, 23), (rank_deficient, 6), (recurrent, 23)]


def as_float32(states):
    return kann.States(values=states.values.astype(np.float32), lengths=states.lengths)


@pytest.mark.parametrize(("make", "rank"), KINDS)
def test_float32_states_give_the_published_operator(rng, make, rank):
    states = as_float32(make(rng))
    koopman = kann.fit(states, rank=rank, **AS_IN_PAPER)
    operator, eigenvalues = published(states, rank)
    assert relative(full_operator(koopman), operator) < 1e-5
    assert eigenvalue_distance(koopman.eigenvalues, eigenvalues) < 1e-5  # the published way rounds to float32


@pytest.mark.parametrize(("make", "rank"), KINDS)
@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_the_operator_is_the_float64_least_squares_solution(rng, make, rank, precision):
    states = make(rng) if precision == np.float64 else as_float32(make(rng))
    koopman = kann.fit(states, rank=rank, **AS_IN_PAPER)
    operator, eigenvalues = exact(states, rank)
    assert relative(full_operator(koopman), operator) < 1e-9
    assert eigenvalue_distance(koopman.eigenvalues, eigenvalues) < 1e-6


@pytest.mark.parametrize("make", [make for make, _ in KINDS])
def test_without_a_rank_every_resolved_direction_is_kept(rng, make):
    states = make(rng)
    x, y = states.pairs()
    operator = np.linalg.lstsq(x, y, rcond=None)[0]
    assert relative(full_operator(kann.fit(states, **AS_IN_PAPER)), operator) < 1e-9


def test_with_fewer_pairs_than_units_the_smallest_operator_is_taken(rng):
    states = kann.States.from_padded(rng.normal(size=(1, 20, 48)))
    x, y = states.pairs()
    koopman = kann.fit(states, **AS_IN_PAPER)
    assert koopman.rank == 20
    assert relative(full_operator(koopman), np.linalg.lstsq(x, y, rcond=None)[0]) < 1e-9


@pytest.mark.parametrize(("make", "rank"), KINDS)
def test_one_word_fits_the_operator_of_the_paper(make, rank, rng):
    states = make(rng)
    koopman = kann.fit(states, basis="paper")
    assert koopman.rank == rank
    assert koopman.offset is None
    expected = kann.fit(states, basis="svd", offset=False, rank=rank)
    np.testing.assert_allclose(koopman.matrix, expected.matrix, atol=1e-12)  # rank 6 is found in another reading
    assert kann.fit(states, basis="paper", rank=3).rank == 3
    assert kann.fit(kann.Moments.of(states), basis="paper").rank == rank
