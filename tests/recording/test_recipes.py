"""Recipes for other libraries run where these are installed."""

from pathlib import Path

import pytest


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
