"""The page for developers names modules that exist."""

import re

from tests.documentation.blocks import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "kann"


def test_every_file_and_folder_that_is_named_exists():
    named = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE)
    assert len(named) > 30
    absent = [
        name
        for name in named
        if not any((place / name).exists() for place in (PACKAGE, PACKAGE.parent, ROOT, PACKAGE / "reporting"))
    ]
    assert absent == []


def test_every_package_is_described():
    packages = {place.parent.name for place in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if f"| `{name}` |" not in PAGE} == set()
