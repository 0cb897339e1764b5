"""One HTML file that shows how far apart several networks are: a map, points in the plane, and a table of pairs."""

import base64
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kann._format import MISSING, from_to, significant
from kann.analysis.comparison import Comparison
from kann.checks import file_to_write, require_instance, require_text
from kann.reporting.offline import page, write_page
from kann.reporting.plots import STYLE, draw_comparison, draw_networks, pyplot

MOST_PAIRS = 1000
"""Rows of the table: the nearest pairs. All are in the CSV."""

INCHES_PER_NETWORK = 0.16
"""So that names of 6 to 7 points do not touch."""

WORDS = {
    "response": "what their driven systems make of an input, step after step (0: the same; 1.41: nothing in common)",
    "spectrum": "how far the eigenvalues of one must be moved to become those of the other",
    "subspace": "how far the spans of their trusted modes are turned against each other",
}
"""The properties that each kind of distance compares."""


def write(
    path: str | os.PathLike[str], comparison: Comparison, *, title: str = "How far apart these networks are inside"
) -> Path:
    """Write the page of a comparison; it works offline and runs no script. Returns its path.

    >>> import tempfile, kann, numpy as np
    >>> states = {name: np.random.default_rng(i).normal(size=(9, 20, 3)) for i, name in enumerate("abc")}
    >>> found = kann.compare(states, kind="spectrum", rank=2)
    >>> write(Path(tempfile.mkdtemp()) / "compare.html", found).name
    'compare.html'
    """
    path = file_to_write(path)
    require_instance(comparison, Comparison, "comparison")
    require_text(title, "title")
    side = 2.5 + INCHES_PER_NETWORK * len(comparison.names)
    pictures = {
        "map": _picture(draw_comparison, comparison, width=side + 0.8, height=side),
        "plane": _picture(draw_networks, comparison, width=5.0, height=4.5),
    }
    values = {"words": WORDS[comparison.kind], "rows": _nearest_pairs(comparison), "most": MOST_PAIRS}
    return write_page(path, page("comparison", title=title, comparison=comparison, pictures=pictures, **values))


def _picture(draw: Callable[..., Any], comparison: Comparison, *, width: float, height: float) -> str:
    """Return a drawing as the address of an image that is in the page itself."""
    with pyplot.rc_context(STYLE):
        figure, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
        draw(comparison, ax=ax)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=130)
        pyplot.close(figure)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _nearest_pairs(comparison: Comparison) -> list[list[str]]:
    """Return the nearest pairs as text: names, distance, interval, floor."""
    first, second = np.triu_indices(len(comparison.names), 1)
    nearest = np.argsort(comparison.matrix[first, second])[:MOST_PAIRS]
    rows = []
    for i, j in zip(first[nearest].tolist(), second[nearest].tolist(), strict=True):
        distance, low, high = (float(each[i, j]) for each in (comparison.matrix, comparison.low, comparison.high))
        interval = from_to(low, high) if np.isfinite(low) else MISSING
        floor = float(max(comparison.floor[i], comparison.floor[j]))
        rows.append([comparison.names[i], comparison.names[j], significant(distance, 4), interval, significant(floor)])
    return rows
