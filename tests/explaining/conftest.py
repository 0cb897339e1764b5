"""Fixtures of the tests of explanations: each network is explained once."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import flipflop


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def trained_flip_flop():
    """A GRU that remembers three bits; weights/make.py trained it."""
    network = flipflop.FlipFlop("gru", 3)
    network.load_state_dict(load_file(Path(__file__).parent / "weights" / "flip_flop.safetensors"))
    return network.eval()
