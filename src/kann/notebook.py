"""How results look in a notebook: small tables and a drawing of eigenvalues, as HTML without scripts."""

from collections.abc import Iterable, Sequence
from html import escape

from kann.typing import Array, Complex, Float

DRAWING_PIXELS = 180
"""Width and height of the drawing of eigenvalues."""

SMALL_COLOUR, MIDDLE_COLOUR, LARGE_COLOUR = "#0072B2", "#E69F00", "#BBBBBB"
"""Of eigenvalues with a small residual on the fitted data, of those in between, and of those with a large one."""

MARGIN = 1.08
"""How much wider the drawing is than the circle and the eigenvalues in it, so that no dot is cut."""


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a title; every cell is escaped.

    >>> table("Modes", ["λ"], [["<1"]])
    '<table><caption>Modes</caption><thead><tr><th>λ</th></tr></thead><tbody><tr><td>&lt;1</td></tr></tbody></table>'
    """
    body = "".join(_row(cells, "td") for cells in rows)
    return f"<table><caption>{escape(title)}</caption><thead>{_row(head, 'th')}</thead><tbody>{body}</tbody></table>"


def paragraphs(title: str, texts: Iterable[str]) -> str:
    """A heading and a paragraph for each text, all escaped.

    >>> paragraphs("Found", ["1 < 2"])
    '<p><b>Found</b></p><p>1 &lt; 2</p>'
    """
    return f"<p><b>{escape(title)}</b></p>" + "".join(f"<p>{escape(text)}</p>" for text in texts)


def _row(cells: Sequence[object], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"


def spectrum(eigenvalues: Complex[Array, " r"], residuals: Float[Array, " r"], *, small: float, large: float) -> str:
    """A drawing of eigenvalues and the unit circle, coloured by their residual on the fitted data: blue is small."""
    radius = MARGIN * max([1.0, *map(abs, eigenvalues.tolist())])
    middle = DRAWING_PIXELS / 2
    unit = middle / radius
    circle = f'<circle cx="{middle}" cy="{middle}" r="{unit:.1f}" fill="none" stroke="#888"/>'
    dots = []
    for value, residual in zip(eigenvalues.tolist(), residuals.tolist(), strict=True):
        x, y = middle + unit * value.real, middle - unit * value.imag  # in a drawing, y points down
        colour = MIDDLE_COLOUR
        if residual <= small:
            colour = SMALL_COLOUR
        elif residual >= large:
            colour = LARGE_COLOUR
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    size = f'width="{DRAWING_PIXELS}" height="{DRAWING_PIXELS}"'
    label = 'role="img" aria-label="Eigenvalues, coloured by residual on the fitted data"'
    return f"<svg {label} {size}>{circle}{''.join(dots)}</svg>"
