"""The examples in docstrings run."""

import doctest

import pytest

from kann.live import interventions, measuring, result


@pytest.mark.parametrize("module", [interventions, measuring, result])
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
