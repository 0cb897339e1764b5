"""How much is damaged, and from which seed."""

import random
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, kw_only=True)
class Fuzz:
    """The options of the command line."""

    seed: int
    cases: int
    arguments: int
    kills: int
    processes: int


def pytest_configure(config):
    if config.getoption("--fuzz-seed") < 0:
        config.option.fuzz_seed = random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="session")
def fuzz(request, pytestconfig):
    """The options, and the seed printed where the failure of a test shows it."""
    names = ("seed", "cases", "arguments", "kills", "processes")
    chosen = Fuzz(**{name: pytestconfig.getoption(f"--fuzz-{name}") for name in names})
    print(f"--fuzz-seed={chosen.seed}")  # noqa: T201
    return chosen
