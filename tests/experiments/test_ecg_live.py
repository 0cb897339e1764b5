"""Live tests of an autoencoder on beats of our own making: the one that ships with kann."""

import numpy as np
import pytest
import torch
from kann_experiments.ecg import live
from kann_experiments.ecg.analysis import QUANTITIES
from kann_experiments.ecg.modes import dominant_pairs
from kann_experiments.ecg.task import THRESHOLD, Split

import kann
from kann import zoo


@pytest.fixture(scope="module")
def parts():
    beats = torch.as_tensor(zoo.load("ecg").beats.values, dtype=torch.float32)  # 64 normal, then 64 anomalous ones
    return Split(train=beats[:32], validation=beats[32:48], test=beats[48:64], anomalous=beats[64:])


@pytest.fixture(scope="module")
def network():
    return zoo.load("ecg").network


def test_held_out_beats_are_of_both_kinds_in_turn(parts):
    found = live.held_out_beats(parts)
    assert found.values.shape == (64, 140)
    assert found.is_normal.tolist() == [True, False] * 32
    torch.testing.assert_close(found.values[::2], torch.cat([parts.validation, parts.test]))
    torch.testing.assert_close(found.values[1::2], parts.anomalous[:32])


def test_with_every_mode_kept_the_network_is_itself(network, parts):
    states = kann.record(network, parts.train, layer="encoder", progress=False)
    koopman = kann.fit(states, basis="svd", offset=False)
    beats = live.held_out_beats(parts)
    found = live.pair_numbers(network, parts.train, beats, koopman, tuple(koopman.modes))
    own = live._losses(network, beats.values)
    assert found["live_pairs_pairs"] == found["live_pairs_pca"] == 1.0
    # States outside the recorded range are clipped to it, and float32 rounds.
    assert found["live_pairs_pairs_loss"] == pytest.approx(own[beats.is_normal].mean(), rel=0.05)
    assert found["live_pairs_removed_pairs"] < 1.0


def test_modes_and_the_papers_pairs_are_compared_with_as_many_directions(network, parts, monkeypatch):
    monkeypatch.setattr(live, "DRAWS", 1)
    states = kann.record(network, parts.test, layer="encoder", progress=False)
    koopman = kann.fit(states, basis="paper")
    found = live.live_numbers(network, parts, koopman, dominant_pairs(koopman, states))
    assert found.keys() <= {quantity.key for quantity in QUANTITIES}
    assert all(np.isfinite(value) for value in found.values())
    assert {f"live_pairs_{name}" for name in live.PAIRS} <= found.keys()
    assert found["live_beats"] == 64  # nothing is searched, so all are judged
    assert found["live_loss"] < THRESHOLD
    assert found["live_pca_16_loss"] < found["live_pca_2_loss"]
    assert found["live_pca_16"] >= found["live_none"]
