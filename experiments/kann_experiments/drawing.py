"""Drawings that several experiments share, and sizes and files of their figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kann.data.atomic_write import replacing
from kann.reporting.plots import COLOURS, INK, axes_or_new, line_style, literal
from kann.typing import Array, Float

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


LETTERS = 110
"""Letters in a line of `draw_words`."""

LONGEST_WORD = 14
"""Letters of the longest word that `draw_words` writes out; longer ones are cut."""

SIGNED = "PuOr_r"
"""Colours for signed numbers, white in the middle: orange is up, purple is down."""


def draw_matrix(matrix: Float[Array, "n m"], *, ax: Axes | None = None, limit: float | None = None) -> Axes:
    """A matrix as an image: zero is white, positive orange, negative purple; ``limit`` gets the full colour."""
    ax = axes_or_new(ax)
    limit = limit or float(np.abs(matrix).max()) or 1.0
    image = ax.imshow(matrix, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="equal", interpolation="nearest")
    # The colour bar is placed in units of the width of the matrix: this makes it equally wide next to all of them.
    unit = matrix.shape[0] / matrix.shape[1]
    ax.figure.colorbar(image, cax=ax.inset_axes((1 + 0.04 * unit, 0.0, 0.05 * unit, 1.0)))
    rows, columns = (sorted({0, size - 1}) for size in matrix.shape)  # few ticks, for narrow matrices
    ax.set(xlabel="column", ylabel="row", xticks=columns, yticks=rows)
    return ax


def draw_curves(
    curves: Mapping[str, Float[Array, "s n"]],
    positions: Float[Array, " n"],
    *,
    ax: Axes | None = None,
    marks: Mapping[str, float] | None = None,
) -> Axes:
    """Named curves over several runs: the mean of each, and every run as a faint line.

    ``marks`` are positions at which a dot is set on the mean of a curve.
    """
    ax = axes_or_new(ax)
    for i, (name, runs) in enumerate(curves.items()):
        colour, mean = COLOURS[i % len(COLOURS)], runs.mean(axis=0)
        # The first lines are the widest, so that those which later ones cover can still be seen.
        ax.plot(positions, mean, label=name, **line_style(i, linewidth=1.2 + 2.0 * (1 - i / len(curves)) ** 2))
        if len(runs) > 1:
            ax.plot(positions, runs.T, color=colour, linewidth=0.6, alpha=0.35)
        if marks and name in marks:
            ax.plot(marks[name], np.interp(marks[name], positions, mean), "o", color=colour, markersize=5, zorder=3)
    return ax


def draw_words(words: Sequence[str], shades: Float[Array, " t"], *, ax: Axes | None = None, colours: str) -> Axes:
    """Words in lines, each on a background for its number in [0, 1]; with `SIGNED` colours, 0.5 is white."""
    ax = axes_or_new(ax)
    palette, x, y = colormaps[colours], 0, 0
    # The darkest part of a colour map is left out, so that black letters can be read on it.
    low, high = (0.12, 0.88) if colours == SIGNED else (0.0, 0.65)
    for word, shade in zip(words, shades, strict=True):
        if len(word) > LONGEST_WORD:
            word = word[: LONGEST_WORD - 1] + "…"
        if x + len(word) > LETTERS:
            x, y = 0, y + 1
        background = palette(low + (high - low) * float(shade))
        ax.add_patch(Rectangle((x - 0.3, y + 0.04), len(word) + 0.6, 0.92, facecolor=background, linewidth=0))
        ax.text(x, y + 0.54, literal(word), family="monospace", fontsize=6.2, va="center", color=INK)
        x += len(word) + 1
    ax.set(xlim=(-0.5, LETTERS + 0.5), ylim=(y + 1.05, 0))
    ax.set_axis_off()
    return ax
