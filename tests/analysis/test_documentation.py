"""The examples on the page about trust run."""

import doctest
from pathlib import Path


def test_the_examples_on_the_page_about_trust_run():
    page = Path(__file__).parents[2] / "docs" / "trust.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 5
    assert failed == 0
