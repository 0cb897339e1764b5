"""Fixtures of the tests of interventions."""

import pytest
import torch

from tests.recording.models import Tagger


@pytest.fixture(autouse=True)
def _seed(request):
    torch.manual_seed(request.config.getoption("--seed"))


@pytest.fixture
def model():
    return Tagger().eval()


@pytest.fixture
def words(rng):
    return torch.tensor(rng.integers(0, 20, size=(40, 9)))
