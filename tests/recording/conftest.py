"""Fixtures of the tests of recording."""

import pytest
import torch

from tests.recording.models import Tagger


@pytest.fixture(autouse=True)
def _seed(request):
    torch.manual_seed(request.config.getoption("--seed"))


@pytest.fixture
def model():
    return Tagger()


@pytest.fixture
def words(rng):
    return [torch.tensor(rng.integers(0, 20, size=n)) for n in (4, 7, 1, 5, 3)]
