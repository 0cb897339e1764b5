# models in tests say what they are by their names
"""The examples in the documentation of recording run."""

import doctest
from pathlib import Path


def test_the_examples_in_the_documentation_run():
    page = Path(__file__).parents[2] / "docs" / "recording.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 10
    assert failed == 0
