"""The examples in the documentation of recording run."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

from kann import recording

MODULES = [module.name for module in pkgutil.iter_modules(recording.__path__)]


def test_the_examples_on_the_page_about_recording_run():
    page = Path(__file__).parents[2] / "docs" / "recording.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 10
    assert failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name):
    module = importlib.import_module(f"kann.recording.{name}")
    result = doctest.testmod(module)
    assert not result.failed
    if name in ("recorder", "recurrent"):  # where the public functions are
        assert result.attempted
