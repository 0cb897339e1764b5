"""Pages that work offline: one file, no access to a network."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kann._format import percent
from kann._version import __version__
from kann.reporting.packing import Packed, compress, compress_json

try:
    import jinja2
    import plotly
except ImportError as error:
    raise ImportError("pages need plotly and jinja2: pip install 'kann[report]'") from error

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
"""It can reach no address, and runs only what :func:`policy_for` lists."""


def page_with_charts(name: str, content: dict[str, Any], **values: Any) -> str:
    """The page of the template ``name.html.j2`` with its script ``name.js``, Plotly, and the content as packed JSON.

    Jinja escapes every value except our own style sheet and script.
    """
    script, charts = _file(f"{name}.js"), plotly_script()
    packed = {"plotly": compress(charts.encode()), "content": compress_json(content)}
    return _rendered(name, policy=policy_for(charts, script), script=script, packed=packed, **values)


def page_without_scripts(name: str, **values: Any) -> str:
    """The page of the template ``name.html.j2``, which runs no script at all."""
    return _rendered(name, policy=policy_for(), **values)


def policy_for(*scripts: str) -> str:
    """What a page with these scripts may do: run them, which their checksums name, and nothing else."""
    return POLICY.format(scripts=" ".join(map(_checksum, scripts)) or "'none'")


def plotly_script() -> str:
    """The script that draws charts, as Plotly's package holds it."""
    return Path(plotly.__file__).with_name("package_data").joinpath("plotly.min.js").read_text(encoding="utf-8")


def templates(folder: str = "") -> jinja2.Environment:
    """The templates in a folder of this package. They escape every value, and a value that is missing is an error."""
    loader = jinja2.PackageLoader("kann.reporting", folder)
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)


def _rendered(name: str, **values: Any) -> str:
    style = _file("offline.css")
    return templates().get_template(f"{name}.html.j2").render(style=style, version=__version__, **values)


def _file(name: str) -> str:
    return resources.files("kann.reporting").joinpath(name).read_text(encoding="utf-8")


def _checksum(script: str) -> str:
    """The checksum of a script, as a content security policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


SCRIPTS_BEFORE, SCRIPTS_AFTER = ("content", "formats", "charts"), ("saving", "start")
"""Scripts that those of the sections use, and scripts that use them."""


def page_of_sections(sections: Sequence[Any], content: dict[str, Any], tables: Mapping[str, Packed]) -> str:
    """Return the report as text. Jinja escapes every value except our own style sheet and script."""
    names = [*SCRIPTS_BEFORE, *(name for section in sections for name in section.scripts), *SCRIPTS_AFTER]
    script, charts = "\n".join(_file(f"scripts/{name}.js") for name in names), plotly_script()
    environment = templates("parts")
    environment.filters |= {"percent": percent, "points": points}
    packed = {"plotly": compress(charts.encode()), "content": compress_json(content)}
    packed |= {f"table-{name}": table.data for name, table in tables.items()}
    values = {"sections": sections, "page": content, "policy": policy_for(charts, script), "packed": packed}
    return environment.get_template("report.html.j2").render(style=_file("report.css"), script=script, **values)


def points(values: list[float], width: int, height: int, largest: float) -> str:
    """A line from left to right as an SVG polyline has it; ``largest`` is at the top and −``largest`` at the bottom.

    >>> points([0.0, 1.0], 10, 4, 1.0)
    '0.0,2.0 10.0,0.0'
    """
    step = width / max(1, len(values) - 1)
    places = [(i * step, height / 2 * (1 - value / largest)) for i, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
