"""The number of coordinates before the gap, on systems whose balanced singular values are known."""

import numpy as np
import pytest

from kann.fitting.balance import Balance, count_before_gap
from tests.systems import rotation


def estimated(rng, values, *, sequences, steps=20):
    """A balance of sequences of noise whose balanced singular values would be ``values`` with endless data.

    States and adjoints are correlated over time, so that there are fewer independent ones than steps, and the adjoints
    of some sequences are larger than those of others.
    """
    d, turn = len(values), rotation(rng, len(values))

    def paths():
        path = [rng.normal(size=(sequences, d))]
        for _ in range(steps - 1):
            path.append(0.9 * path[-1] + np.sqrt(1 - 0.81) * rng.normal(size=(sequences, d)))
        return np.stack(path, axis=1) * np.sqrt(values)

    sizes = np.exp(0.5 * rng.normal(size=(sequences, 1, 1)))
    numbers = np.repeat(np.arange(sequences), steps)
    states, adjoints = ((each @ turn).reshape(-1, d) for each in (paths(), paths() * sizes))
    return Balance.of_snapshots(states, adjoints, sequences=numbers)


def with_tail(rng, k, *, least, gap, kind, d=24):
    """``k`` values between 1 and ``least``, then others that begin at the last of them divided by ``gap``."""
    first = np.sort(np.exp(rng.uniform(np.log(least), 0, k)))[::-1]
    place = np.arange(d - k)
    tail = {"flat": np.sort(rng.uniform(0.6, 1, d - k))[::-1], "geometric": 0.8**place, "power": 1 / (1 + place)}[kind]
    return np.concatenate([first, first[-1] / gap * tail]) / first[0]


@pytest.mark.parametrize("k", range(1, 11))
@pytest.mark.parametrize("kind", ["flat", "geometric", "power"])
def test_a_gap_is_found(rng, k, kind):
    for least, gap in ((0.9, 10), (0.4, 20)):
        balance = estimated(rng, with_tail(rng, k, least=least, gap=gap, kind=kind), sequences=128)
        assert (balance.count, balance.count_interval) == (k, (k, k))


@pytest.mark.parametrize("sequences", [64, 256])
@pytest.mark.parametrize("kind", ["flat", "geometric", "power"])
def test_a_small_gap_is_found_or_not_but_never_elsewhere(rng, sequences, kind):
    for k in (1, 2, 3, 5, 8):
        values = with_tail(rng, k, least=0.5, gap=4, kind=kind)
        assert estimated(rng, values, sequences=sequences).count in (k, None)


@pytest.mark.parametrize("sequences", [64, 256])
@pytest.mark.parametrize("ratio", [0.2, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_a_geometric_decay_has_no_gap(rng, ratio, sequences):
    balance = estimated(rng, ratio ** np.arange(20.0), sequences=sequences)
    assert balance.count is None
    assert balance.count_interval is None


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_power_law_has_no_gap(rng, power):
    assert estimated(rng, (1 + np.arange(20.0)) ** -power, sequences=128).count is None


def test_a_gap_that_few_sequences_carry_is_none(rng):
    """Three of 40 sequences alone use the second coordinate, so that resampling moves it across the gap."""
    states, adjoints = rng.normal(size=(40, 20, 5)), rng.normal(size=(40, 20, 5)) * [1, 0, 0.12, 0.12, 0.12]
    adjoints[:3, :, 1] = rng.normal(size=(3, 20)) * 1.35
    numbers = np.repeat(np.arange(40), 20)
    balance = Balance.of_snapshots(states.reshape(-1, 5), adjoints.reshape(-1, 5), sequences=numbers)
    counts = {count_before_gap(row) for row in balance.resampled}
    assert len(counts) > 1
    assert balance.count is None or balance.count_interval[0] < balance.count_interval[1]


@pytest.mark.parametrize("sequences", [64, 256])
@pytest.mark.parametrize("weak", [1, 2])
def test_a_few_weak_coordinates_after_the_gap_do_not_count(rng, weak, sequences):
    """Two gaps: the count is at the first, or unknown, and never at the second."""
    found = []
    for k in (1, 2, 4, 7):
        first = np.linspace(1, 0.8, k)
        values = np.concatenate([first, first[-1] / 8 * np.ones(weak), first[-1] / 64 * np.ones(24 - k - weak)])
        found.append((estimated(rng, values, sequences=sequences).count, k))
    assert all(count in (k, None) for count, k in found)
    assert sum(count == k for count, k in found) >= 3


@pytest.mark.parametrize("k", [1, 3])
def test_exact_systems(rng, k):
    """Values beyond the k-th are zero but for rounding."""
    states = rng.normal(size=(200, 6))
    adjoints = rng.normal(size=(200, k)) @ rng.normal(size=(k, 6))
    balance = Balance.of_snapshots(states, adjoints, sequences=np.arange(200) // 10)
    assert balance.rank == k
    assert balance.count_interval == (k, k)


def test_values_by_hand():
    assert count_before_gap(np.array([1.0, 0.95, 0.92, 0.08, 0.07])) == 3
    assert count_before_gap(np.array([1.0, 0.2, 0.04, 0.008, 0.0016])) is None
    assert count_before_gap(np.array([1.0, 0.3, 0.09, 0.03, 0.02, 0.018])) is None
    assert count_before_gap(np.array([1.0, 0.8, 0.16, 0.03, 0.03, 0.025])) == 2
    assert count_before_gap(np.array([1.0, 0.45])) is None
    assert count_before_gap(np.array([1.0, 0.0])) == 1
    assert count_before_gap(np.array([1.0])) is None
