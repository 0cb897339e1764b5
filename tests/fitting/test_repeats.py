"""Sequences that are copies of each other."""

import numpy as np
import pytest
import torch

import kann
from kann.errors import KannError
from kann.fitting.folds import HoldoutGroups, assign_folds, repeats_of


def with_repeats(rng, *, dtype=np.float64):
    """Twelve sequences of two lengths; the last four are copies of the first four."""
    own = [rng.normal(size=(5 + i % 2, 3)).astype(dtype) for i in range(8)]
    return [*own, *(each.copy() for each in own[:4])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_copies_have_the_same_number_and_others_have_not(dtype, convert, rng):
    found = repeats_of(kann.States.from_sequences([convert(each) for each in with_repeats(rng, dtype=dtype)]))
    np.testing.assert_array_equal(found[8:], found[:4])
    assert len(set(found[:8].tolist())) == 8


def test_the_order_of_states_and_of_units_counts(rng):
    one = rng.normal(size=(6, 4))
    found = repeats_of(kann.States.from_sequences([one, one[::-1].copy(), one[:, ::-1].copy(), one]))
    assert len(set(found.tolist())) == 3
    assert found[0] == found[3]


def test_sequences_are_told_apart_in_pieces_and_by_dask(rng, monkeypatch):
    states = kann.States.from_sequences(with_repeats(rng))
    whole = repeats_of(states)
    monkeypatch.setattr("kann.backends.arrays.HOST_BLOCK_BYTES", 8 * 3 * 4)
    monkeypatch.setattr("kann.backends.arrays.HOST_MIN_ROWS", 1)
    np.testing.assert_array_equal(repeats_of(states), whole)
    da = pytest.importorskip("dask.array")
    chunked = kann.States(values=da.from_array(np.asarray(states.values), chunks=(7, 3)), lengths=states.lengths)
    np.testing.assert_array_equal(repeats_of(chunked), whole)


def test_nothing_is_read_if_all_lengths_differ(rng, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("states were read")

    monkeypatch.setattr("kann.fitting.folds.accumulate", refuse)
    states = kann.States.from_sequences([rng.normal(size=(length, 2)) for length in (3, 4, 5)])
    assert repeats_of(states).tolist() == [0, 1, 2]


def first_alike(states):
    """The first sequence that has the same number as each."""
    found = repeats_of(kann.States.from_padded(states)).tolist()
    return [found.index(number) for number in found]


@pytest.mark.parametrize("steps", [20, 700])
def test_near_copies_are_found_and_sequences_that_only_move_alike_are_not(steps, rng, monkeypatch):
    own = rng.normal(size=(6, steps, 3)).cumsum(axis=1)
    near = np.concatenate([own, own[:4] + 0.05 * rng.normal(size=(4, steps, 3))])
    expected = [*range(6), *range(4)]
    assert first_alike(near) == expected
    monkeypatch.setattr("kann.backends.arrays.HOST_BLOCK_BYTES", 8 * 3 * 150)
    monkeypatch.setattr("kann.backends.arrays.HOST_MIN_ROWS", 1)
    assert first_alike(near) == expected
    pushed = own + 10 * rng.normal(size=(steps, 3)).cumsum(axis=0)  # all read the same, and have noise of their own
    assert first_alike(pushed) == list(range(6))


def test_sequences_without_noise_are_no_copies_of_their_neighbours(rng):
    """In two dimensions many of 60 directions are near each other, at all distances."""
    start = rng.normal(size=(60, 2))
    path = np.stack([start * [0.9**t, 0.7**t] for t in range(40)], axis=1)
    assert first_alike(path) == list(range(60))


def test_near_copies_are_one_sequence_of_an_interval(rng):
    """Five noisy copies of three sequences would make intervals a third as wide."""
    own = np.zeros((3, 60, 2))
    for t in range(1, 60):
        own[:, t] = own[:, t - 1] * [0.9, 0.5] + rng.normal(size=(3, 2))
    copies = np.repeat(own, 5, axis=0)
    copies += 0.01 * rng.normal(size=copies.shape)
    assert kann.trust(kann.fit(copies), copies).folds == 3


def test_repeats_are_held_out_together_also_across_groups():
    lengths, repeats = np.full(12, 5), np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3])
    fold_of = assign_folds(lengths, folds=4, repeats=repeats)
    np.testing.assert_array_equal(fold_of[8:], fold_of[:4])
    groups = list("aabbccddeeff")  # a has 0 and 1, which e repeats; b has 2 and 3, which f repeats
    joined = HoldoutGroups.of(lengths, groups=groups, repeats=repeats)
    assert joined.available == 4
    assert joined.group_of[0] == joined.group_of[1] == joined.group_of[8] != joined.group_of[2]


def test_copies_do_not_count_as_sequences(rng):
    states = np.tile(rng.normal(size=(4, 30, 2)), (5, 1, 1))
    koopman = kann.fit(states, rank=2)
    assert kann.trust(koopman, states).folds == 4
    assert kann.trust(koopman, states, folds=3).folds == 3
    twice = states[[0, 1, 4, 5]]
    with pytest.raises(KannError, match=r"2 different sequences of two states or more cannot be held out in 3 folds"):
        kann.trust(kann.fit(twice, rank=2), twice, folds=3)
    with pytest.raises(KannError, match="rank='auto' is chosen on held-out different sequences, and 2"):
        kann.fit(states[[0, 1, 4, 5, 8]], rank="auto")


def test_a_copy_of_every_sequence_leaves_residuals_and_their_nulls_as_they_are(rng):
    """Noise that is fitted with as many unknowns as pairs has a residual of 0 wherever its copy was fitted."""
    noise = rng.normal(size=(12, 4, 8))
    twice = np.concatenate([noise, noise])
    with pytest.warns(kann.errors.FewPairsWarning):
        once, doubled = kann.fit(noise), kann.fit(twice)
    single, double = kann.trust(once, noise, folds=12), kann.trust(doubled, twice, folds=12)
    np.testing.assert_allclose(double.error, single.error, rtol=1e-6)
