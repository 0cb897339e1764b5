"""What is changed in the text of pages and docstrings before Sphinx reads it, so that authors need not think of it."""

import re
from typing import Any

# Markdown beside README, and the pages that include it: links work in the manual and on a code host.
OUTSIDE = {f"../{name.upper()}.md": f"{name}.md" for name in ("contributing", "changelog", "security")}
BAR_OR_CODE = re.compile(r"``.*?``|\|")


def turn_links(_app: Any, _name: str, source: list[str]) -> None:
    """Lead links out of ``docs`` to the page that includes the file."""
    for outside, page in OUTSIDE.items():
        source[0] = source[0].replace(f"({outside})", f"({page})")


def _without_bars(line: str) -> str:
    """A line of a docstring whose bars are bars: for reStructuredText ``|λ|`` is a substitution."""
    return BAR_OR_CODE.sub(lambda found: found[0].replace("|", r"\|") if found[0] == "|" else found[0], line)


def escape_bars(_app: Any, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]) -> None:
    """Escape the bars of moduli in a docstring, but for its examples, each of which ends with an empty line."""
    in_example = False
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if not in_example:
            lines[number] = _without_bars(line)


def setup(app: Any) -> dict[str, bool]:
    """Have pages and docstrings looked at before they are read."""
    app.connect("source-read", turn_links)
    app.connect("autodoc-process-docstring", escape_bars)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
