"""How Sphinx builds the manual: `make docs` writes it to docs/build/html, which opens from disk."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "kann"
author = "the authors of kann"
version = release = re.findall('"(.*)"', (HERE / "../src/kann/_version.py").read_text())[-1]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
    "notebooks",
    "sources",
]
exclude_patterns = ["build"]

html_theme = "furo"
html_title = f"kann {version}"
html_static_path = ["static"]
html_css_files = ["manual.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# A page that is opened from disk may not fetch others, so results of a search come without an excerpt of the page.
html_show_search_summary = False
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Notebooks run when they are new, one after the other: their cache bears no two writers. A cell that fails ends it all.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "build" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
# Defaults are those of signatures: the source of kann.distance and kann.compare has them in one place for both.
autodoc_preserve_defaults = False
autodoc_typehints = "none"
default_role = "py:obj"  # `kann.fit` in a docstring is a link to it
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
