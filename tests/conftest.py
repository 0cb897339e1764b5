"""One seed for all tests, which can be turned: ``pytest --seed 7``."""

import jaxtyping
import numpy as np
import pytest


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the random numbers in tests")


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("--seed"))


@pytest.fixture
def untyped():
    """Calls as users make them: without the type checks that the tests add, so that kann itself must refuse."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
