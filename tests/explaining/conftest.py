"""Fixtures of the tests of explanations: each network is explained once."""

import pytest
import torch

from tests import flipflop
from tests.explaining import networks


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def trained_flip_flop():
    """A GRU that remembers three bits; weights/make.py trained it."""
    return networks.trained(flipflop.FlipFlop("gru", 3), "flip_flop")
