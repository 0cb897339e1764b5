"""Networks that learned nothing, and noise: the sentences say that nothing can be concluded."""

import pytest
import torch
from torch import nn

import kann
from tests import flipflop
from tests.explaining import networks
from tests.explaining.networks import SEQUENCES, numbers, seeded, words


@pytest.mark.parametrize("seed", range(2))
def test_an_untrained_network(seed, generator):
    torch.manual_seed(seed)
    network = flipflop.FlipFlop("gru", 3).eval()
    x, _ = flipflop.trials(3, SEQUENCES, 20, generator=generator)
    found = kann.explain(network, x, progress=False)
    assert found.sentences[0].startswith("Nothing can be concluded")
    assert not any("Not to be concluded from this" in sentence for sentence in found.sentences)


def test_noise(generator):
    """States without any order: random vectors of random words."""
    network = seeded(lambda: nn.Sequential(nn.Embedding(40, 5), nn.Linear(5, 2)))
    data = torch.randint(0, 40, (SEQUENCES, 20), generator=generator)
    found = kann.explain(network, data, layer="0", progress=False)
    assert found.sentences[0].startswith("Nothing can be concluded about what the network remembers")
    assert found.trust.trusted == ()


def test_a_network_that_is_right_no_more_often_than_chance(generator):
    network = seeded(lambda: networks.Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)))
    labels = torch.arange(SEQUENCES) % 7 > 0  # six of seven are 1, which this network has never seen
    with torch.no_grad():
        network.head.weight.mul_(20)
    found = kann.explain(network, numbers(generator), labels=labels.long(), progress=False)
    assert found.sentences[0].startswith("Nothing can be concluded")
    assert found.accuracy[0] <= found.accuracy[1]


def test_a_network_whose_state_does_not_matter(generator):
    network = seeded(networks.Tagger)
    with torch.no_grad():
        network.head.weight.zero_()
    found = kann.explain(network, words(generator), progress=False)
    assert "held at the mean it decides all" in found.sentences[0]
