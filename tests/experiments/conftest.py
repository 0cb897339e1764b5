"""Small networks on one thread: a second one gains nothing, and on a busy machine two of them wait for each other."""

import pytest
from kann_experiments.training import repeatable


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    with repeatable():
        yield
