"""One seed for all tests, which can be turned: ``pytest --seed 7``."""

import numpy as np
import pytest


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the random numbers in tests")


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("--seed"))
