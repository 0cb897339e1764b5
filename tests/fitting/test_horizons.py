"""Errors several steps ahead on held-out sequences, beside `koopman.rollout` and loops."""

from dataclasses import replace

import numpy as np
import pytest

import kann
from kann.data import reduction as blocks
from kann.errors import KannError
from kann.fitting import horizons
from kann.fitting.folds import assign_folds
from kann.fitting.horizons import enough_sequences, held_out_errors, powers_of_two
from tests.systems import noisy_states, run, stable_matrix

AHEAD = (1, 2, 3, 5, 8, 13)


@pytest.fixture
def ragged(rng):
    """A driven system in noise, in sequences of 1 to 20 states."""
    lengths = [20, 3, 1, 17, 9, 2, 12, 6]
    matrix, drive = stable_matrix(rng, 4), rng.normal(size=(2, 4))
    values, inputs = [], []
    for n in lengths:
        u = rng.normal(size=(n, 2))
        push = u @ drive + 0.2 * rng.normal(size=(n, 4)) + 0.5
        values.append(run(matrix, rng.normal(size=(1, 4)), n, push[None])[0])
        inputs.append(u)
    return kann.States.from_sequences(values, inputs=inputs)


def weights_of(koopman):
    """C, D and c, one below the other."""
    drive = np.zeros((0, koopman.rank)) if koopman.drive is None else koopman.drive
    offset = np.zeros(koopman.rank) if koopman.offset is None else koopman.offset
    return np.vstack([koopman.matrix, drive, offset])


def by_hand(states, koopmans, fold_of, horizon):
    """Errors of predictions and of copying, as fractions of the variance, one state after the other."""
    reached, missed, copied = [], 0.0, 0.0
    for i, h in enumerate(states):
        koopman = koopmans[fold_of[i]]
        for t in range(len(h) - horizon):
            inputs = None
            if koopman.drive is not None:
                inputs = states.inputs[states.span(i)][t + 1 : t + horizon + 1]
            predicted = koopman.rollout(h[t], horizon, inputs=inputs)[-1]
            missed += np.sum((predicted - h[t + horizon]) ** 2)
            copied += np.sum((h[t] - h[t + horizon]) ** 2)
            reached.append(h[t + horizon])
    variance = np.sum((np.array(reached) - np.mean(reached, axis=0)) ** 2)
    return missed / variance, copied / variance, len(reached)


@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("options", [{}, {"driven": True}, {"offset": False, "basis": "svd"}])
def test_errors_are_those_of_rolling_out_from_every_state(ragged, options, rank):
    fold_of = assign_folds(ragged.lengths, folds=3)
    whole = kann.fit(ragged, rank=rank, **options)
    # The same basis for all, and another operator for each fold, so that a mistaken fold shows.
    fits = [kann.fit(ragged[fold_of != fold], **(options | {"basis": whole.basis})) for fold in range(3)]
    others = [replace(other, mean=np.zeros(4), decoder=None) for other in fits]  # decode with Bᵀ, as named bases do
    found = held_out_errors(
        ragged,
        fold_of,
        [[weights_of(other) for other in others]],
        basis=whole.basis,
        mean=others[0].mean,
        horizons=AHEAD,
        driven="driven" in options,
    )
    assert found.horizons.tolist() == list(AHEAD)
    for place, horizon in enumerate(AHEAD):
        missed, copied, count = by_hand(ragged, others, fold_of, horizon)
        np.testing.assert_allclose(found.operator[0, place], missed, rtol=1e-8)
        np.testing.assert_allclose(found.copying[place], copied, rtol=1e-8)
        assert found.count[place] == count


