"""The reference lists every public name, and each has an example that runs."""

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import kann
from kann.reporting import plots

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
MODULES = ("depth", "errors", "features", "plots", "recording", "zoo")
NAMES = [name for name in kann.__all__ if name not in MODULES]
FEATURES = ("Components", "Fourier", "Inputs", "Products", "Squares", "Tokens")
PLOTS = [name for name, thing in vars(plots).items() if inspect.isfunction(thing) and name.startswith("draw_")]


def text_of(page="*"):
    return "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob(f"{page}.md"))


def documented():
    return set(re.findall(r"^\.\. auto\w+:: kann\.([\w.]+)$", text_of(), flags=re.MULTILINE))


def test_the_reference_has_every_public_name():
    expected = set(NAMES) | {f"features.{name}" for name in FEATURES} | {f"plots.{name}" for name in PLOTS}
    expected |= {f"depth.{name}" for name in kann.depth.__all__}
    assert expected <= documented()


@pytest.mark.parametrize("name", sorted(documented()))
def test_a_name_of_the_reference_exists(name):
    pkgutil.resolve_name(f"kann.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    assert ">>> " in getattr(kann, name).__doc__  # tests/test_package.py runs it


@pytest.mark.parametrize("name", FEATURES)
def test_features_have_an_example(name):
    assert ">>> " in getattr(kann.features, name).__doc__


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_has_an_example_in_a_cell_that_runs_when_the_manual_is_built(name):
    cells = re.findall(r"^```\{code-cell\}.*?^```$", text_of("plots"), flags=re.MULTILINE | re.DOTALL)
    assert any(f"plots.{name}(" in cell for cell in cells)


@pytest.mark.parametrize("page", ["AGENTS.md", "llms.txt"])
def test_links_of_pages_for_assistants_exist(page):
    root = REFERENCE.parents[1]
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (root / page).read_text(encoding="utf-8"))
    assert links
    assert not [link for link in links if not (root / link).exists()]
