"""What pyproject.toml, the constraints and the citation say about the package agrees."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

import kann

ROOT = Path(__file__).parent.parent
TESTED_EXTRAS = ("zarr", "torch", "report", "dask", "cli", "onnx")
"""The extras that the tests need; tests of the others are left out where they are not installed."""


def lower_bounds():
    """The oldest version of each dependency that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in TESTED_EXTRAS]
    requirements = [Requirement(text) for group in (project["dependencies"], *extras) for text in group]
    return {
        requirement.name: str(requirement.specifier).removeprefix(">=")
        for requirement in requirements
        if requirement.name != "kann"
    }


def test_the_oldest_versions_that_are_allowed_are_those_that_are_tested():
    tested = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints-minimum.txt").read_text(), flags=re.MULTILINE))
    for name, oldest in lower_bounds().items():
        assert re.fullmatch(rf"{re.escape(oldest)}(\.0)*", tested[name]), (name, oldest, tested[name])


def test_citation_and_changelog_name_the_version():
    citation = (ROOT / "CITATION.cff").read_text()
    released = re.findall(r"^date-released: (\S+)$", citation, flags=re.MULTILINE)
    assert f"\nversion: {kann.__version__}\n" in citation
    assert f"version = {{{kann.__version__}}}" in (ROOT / "docs/citing.md").read_text()
    assert f"\n## {kann.__version__} - {released[0]}\n" in (ROOT / "CHANGELOG.md").read_text()
