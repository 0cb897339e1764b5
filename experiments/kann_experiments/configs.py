"""Configurations of experiments: which are known, how two of them differ, and how they are written as JSON."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from kann.errors import KannError

Config = TypeVar("Config")


def choose(arch: str, known: Mapping[str, Config]) -> Config:
    """The configuration of an architecture, or an error that lists those that are known.

    >>> choose("gru", {"gru": 48, "lstm": 64})
    48
    """
    if arch not in known:
        raise KannError(f"architecture {arch!r} is unknown; pass one of {', '.join(known)}")
    return known[arch]


def differences(config: Any, other: Any) -> tuple[str, ...]:
    """Each setting in which a configuration differs from another of the same kind, as text."""
    theirs = dict(_settings(other))
    return tuple(
        f"{name.replace('_', ' ')} {_text(value)} (not {_text(theirs[name])})"
        for name, value in _settings(config)
        if value != theirs[name]
    )


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of all settings; a configuration inside another is replaced by its settings."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            yield from _settings(value)
        else:
            yield entry.name, value


def _text(value: Any) -> str:
    """A setting as text, a number without trailing zeros."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def as_json(config: Any) -> dict[str, Any]:
    """A configuration as JSON, which has no infinity: it is written as null."""
    return _infinity_to_none(known_settings(config))


def known_settings(config: Any) -> dict[str, Any]:
    """All settings by name, but those that were added later (`ADDED_LATER`) only where they are not the default.

    So the checkpoints of earlier versions, which do not name them, are still recognised.
    """
    settings = {}
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            settings[entry.name] = known_settings(value)
        elif value != entry.default or not entry.metadata.get("added later"):
            settings[entry.name] = value
    return settings


def _infinity_to_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _infinity_to_none(entry) for name, entry in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return None
    return value
