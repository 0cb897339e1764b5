"""Results that add up over parts of the data."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

T = TypeVar("T", bound="Additive")


class Additive:
    """Dataclasses that are added field by field: with ``+``, or by the function that ``ADDED_BY`` names.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Seen(Additive):
    ...     count: int
    ...     largest: float
    ...     ADDED_BY = {"largest": max}
    >>> Seen(3, 0.5) + Seen(4, 0.1)
    Seen(count=7, largest=0.5)
    """

    __slots__ = ()
    ADDED_BY: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = MappingProxyType({})

    def __add__(self: T, other: T) -> T:
        if type(other) is not type(self):
            return NotImplemented
        names = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return type(self)(**{name: self.ADDED_BY.get(name, added)(*pair) for name, pair in pairs.items()})


def added(one: Any, other: Any) -> Any:
    """Add numbers and arrays, and dicts and lists entry by entry; None, for unknown, if one of them is None."""
    if one is None or other is None:
        return None
    if isinstance(one, dict):
        return one | {key: added(one[key], value) if key in one else value for key, value in other.items()}
    return [added(*pair) for pair in zip(one, other, strict=True)] if isinstance(one, list) else one + other
