"""Data that look predictable and have no mode of their own: none may be trusted."""

import numpy as np
import pytest
import torch

import kann
from kann.fitting.folds import assign_folds


def trusted(states, **options):
    return kann.trust(kann.fit(states, **options), states).trusted


def test_sequences_that_only_differ_in_their_mean(rng):
    states = kann.States.from_padded(rng.normal(size=(40, 1, 5)) + 0.01 * rng.normal(size=(40, 30, 5)))
    assert trusted(states) == ()
    groups = [kann.Moments.of(states[i::10]) for i in range(10)]
    assert kann.trust(kann.fit(states), groups).trusted == ()


def test_inputs_that_are_the_next_state(rng):
    noise = rng.normal(size=(40, 30, 5))
    assert trusted(kann.States.from_padded(noise, inputs=noise), driven=True) == ()


def test_a_network_without_memory(rng):
    inputs = rng.normal(size=(40, 30, 5))
    values = inputs @ rng.normal(size=(5, 4)) + 0.01 * rng.normal(size=(40, 30, 4))
    assert trusted(kann.States.from_padded(values, inputs=inputs), driven=True) == ()


def test_sequences_of_two_states(rng):
    assert trusted(rng.normal(size=(60, 1, 3)) * np.array([0.9, 0.6, 0.3]) ** np.arange(2)[:, None]) == ()


def test_smoothed_noise(rng):
    total = np.cumsum(np.pad(rng.normal(size=(40, 900, 4)), ((0, 0), (1, 0), (0, 0))), axis=1)
    assert trusted(total[:, 300:] - total[:, :-300]) == ()


def test_groups_of_tensors_are_told_apart_by_their_number_and_none_is_no_group():
    lengths = np.full(12, 5)
    folds = assign_folds(lengths, folds=3, groups=[torch.tensor(i % 3) for i in range(12)])
    assert len({tuple(folds[i::3]) for i in range(3)}) == 3
    assert all(len(set(folds[i::3].tolist())) == 1 for i in range(3))
    for nothing in (None, float("nan")):
        with pytest.raises(kann.KannError, match="groups holds None or NaN"):
            assign_folds(lengths, folds=3, groups=[nothing, *range(11)])
