"""Fixtures of the tests of explanations: each network is explained once."""

import pytest
import torch
from torch import nn

from tests import flipflop


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def trained_flip_flop():
    """A GRU that has learnt three bits, in half the time that `flipflop.train` takes, and new trials."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = flipflop.FlipFlop("gru", 3)
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=200)
    for _ in range(200):
        inputs, targets = flipflop.trials(3, 32, 25, generator=generator)
        loss = nn.functional.mse_loss(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    assert flipflop.accuracy(network, seed=0) > 0.99
    return network.eval()
