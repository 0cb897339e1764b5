"""Configurations of experiments: which are known, how two of them differ, and how they are written as JSON."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

from kann.errors import KannError

Config = TypeVar("Config")


def choose(arch: str, known: Mapping[str, Config]) -> Config:
    """The configuration of an architecture."""
    if arch not in known:
        raise KannError(f"architecture {arch!r} is unknown; pass one of {', '.join(known)}")
    return known[arch]


def differences(config: Any, other: Any) -> tuple[str, ...]:
    """Settings in which a configuration differs from another, as text."""
    theirs = dict(_settings(other))
    return tuple(
        f"{name.replace('_', ' ')} {_text(value)} (not {_text(theirs[name])})"
        for name, value in _settings(config)
        if value != theirs[name]
    )


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values, those of configurations within included."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            yield from _settings(value)
        else:
            yield entry.name, value


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_json(config: Any) -> dict[str, Any]:
    """A configuration as JSON, which has no infinity: it is written as null."""
    return _finite(asdict(config))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return None if isinstance(value, float) and math.isinf(value) else value
