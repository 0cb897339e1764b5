"""Recipes for other libraries run where these are installed."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "keras_jax.md"
LONGEST = 10


@pytest.mark.parametrize(("package", "name"), [("keras", "Keras"), ("jax", "JAX")])
def test_recipes_for_other_libraries_run_where_these_are_installed(package, name, monkeypatch):
    recipe = PAGE.read_text(encoding="utf-8").split(f"# Not run: needs {name}\n")[1].split("```")[0]
    assert len([line for line in recipe.splitlines() if line]) <= LONGEST
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip(package)
    names = {}
    exec(recipe, names)  # noqa: S102
    assert names["states"].shape == (32, 20, 8)
    assert names["koopman"].dim == 8
