"""The shipped network on a handful of sequences: the machinery works at its size."""

import numpy as np
import pytest
import torch

import kann
from kann import zoo

pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def shipped():
    """The network, sequences of random words, and what is known of its states."""
    network = zoo.load("sentiment").network
    rng = np.random.default_rng(0)
    words = [torch.tensor(rng.integers(2, network.words, size=n)) for n in rng.integers(8, 24, size=48)]
    states = kann.record(network, words, layer="recurrent", inputs=True, progress=False)
    return network, words, states


def test_everything_kept_leaves_the_logits_as_they_are(shipped):
    network, words, states = shipped
    koopman = kann.fit(states, basis="svd")
    assert koopman.rank > 200  # all directions that so few states tell apart from rounding
    with torch.no_grad():
        own = network(words[0][None])
        for fill in ("linear", "auto"):
            with kann.intervene(network, koopman, states, keep=range(len(koopman.modes)), fill=fill):
                np.testing.assert_allclose(network(words[0][None]), own, atol=1e-5)


def test_effects_of_its_modes(shipped):
    network, words, states = shipped
    koopman = kann.fit(states, basis="pca", driven=True, rank=16)
    found = kann.effects(network, words, koopman, states, counts=(1, 8), draws=1, progress=False)
    assert found.methods == ("modes", "pca", "readout", "random")
    for name in found.methods:
        assert ((found.kept_scores[name] == 0) | (found.kept_scores[name] == 1)).all()
    assert found.kept["modes"][1] >= found.none
    assert not network.training
