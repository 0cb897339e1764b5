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


@pytest.mark.parametrize("package", ["keras", "jax"])
def test_recipes_for_other_libraries_run_where_these_are_installed(package, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip(package)
    page = (Path(__file__).parents[2] / "docs" / "recording.md").read_text(encoding="utf-8")
    recipe = page.split(f"<!-- recipe: {package} -->\n```python\n")[1].split("```")[0]
    assert len(recipe.strip().splitlines()) <= 10 + 1  # an empty line after the imports
    names = {}
    exec(recipe, names)  # noqa: S102
    assert names["states"].shape == (32, 20, 8)
    assert names["koopman"].dim == 8
