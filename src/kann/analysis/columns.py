"""Tables as plain text, for ``print``."""

import re
from collections.abc import Sequence

GAP = "  "
"""Between two columns, so that numbers never run together."""

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that would begin another line, or move what follows: they are written as Python writes them."""


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in which columns stand under each other: the first to the left, the others to the right.

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
