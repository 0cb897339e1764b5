"""Changes of what all threads share, such as switches of torch and the modes of a model.

Several threads may record at the same time, the same model or models of their own. If each of them restored what it
found, the last one would restore what another had set. So the first to come makes the change, the last to go undoes it.
"""

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class _Change:
    """A change that is in force."""

    value: Any
    """What its context manager gave."""
    undo: contextlib.ExitStack
    """Undoes the change when it is closed."""
    users: int = 0
    """How many recordings rely on it."""


_CHANGES: dict[Hashable, _Change] = {}
_LOCK = threading.RLock()  # a signal handler may interrupt its thread here and record by itself


@contextlib.contextmanager
def shared(key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """Enter ``make()``, unless another recording has under the same ``key``; the last one to leave exits it."""
    with _LOCK:
        change = _CHANGES.get(key)
        if change is None:
            undo = contextlib.ExitStack()
            change = _Change(value=undo.enter_context(make()), undo=undo)
            _CHANGES[key] = change
        change.users += 1
    try:
        yield change.value
    finally:
        with _LOCK:
            change.users -= 1
            if not change.users:
                del _CHANGES[key]
                change.undo.close()


@contextlib.contextmanager
def exclusive(key: Hashable, refusal: Callable[[], Exception]) -> Iterator[None]:
    """Be the only one in all threads that has entered under ``key``; anybody else gets the ``refusal``."""
    with _LOCK:
        if in_force(key):
            raise refusal()
        change = _Change(value=None, undo=contextlib.ExitStack(), users=1)
        _CHANGES[key] = change
    try:
        yield
    finally:
        with _LOCK:
            del _CHANGES[key]


def in_force(key: Hashable) -> bool:
    """Whether a change under this key has been made and not undone yet."""
    return key in _CHANGES
