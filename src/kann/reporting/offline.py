"""Pages that work offline: one file, no access to a network."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from kann._format import fixed, percent, signed
from kann._version import __version__
from kann.data.atomic_write import replacing
from kann.typing import Array, Float

try:
    import jinja2
except ImportError as error:
    raise ImportError("pages need jinja2: pip install 'kann[report]'") from error

PLOTLY = "plotly/plotly-basic.min.js.gz"
"""Plotly.js 4.1.1, from the npm package plotly.js-basic-dist-min. It has scatter and bar charts, is a quarter of all of
plotly.js, and starts in half the time."""

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
        charts = resources.files("kann.reporting").joinpath(PLOTLY).read_bytes()
        packed = {"plotly": base64.b64encode(charts).decode(), "content": compress_json(content)} | dict(tables or {})
        digests = (hashlib.sha256(code).digest() for code in (gzip.decompress(charts), script.encode()))
        checksums = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    loader = jinja2.PackageLoader("kann.reporting", "")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)
    environment.filters |= {"percent": percent, "points": points, "fixed": fixed, "signed": signed}
    values |= {"style": _file(style), "script": script, "packed": packed, "version": __version__}
    values["policy"] = POLICY.format(scripts=checksums)
    text, *code = re.split(r"(?=<script)", environment.get_template(f"{template}.html.j2").render(values))
    return "".join([re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text), *code])  # scripts have checksums


def write_page(path: Path, html: str) -> Path:
    """Write a page, whole or not at all, and return its path."""
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8", errors="replace")
    return path


def _file(name: str) -> str:
    return resources.files("kann.reporting").joinpath(name).read_text(encoding="utf-8")


def points(values: list[float], width: int, height: int, largest: float) -> str:
    """Return a line from left to right as an SVG polyline; ``largest`` is at the top and −``largest`` at the bottom.

    >>> points([0.0, 1.0], 10, 4, 1.0)
    '0.0,2.0 10.0,0.0'
    """
    step = width / max(1, len(values) - 1)
    places = [(i * step, height / 2 * (1 - value / largest)) for i, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


# Tables of numbers

INTEGERS = {8: np.int8, 12: np.int16, 16: np.int16}
"""The integers that a page can read, by the bits that are used of them: compressed, 12 bits take less than 16."""


Packed = tuple[str, dict[str, Any]]
"""A table of small integers, column after column, gzipped and in base64; and what the page needs to read it: how many
bits there are, and the scale that turns the integers of each column back into numbers."""


def pack(values: Float[Array, "n m"], *, bits: int = 8) -> Packed:
    """Round each column to integers of 8, 12 or 16 bits: within 1/254, 1/4,094 or 1/65,534 of its largest value."""
    kind, largest_integer = INTEGERS[bits], 2 ** (bits - 1) - 1
    largest = np.abs(values).max(axis=0, initial=0).astype(np.float64)
    scale = np.where(largest > 0, largest, 1) / largest_integer
    integers = np.rint(values / scale).astype(kind)
    return compress(integers.T.tobytes()), {"scale": scale.tolist(), "bits": bits}


def compress_json(value: Any) -> str:
    """Write a value as compressed JSON: whatever text is in it, none of it can close the HTML element that holds it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return compress(text.encode("utf-8", "replace"))


def compress(data: bytes) -> str:
    """Encode the gzipped bytes as Base64. No time is stored, so that equal reports are equal files."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()
