"""The file itself: numbers, style sheet and scripts in one HTML page that connects to nothing."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from kann.reporting.offline import plotly_script, policy_for, templates
from kann.reporting.packing import Packed, compress, compress_json
from kann.reporting.units import percent

SCRIPTS = (
    "content",
    "formats",
    "charts",
    "layers",
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
    script, charts = joined_scripts(), plotly_script()
    environment = templates("parts")
    environment.filters |= {"percent": percent, "points": points}
    packed = {"plotly": compress(charts.encode()), "content": compress_json(page)}
    packed |= {f"table-{name}": table.data for name, table in tables.items()}
    template = environment.get_template("report.html.j2")
    return template.render(page=page, policy=policy_for(charts, script), style=style, script=script, packed=packed)


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
