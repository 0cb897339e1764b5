"""The transport simplex finds what a general solver of linear programs finds, also where many ways are equally good."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

import kann
from kann.analysis import distances as optimal_transport
from kann.analysis.distances import carried_by, least_cost, transport, weighed_spectrum
from kann.errors import KannError
from tests.systems import noisy_states


def by_linear_program(cost, leaving, arriving):
    n, m = cost.shape
    sums = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    return linprog(cost.ravel(), A_eq=sums[:-1], b_eq=np.concatenate([leaving, arriving])[:-1], method="highs").fun


def unequal(rng, count):
    """Weights over many orders of magnitude, as modes carry."""
    weights = np.exp(-rng.uniform(0, 12, size=count))
    return weights / weights.sum()


def grid(rng, count):
    """Points of a coarse grid, so that many distances are the same."""
    return rng.integers(-2, 3, size=count) + 1j * rng.integers(0, 3, size=count)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("points", ["anywhere", "grid"])
@pytest.mark.parametrize("weights", ["unequal", "equal", "whole numbers"])
def test_the_cost_is_the_least(seed, points, weights):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(1, 20, size=2)
    a, b = (rng.normal(size=k) + 1j * rng.normal(size=k) if points == "anywhere" else grid(rng, k) for k in (n, m))
    leaving, arriving = (unequal(rng, k) for k in (n, m))
    if weights == "equal":
        leaving, arriving = np.full(n, 1 / n), np.full(m, 1 / m)
    elif weights == "whole numbers":  # sums of some rows are sums of some columns: steps that move nothing
        leaving, arriving = (each / each.sum() for each in (rng.integers(1, 4, size=k).astype(float) for k in (n, m)))
    cost = np.abs(a[:, None] - b) ** 2
    # Its costs are of order one, and its solver is content with 1e-7 of that.
    assert least_cost(cost, leaving, arriving) == pytest.approx(by_linear_program(cost, leaving, arriving), abs=1e-7)


def test_the_same_points_in_another_order_cost_nothing(rng):
    points, weights, order = rng.normal(size=40) + 0j, unequal(rng, 40), rng.permutation(40)
    cost = np.abs(points[:, None] - points[order]) ** 2
    assert least_cost(cost, weights, weights[order]) == pytest.approx(0, abs=1e-15)


def test_a_search_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(optimal_transport, "MOST_EXCHANGES", 0)
    half = np.array([0.5, 0.5])
    with pytest.raises(KannError, match="no transport between 2 and 2 points was found; pass operators of lower rank"):
        least_cost(np.eye(2), half, half)


def test_conjugate_pairs_may_be_folded_onto_one_half():
    operators = [kann.fit(noisy_states(np.random.default_rng(seed), d=7)) for seed in range(4)]
    for a, b in itertools.pairwise(operators):
        assert (a.eigenvalues.imag > 0.01).any()
        folded = transport(*weighed_spectrum(a, weights="carried"), *weighed_spectrum(b, weights="carried"))
        whole = transport(a.eigenvalues, carried_by(a), b.eigenvalues, carried_by(b))
        assert folded == pytest.approx(whole, abs=1e-9)
        assert folded > 0.01
