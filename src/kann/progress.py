"""A progress bar for long work, where tqdm is installed and somebody is watching."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

SECONDS_BEFORE_BAR = 2.0
"""Work that is done by then needs no bar."""


def progress(items: Iterable[T], *, what: str, total: int | None = None, unit: str = "it") -> Iterator[T]:
    """Yield ``items``; after two seconds show on a terminal how far along they are."""
    if sys.stderr is None or not sys.stderr.isatty():  # nobody is watching, and a small fit would pay for the bar
        return iter(items)
    try:
        from tqdm import tqdm
    except ImportError:
        return iter(items)
    return iter(tqdm(items, desc=what, total=total, unit=unit, delay=SECONDS_BEFORE_BAR, leave=False))
