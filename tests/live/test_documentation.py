"""The examples in docstrings run."""

import doctest
from pathlib import Path

import pytest

from kann.analysis import live_effects
from kann.live import interventions, measuring


@pytest.mark.parametrize("module", [interventions, measuring, live_effects])
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_the_examples_on_the_page_about_depth_run():
    page = Path(__file__).parents[2] / "docs" / "depth.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 5
    assert failed == 0
