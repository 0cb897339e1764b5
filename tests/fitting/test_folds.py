"""Which sequences are held out together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kann.errors import KannError
from kann.fitting.folds import assign_folds


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=12, max_size=60), st.integers(3, 8), st.integers(0, 5))
def test_every_fold_has_pairs_and_none_has_more_than_one_sequence_too_many(lengths, folds, seed):
    lengths = np.array([2, 2, 2, 2, 2, 2, 2, 2, *lengths])
    fold_of = assign_folds(lengths, folds=folds, seed=seed)
    pairs = np.bincount(fold_of, weights=lengths - 1, minlength=folds)
    assert len(fold_of) == len(lengths)
    assert set(fold_of) == set(range(folds))
    assert pairs.min() > 0
    assert pairs.max() - pairs.min() <= lengths.max() - 1


def test_the_seed_decides_and_nothing_else():
    lengths = np.full(40, 10)
    first = assign_folds(lengths, folds=5, seed=3)
    np.testing.assert_array_equal(first, assign_folds(lengths, folds=5, seed=3))
    assert (first != assign_folds(lengths, folds=5, seed=4)).any()
    assert (first != np.arange(40) % 5).any()  # data in some order, such as by class, are mixed


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, tuple])
def test_sequences_of_a_group_are_held_out_together(kind, rng):
    lengths, groups = rng.integers(2, 9, 60), rng.integers(0, 13, 60)
    fold_of = assign_folds(lengths, folds=4, groups=kind(groups.tolist()))
    for group in np.unique(groups):
        assert len(set(fold_of[groups == group])) == 1
    assert set(fold_of) == {0, 1, 2, 3}


def test_groups_may_have_names():
    names = ["ann", "bob", "ann", "cid", "bob", "dan"]
    fold_of = assign_folds(np.full(6, 5), folds=3, groups=names)
    assert fold_of[0] == fold_of[2]
    assert fold_of[1] == fold_of[4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folds": 2}, "folds=2 gives no interval; pass folds>=3"),
        ({"folds": 2.5}, "folds=2.5 is not a whole number"),
        ({"folds": 5, "seed": -1}, "seed=-1 is negative"),
        ({"folds": 7}, r"6 sequences of two states or more cannot be held out in 7 folds; pass folds<=6$"),
        ({"folds": 3, "groups": [0, 0, 0, 1, 1, 1]}, "2 groups of two states .*3 folds are the least: record more"),
        ({"folds": 3, "groups": [0, 1, 2]}, "groups has 3 entries for 6 sequences; pass one for each sequence"),
        ({"folds": 3, "groups": 7}, "groups=7 is no list; pass one entry for each sequence"),
        ({"folds": 3, "groups": [[0], [1], [2], [0], [1], [2]]}, "groups holds entries that cannot be compared"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_folded_is_refused(arguments, message):
    with pytest.raises(KannError, match=message):
        assign_folds(np.full(6, 5), **arguments)


def test_sequences_of_one_state_hold_nothing_to_predict():
    with pytest.raises(KannError, match="2 sequences of two states or more cannot be held out in 3 folds"):
        assign_folds(np.array([1, 1, 5, 4, 1]), folds=3)


def test_a_first_token_that_all_texts_share_does_not_join_their_groups():
    groups = np.repeat(np.arange(4), 5)
    repeats = np.arange(20)
    repeats[::5] = 0  # the first sequence of each group is the same
    fold_of = assign_folds(np.full(20, 6), folds=4, groups=groups, repeats=repeats)
    assert all(len(set(fold_of[groups == group])) == 1 for group in range(4))
    assert set(fold_of) == {0, 1, 2, 3}


def test_groups_that_are_mostly_copies_of_each_other_cannot_be_held_out():
    groups, repeats = np.repeat(np.arange(4), 5), np.tile(np.arange(5), 4)
    with pytest.raises(KannError, match="1 different groups"):
        assign_folds(np.full(20, 6), folds=4, groups=groups, repeats=repeats)
