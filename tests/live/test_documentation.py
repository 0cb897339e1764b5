"""The examples in docstrings run."""

import doctest

import pytest

from kann.analysis import live_effects
from kann.live import interventions, measuring


@pytest.mark.parametrize("module", [interventions, measuring, live_effects])
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
