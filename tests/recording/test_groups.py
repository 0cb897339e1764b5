"""Moments of groups of sequences, recorded at once."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.errors import KannError
from kann.recording import sinks as grouped
from tests.recording.models import Tagger


@pytest.fixture
def many(rng):
    return [torch.tensor(rng.integers(0, 20, size=n)) for n in rng.integers(1, 30, size=37)]


def assert_same(ours, theirs):
    """The same counts, and sums that differ by the order of adding only."""
    for name in ("sequences", "states", "pairs"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("sum_h", "sum_x", "sum_y", "hh", "xx", "xy", "yy", "sum_u", "uu", "xu", "uy"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None) == (other is None), name
        if mine is not None:
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-9, atol=1e-9, err_msg=name)


def of_sequences(states, chosen):
    return kann.Moments.of(states[np.asarray(chosen)])


@pytest.mark.parametrize("block", [1, 40, 10**6])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_whole_sequences_are_dealt_out_evenly_whatever_the_batches(many, batch_size, block, monkeypatch):
    monkeypatch.setattr(grouped, "block_rows", lambda values, width: block)
    model = Tagger().double()
    states = kann.record(model, many, inputs=True)
    groups = kann.recording.record_grouped_moments(model, many, inputs=True, groups=4, batch_size=batch_size)
    held, expected = [0] * 4, [[] for _ in range(4)]
    for i, n in enumerate(states.lengths.tolist()):  # each to the group that has fewest pairs so far
        least = held.index(min(held))
        held[least] += n - 1
        expected[least].append(i)
    assert len(groups) == 4
    for found, chosen in zip(groups, expected, strict=True):
        assert_same(found, of_sequences(states, chosen))
    assert max(held) - min(held) < 30
    assert_same(sum(groups), kann.Moments.of(states))


@pytest.mark.parametrize("kind", [list, np.array])
def test_labels_give_a_group_each_in_the_order_of_appearance(many, kind):
    model = Tagger().double()
    states = kann.record(model, many)
    labels = ["bob", "ann", "cid"] * 12 + ["ann"]
    groups = kann.recording.record_grouped_moments(model, many, groups=kind(labels), batch_size=5)
    assert len(groups) == 3
    for name, found in zip(("bob", "ann", "cid"), groups, strict=True):
        assert_same(found, of_sequences(states, np.array(labels) == name))


def test_groups_can_be_trusted_with_as_they_are(many):
    model = Tagger().double()
    groups = kann.recording.record_grouped_moments(model, many, groups=5)
    koopman = kann.fit(sum(groups), rank=3)
    assert kann.trust(koopman, groups).folds == 5


def test_fewer_sequences_than_groups_leave_empty_moments(many):
    groups = kann.recording.record_grouped_moments(Tagger(), many[:3], groups=5)
    assert [moments.sequences for moments in groups] == [1, 1, 1, 0, 0]
    assert sum(groups).sequences == 3


def test_every_layer_can_be_grouped(many):
    model = Tagger(layers=2).double()
    whole = kann.recording.record_layer_moments(model, many, layer="rnn.*")
    assert list(whole) == ["rnn.l0", "rnn.l1"]
    for name, moments in whole.items():
        groups = kann.recording.record_grouped_moments(model, many, layer=name, groups=3)
        assert len(groups) == 3
        assert_same(sum(groups), moments)
    with pytest.raises(KannError, match="several layers"):
        kann.recording.record_grouped_moments(model, many, layer="rnn.*", groups=3)


def test_along_depth_the_positions_of_a_sequence_stay_together():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    data = torch.randn(7, 5, 4, dtype=torch.float64)
    labels = [0, 1, 2, 0, 1, 2, 0]
    options = {"layer": ["0", "1", "2"], "axis": "depth"}
    groups = kann.recording.record_grouped_moments(model, data, groups=labels, batch_size=3, **options)
    for label, found in enumerate(groups):
        chosen = data[np.array(labels) == label]
        assert_same(found, kann.recording.record_moments(model, chosen, **options))
    dealt = kann.recording.record_grouped_moments(model, data, groups=3, batch_size=2, **options)
    assert [moments.sequences for moments in dealt] == [15, 10, 10]  # five positions for each sequence


def test_with_a_limit_later_labels_are_not_used(many):
    groups = kann.recording.record_grouped_moments(Tagger(), many, groups=[0, 1] * 10, max_sequences=4, batch_size=3)
    assert [moments.sequences for moments in groups] == [2, 2]


def test_nan_is_named_with_the_number_of_the_sequence_in_the_data():
    data = torch.randn(9, 6, 4)
    data[5, 2] = torch.nan
    with pytest.raises(KannError, match="sequence 5"):
        kann.recording.record_grouped_moments(nn.Sequential(nn.Identity()), data, layer="0", groups=4, batch_size=2)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (0, "groups=0 leaves nowhere to put sequences; pass groups>=1"),
        (2.5, "groups=2.5 is not a whole number"),
        ("ann", "groups='ann' is a text; pass a number of groups, or a label"),
        ([[1]] * 5, "groups holds labels that cannot be compared"),
        ([1] * 4, "groups has 4 labels and the data hold more sequences"),
        ([1] * 6, "groups has 6 labels for 5 sequences; pass one for each sequence"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_groups_that_cannot_be_made_are_refused(model, words, groups, message):
    with pytest.raises(KannError, match=message):
        kann.recording.record_grouped_moments(model, words, groups=groups)