def test_several_operators_are_compared_in_one_reading_and_smaller_ones_use_leading_columns(rng):
    states = kann.States.from_padded(noisy_states(rng, sequences=9, steps=12, d=5))
    fold_of = assign_folds(states.lengths, folds=3)
    koopman = kann.fit(states)
    small = np.vstack([koopman.matrix[:2, :2], koopman.offset[:2]])
    arguments = {"basis": koopman.basis, "mean": koopman.mean, "horizons": (1, 4), "driven": False}
    both = held_out_errors(states, fold_of, [[weights_of(koopman)] * 3, [small] * 3], **arguments)
    alone = held_out_errors(states, fold_of, [[small] * 3], **(arguments | {"basis": koopman.basis[:, :2]}))
    np.testing.assert_allclose(both.operator[1], alone.operator[0], rtol=1e-9)
    assert both.operator.shape == (2, 2)


def test_horizons_that_no_sequence_reaches_are_left_out_and_the_mean_has_an_error_of_one(rng):
    states = kann.States.from_padded(noisy_states(rng, sequences=6, steps=5, d=3))
    fold_of = assign_folds(states.lengths, folds=3)
    nothing = np.zeros((4, 3))
    reached = np.concatenate([h[1:] for h in states])
    found = held_out_errors(
        states, fold_of, [[nothing] * 3], basis=np.eye(3), mean=reached.mean(axis=0), horizons=(1, 4, 5), driven=False
    )
    assert found.horizons.tolist() == [1, 4]
    np.testing.assert_allclose(found.operator[0, 0], 1.0, rtol=1e-9)


def test_small_blocks_leave_out_what_crosses_their_ends_and_nothing_else(ragged, monkeypatch):
    fold_of = assign_folds(ragged.lengths, folds=3)
    koopman = kann.fit(ragged, driven=True)
    arguments = {"basis": koopman.basis, "mean": koopman.mean, "horizons": (1, 2), "driven": True}
    whole = held_out_errors(ragged, fold_of, [[weights_of(koopman)] * 3], **arguments)
    monkeypatch.setattr(blocks, "block_rows", lambda *arguments: 20)  # as long as the longest sequence
    pieces = held_out_errors(ragged, fold_of, [[weights_of(koopman)] * 3], **arguments)
    np.testing.assert_allclose(pieces.operator, whole.operator, rtol=1e-9)
    np.testing.assert_array_equal(pieces.count, whole.count)


def test_sequences_of_one_state_cannot_be_predicted():
    states = kann.States.from_sequences([np.ones((1, 2))] * 4)
    step = np.vstack([np.eye(2), np.zeros(2)])
    with pytest.raises(KannError, match="no state can be predicted: every sequence has one step only"):
        held_out_errors(
            states, np.zeros(4, int), [[step]], basis=np.eye(2), mean=np.zeros(2), horizons=(1,), driven=False
        )


def test_as_many_sequences_are_used_as_hold_enough_states(monkeypatch):
    monkeypatch.setattr(horizons, "STATES_TO_PREDICT", 50)
    lengths = np.array([1, 20, 20, 20, 20, 1, 20])
    chosen = enough_sequences(lengths, seed=0)
    assert lengths[chosen].tolist() == [20, 20, 20]  # the first sum of at least 50, without those of one state
    np.testing.assert_array_equal(chosen, np.sort(chosen))
    assert len(enough_sequences(np.array([3, 1, 4]), seed=0)) == 2  # all there are


def test_powers_of_two_go_as_far_as_sequences_do():
    assert powers_of_two(np.array([10]), largest=64) == [1, 2, 4, 8]
    assert powers_of_two(np.array([8]), largest=64) == [1, 2, 4]
    assert powers_of_two(np.array([1000]), largest=64) == [1, 2, 4, 8, 16, 32, 64]
    assert powers_of_two(np.array([2]), largest=64) == [1]


def test_a_horizon_that_hardly_any_sequence_reaches_is_left_out():
    assert powers_of_two(np.array([30, 5, 5, 5]), largest=64) == [1, 2, 4]  # one sequence is not enough,
    assert powers_of_two(np.array([30, 30, 5, 5]), largest=64) == [1, 2, 4, 8, 16]  # two are,
    lengths = np.repeat([30, 5], [9, 91])
    assert powers_of_two(lengths, largest=64) == [1, 2, 4]  # but not two of a hundred
