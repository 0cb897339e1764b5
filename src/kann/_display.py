"""Write tables, drawings and safe text for terminals and notebooks."""

import re
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
    """Return a table with a title; every cell is escaped.

    >>> table("Modes", ["λ"], [["<1"]])
    '<table><caption>Modes</caption><thead><tr><th>λ</th></tr></thead><tbody><tr><td>&lt;1</td></tr></tbody></table>'
    """
    body = "".join(_row(cells, "td") for cells in rows)
    return f"<table><caption>{escape(title)}</caption><thead>{_row(head, 'th')}</thead><tbody>{body}</tbody></table>"


def paragraphs(title: str, texts: Iterable[str]) -> str:
    """Return a heading and a paragraph for each text, all escaped.

    >>> paragraphs("Found", ["1 < 2"])
    '<p><b>Found</b></p><p>1 &lt; 2</p>'
    """
    return f"<p><b>{escape(title)}</b></p>" + "".join(f"<p>{escape(text)}</p>" for text in texts)


def _row(cells: Sequence[object], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"


def spectrum(eigenvalues: Complex[Array, " r"], residuals: Float[Array, " r"], *, small: float, large: float) -> str:
    """Draw eigenvalues and the unit circle as SVG, coloured by their residual on the fitted data: blue is small."""
    radius = MARGIN * max([1.0, *map(abs, eigenvalues.tolist())])
    middle = DRAWING_PIXELS / 2
    unit = middle / radius
    circle = f'<circle cx="{middle}" cy="{middle}" r="{unit:.1f}" fill="none" stroke="#888"/>'
    dots = []
    for value, residual in zip(eigenvalues.tolist(), residuals.tolist(), strict=True):
        x, y = middle + unit * value.real, middle - unit * value.imag  # in a drawing, y points down
        colour = SMALL_COLOUR if residual <= small else LARGE_COLOUR if residual >= large else MIDDLE_COLOUR
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    size = f'width="{DRAWING_PIXELS}" height="{DRAWING_PIXELS}"'
    label = 'role="img" aria-label="Eigenvalues, coloured by residual on the fitted data"'
    return f"<svg {label} {size}>{circle}{''.join(dots)}</svg>"


GAP = "  "
"""Between two columns, so that numbers never run together."""

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that would begin another line, or move what follows: they are written as Python writes them."""


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows of cells in columns: the first to the left, the others to the right.

    >>> in_columns([["mode", "0"], ["a", "-12.5"]])
    ['mode      0', 'a     -12.5']
    """
    rows = [[CONTROLS.sub(lambda found: repr(found[0])[1:-1], cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(GAP.join([first.ljust(widths[0]), *cells]))
    return lines


DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the order in which the text after them is displayed. Hebrew and Arabic letters need none of them."""

REPLACEMENT = "\ufffd"

VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # Unicode has pictures of them from U+2400 on
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), REPLACEMENT),
    **dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT),  # surrogates without their other half cannot be encoded
    **dict.fromkeys(map(ord, "\n\u2028\u2029\x85"), "\n"),
    **dict.fromkeys(map(ord, DIRECTION_MARKS)),
    ord("\t"): " ",
}
"""By code point: what is displayed instead; None drops it."""


def visible(text: str) -> str:
    r"""Return the same text without the characters that would steer a terminal instead of being displayed.

    Control characters become their pictures (U+2400 and the like) and tabs become spaces; line breaks stay. Marks that
    change the direction of text are dropped.

    >>> visible("red: \x1b[31m")
    'red: ␛[31m'
    """
    return text.replace("\r\n", "\n").translate(VISIBLE)
