"""Tables as plain text, for ``print``."""

from collections.abc import Sequence

GAP = "  "
"""Between two columns, so that numbers never run together."""


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in which columns stand under each other: the first to the left, the others to the right.

    >>> in_columns([["mode", "0"], ["a", "-12.5"]])
    ['mode      0', 'a     -12.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(GAP.join([first.ljust(widths[0]), *cells]))
    return lines
