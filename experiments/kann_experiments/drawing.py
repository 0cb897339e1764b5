"""Sizes and files of the experiments' figures."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from kann.data.atomic_write import replacing

WIDE, COLUMN = 7.0, 3.5
"""Widths in inches of a page and of a column."""

METADATA = {"png": {}, "svg": {"Date": None}}
"""What is written into each kind of file. SVG would hold the time of day: the same figures must give the same files."""


def save_figures(figures: Mapping[str, Figure], folder: Path) -> tuple[Path, ...]:
    """Write each figure as PNG and as SVG; the same figures give the same files."""
    files = []
    for name, figure in figures.items():
        for kind, metadata in METADATA.items():
            path = folder / f"{name}.{kind}"
            with replacing(path) as temporary:
                figure.savefig(temporary, format=kind, metadata=metadata)
            files.append(path)
    return tuple(files)
