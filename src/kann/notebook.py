"""How results look in a notebook: small tables and a drawing, as HTML without scripts."""

from collections.abc import Iterable, Sequence
from html import escape

from kann.typing import Array, Complex, Float

SIZE = 180
"""Width and height of the drawing."""

COLOURS = ("#0072B2", "#E69F00", "#BBBBBB")
"""For eigenvalues that are trusted, those in between, and doubtful ones."""


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a title; every cell is escaped."""

    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


def spectrum(
    eigenvalues: Complex[Array, " r"], residuals: Float[Array, " r"], *, trusted: float, doubtful: float
) -> str:
    """Eigenvalues and the unit circle; blue ones are to be trusted, grey ones are not."""
    reach = max(1.0, max(map(abs, eigenvalues.tolist()), default=1.0)) * 1.08
    unit, middle = SIZE / 2 / reach, SIZE / 2
    dots = "".join(
        f'<circle cx="{middle + unit * value.real:.1f}" cy="{middle - unit * value.imag:.1f}" r="3" '
        f'fill="{COLOURS[(residual > trusted) + (residual >= doubtful)]}"/>'
        for value, residual in zip(eigenvalues.tolist(), residuals.tolist(), strict=True)
    )
    circle = f'<circle cx="{middle}" cy="{middle}" r="{unit:.1f}" fill="none" stroke="#888"/>'
    return f'<svg role="img" aria-label="Eigenvalues" width="{SIZE}" height="{SIZE}">{circle}{dots}</svg>'
