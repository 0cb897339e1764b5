"""What the figures of all experiments have in common."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from kann.data.files import replacing

WIDE, COLUMN = 7.0, 3.5
"""Widths in inches of a page and of a column."""


def save_figures(figures: Mapping[str, Figure], folder: Path) -> tuple[Path, ...]:
    """Write each figure as PNG and as SVG; the same figures give the same files."""
    files = []
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            with replacing(folder / f"{name}.{kind}") as temporary:
                figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)
            files.append(folder / f"{name}.{kind}")
    return tuple(files)
