"""A progress bar for long work, where tqdm is installed and somebody is watching."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

SECONDS_BEFORE_BAR = 2.0
"""Seconds before a bar appears: work that is done by then needs none."""


def progress(items: Iterable[T], *, what: str, total: int | None = None, unit: str = "it") -> Iterator[T]:
    """Yield ``items``; after two seconds show on a terminal how far along they are."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from items
        return
    # disable=None switches the bar off where standard error is not a terminal.
    yield from tqdm(items, desc=what, total=total, unit=unit, delay=SECONDS_BEFORE_BAR, disable=None, leave=False)
