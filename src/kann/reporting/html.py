"""The file itself: numbers, style sheet and scripts in one HTML page that connects to nothing."""

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from kann.reporting.packing import Packed, compress, compress_json
from kann.reporting.units import percent

try:
    import jinja2
    import plotly
except ImportError as error:
    raise ImportError("reports need plotly and jinja2: pip install 'kann[report]'") from error

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
"""What a page may do: run the scripts with these checksums, and nothing else. It can reach no address."""

SCRIPTS = (
    "content",
    "formats",
    "charts",
    "effects",
    "spectrum",
    "mode_table",
    "words",
    "lines",
    "states",
    "errors",
    "saving",
    "start",
)
"""The parts of the page's own script, in the order in which they are joined: each uses those before it."""


def as_html(page: dict[str, Any], tables: Mapping[str, Packed]) -> str:
    """The page as text. Jinja escapes every value except our own style sheet and script."""
    folder = resources.files("kann.reporting")
    style = folder.joinpath("report.css").read_text(encoding="utf-8")
    script = joined_scripts()
    plotly_script = (
        Path(plotly.__file__).with_name("package_data").joinpath("plotly.min.js").read_text(encoding="utf-8")
    )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.PackageLoader("kann.reporting", "parts")
    )
    environment.filters |= {"percent": percent, "points": points}
    packed = {"plotly": compress(plotly_script.encode()), "content": compress_json(page)}
    packed |= {f"table-{name}": table.data for name, table in tables.items()}
    policy = POLICY.format(scripts=f"{_checksum(plotly_script)} {_checksum(script)}")
    template = environment.get_template("report.html.j2")
    return template.render(page=page, policy=policy, style=style, script=script, packed=packed)


def joined_scripts() -> str:
    """The page's own script."""
    folder = resources.files("kann.reporting").joinpath("scripts")
    return "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)


def points(values: list[float], width: int, height: int, largest: float) -> str:
    """A line from left to right as an SVG polyline has it; ``largest`` is at the top and −``largest`` at the bottom.

    >>> points([0.0, 1.0], 10, 4, 1.0)
    '0.0,2.0 10.0,0.0'
    """
    step = width / max(1, len(values) - 1)
    places = [(i * step, height / 2 * (1 - value / largest)) for i, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _checksum(script: str) -> str:
    """The checksum of a script, as a content security policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
