"""A progress bar for long work, where tqdm is installed and somebody is watching."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds before a bar appears: work that is done by then needs none."""


def progress(items: Iterable[T], *, what: str, total: int | None = None, unit: str = "it") -> Iterator[T]:
    """Yield ``items``; after two seconds show on a terminal how far along they are."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from items
        return
    # disable=None switches the bar off where standard error is not a terminal.
    yield from tqdm(items, desc=what, total=total, unit=unit, delay=PATIENCE, disable=None, leave=False)


def dask_progress(*, what: str) -> contextlib.AbstractContextManager[Any]:
    """Within this block, the same for what Dask computes in this process; a client has its dashboard."""
    try:
        from tqdm.dask import TqdmCallback
    except ImportError:
        return contextlib.nullcontext()
    return TqdmCallback(desc=what, unit="task", delay=PATIENCE, disable=None, leave=False)
