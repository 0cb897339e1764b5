"""Offer every tutorial as a notebook, with a first cell that installs kann, as Colab and similar services need."""

import re
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook

FOLDER = "tutorials"
INSTALL = "%pip install --quiet 'kann[cli]'"
LINK = '\n<p><a href="{name}.ipynb" download>Download this tutorial as a notebook</a>, for Jupyter or Colab.</p>\n'
HEADING = re.compile(r"^# .*$", re.MULTILINE)
ROLE = re.compile(r"\{\w+\}(`[^`]+`)")
LINK_TO_PAGE = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def _is_notebook(text: str) -> bool:
    return text.startswith("---\nfile_format: mystnb")


def add_link(_app: Any, name: str, source: list[str]) -> None:
    """Put a link to the notebook below the title of a tutorial."""
    if name.startswith(f"{FOLDER}/") and _is_notebook(source[0]):
        link = LINK.format(name=name.removeprefix(f"{FOLDER}/"))
        source[0] = HEADING.sub(lambda heading: heading[0] + "\n" + link, source[0], count=1)


def notebook_of(text: str) -> nbformat.NotebookNode:
    """Convert a page to a notebook, with a cell that installs kann, and without links to other pages."""
    notebook = read_myst_markdown_notebook(text)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK_TO_PAGE.sub(r"\1", ROLE.sub(r"\1", cell.source))
    notebook.cells.insert(0, nbformat.v4.new_code_cell(INSTALL))
    return notebook


def write_notebooks(app: Any, error: Exception | None) -> None:
    """Write the notebooks next to the pages, once these are built."""
    if error is not None or app.builder.format != "html":
        return
    for page in sorted(Path(app.srcdir, FOLDER).glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if _is_notebook(text):
            nbformat.write(notebook_of(text), Path(app.outdir, FOLDER, f"{page.stem}.ipynb"))


def setup(app: Any) -> dict[str, bool]:
    """Connect both steps."""
    app.connect("source-read", add_link)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
