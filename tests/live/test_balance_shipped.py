"""Balanced coordinates of the networks that ship with the package."""

import numpy as np
import pytest
import torch

import kann
from kann import zoo

pytest.importorskip("safetensors")


def test_one_coordinate_of_the_sentiment_network():
    network, rng = zoo.load("sentiment").network, np.random.default_rng(0)
    words = [torch.tensor(rng.integers(2, network.words, size=n)) for n in rng.integers(8, 24, size=96)]
    balance = kann.balance(network, words, progress=False)
    assert balance.count_interval == (1, 1)  # 1, 0.1, 0.05, … on words at random; 1, 0.04, 0.03, … on reviews
    states = kann.record(network, words, inputs=True, progress=False)
    koopman = kann.fit(states, basis=balance, rank=1, driven=True)
    assert 0.9 < koopman.eigenvalues[0].real < 1.05  # a memory
    with torch.no_grad():
        logits = np.array([float(network(each[None])) for each in words])
    last = states.values[states.starts + states.lengths - 1]
    assert abs(np.corrcoef(balance.coordinates(last)[:, 0], logits)[0, 1]) > 0.9


def test_the_autoencoder_needs_many_coordinates():
    shipped = zoo.load("ecg")
    beats = torch.tensor(shipped.beats.normal, dtype=torch.float32)
    balance = kann.balance(shipped.network, beats, layer="encoder", progress=False)
    assert balance.dim == 128  # h and c
    assert np.sum(balance.values > 0.05) > 5
