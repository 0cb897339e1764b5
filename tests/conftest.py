"""One seed for all tests, which can be turned: ``pytest --seed 7``."""

import os

import jaxtyping
import numpy as np
import pytest
from hypothesis import settings

from tests import type_checks

type_checks.install()

# Other programs may use the processor: no test has a time limit.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Some virtual machines announce AMX and forbid it: torch then dies of an illegal instruction in half precision.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the random numbers in tests")
    parser.addoption("--fuzz-seed", type=int, default=0, help="seed of tests/fuzz; -1 draws one")
    parser.addoption("--fuzz-cases", type=int, default=400, help="how many damaged files to read")
    parser.addoption("--fuzz-arguments", type=int, default=200, help="how many wrong arguments to pass")
    parser.addoption("--fuzz-kills", type=int, default=10, help="how often to kill a process that saves")
    parser.addoption("--fuzz-processes", type=int, default=1, help="in how many processes files are damaged and read")


def pytest_runtest_setup():
    type_checks.seen.clear()


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
