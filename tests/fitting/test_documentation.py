"""The examples on the page about inputs that gate run."""

import doctest
from pathlib import Path

import pytest

from kann.fitting import monomials
from kann.paper.flipflop import task
from kann.stand_ins import module


def test_the_examples_on_the_page_run():
    page = Path(__file__).parents[2] / "docs" / "gates.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 5
    assert failed == 0


@pytest.mark.parametrize("documented", [monomials, module, task], ids=lambda part: part.__name__)
def test_the_examples_in_docstrings_run(documented):
    result = doctest.testmod(documented)
    assert result.attempted
    assert not result.failed
