"""How much is damaged, and from which seed."""

import random
from dataclasses import dataclass
from pathlib import Path

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


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.fuzz)


@pytest.fixture(scope="session")
def fuzz(pytestconfig):
    """The options, and the seed printed where the failure of a test shows it."""
    names = ("seed", "cases", "arguments", "kills", "processes")
    chosen = Fuzz(**{name: pytestconfig.getoption(f"--fuzz-{name}") for name in names})
    print(f"--fuzz-seed={chosen.seed}")  # noqa: T201
    return chosen
