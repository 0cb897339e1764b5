"""What is changed in pages and docstrings before Sphinx reads them."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "docs" / "extensions" / "sources.py"


@pytest.fixture(scope="module")
def sources():
    spec = importlib.util.spec_from_file_location("sources", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_bars_are_escaped_but_not_in_code_and_examples(sources):
    lines = ["The modulus |λ| of ``|h B V|``.", "", ">>> abs(x | y)", "|λ| = 1", "", "and |λ|"]
    sources.escape_bars(None, "", "", None, None, lines)
    assert lines == [r"The modulus \|λ\| of ``|h B V|``.", "", ">>> abs(x | y)", "|λ| = 1", "", r"and \|λ\|"]


def test_links_out_of_the_manual_lead_to_its_own_pages(sources):
    source = ["see [notes](../CONTRIBUTING.md) and [more](../CHANGELOG.md)"]
    sources.turn_links(None, "page", source)
    assert source == ["see [notes](contributing.md) and [more](changelog.md)"]
