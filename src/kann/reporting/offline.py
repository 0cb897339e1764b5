"""Pages that work offline: one file, no access to a network."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kann._format import percent
from kann._version import __version__
from kann.data.atomic_write import replacing
from kann.reporting.packing import compress, compress_json

try:
    import jinja2
    import plotly
except ImportError as error:
    raise ImportError("pages need plotly and jinja2: pip install 'kann[report]'") from error

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
"""It can reach no address, and runs only the scripts whose checksums it names."""


def page(
    template: str,
    *,
    style: str = "offline.css",
    scripts: Sequence[str] = (),
    content: dict[str, Any] | None = None,
    tables: Mapping[str, str] | None = None,
    **values: Any,
) -> str:
    """Return the page of a template as text.

    With ``scripts`` it holds them, Plotly, and ``content`` and ``tables`` compressed; without, it runs no script.
    Jinja escapes every value except our own style sheet and scripts.
    """
    script, packed, checksums = "\n".join(_file(f"{name}.js") for name in scripts), {}, "'none'"
    if scripts:
        charts = Path(plotly.__file__).with_name("package_data").joinpath("plotly.min.js").read_text(encoding="utf-8")
        packed = {"plotly": compress(charts.encode()), "content": compress_json(content)} | dict(tables or {})
        digests = (hashlib.sha256(text.encode()).digest() for text in (charts, script))
        checksums = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    loader = jinja2.PackageLoader("kann.reporting", "")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)
    environment.filters |= {"percent": percent, "points": points}
    values |= {"style": _file(style), "script": script, "packed": packed, "version": __version__}
    values["policy"] = POLICY.format(scripts=checksums)
    return environment.get_template(f"{template}.html.j2").render(values)


def write_page(path: Path, html: str) -> Path:
    """Write a page, whole or not at all, and return its path."""
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8", errors="replace")
    return path


def _file(name: str) -> str:
    return resources.files("kann.reporting").joinpath(name).read_text(encoding="utf-8")


def points(values: list[float], width: int, height: int, largest: float) -> str:
    """A line from left to right as an SVG polyline has it; ``largest`` is at the top and −``largest`` at the bottom.

    >>> points([0.0, 1.0], 10, 4, 1.0)
    '0.0,2.0 10.0,0.0'
    """
    step = width / max(1, len(values) - 1)
    places = [(i * step, height / 2 * (1 - value / largest)) for i, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
