"""From what the user calls a layer to the modules to record.

Names are those of ``model.named_modules()``. The layers inside one of torch's fused recurrent modules have no modules
of their own; they are named after torch's own parameters: the layer whose weights are ``rnn.weight_hh_l0`` is
``rnn.l0``, and ``rnn.l0_reverse`` is the one that reads from the end.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from kann.errors import KannError

HIDDEN = re.compile(r"(?P<field>\w*hidden_states)\.(?P<place>-?\d+|\*)")
"""Hidden states that a model returns by itself, such as ``hidden_states.3``; ``*`` for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One layer to record."""

    name: str
    """What the result is called."""
    path: str = ""
    """Name of the module, as in ``named_modules()``."""
    module: nn.Module | None = None
    """The module; None if the states are found in the model's output."""
    level: int = -1
    """Which layer of a fused recurrent module."""
    reverse: bool = False
    """Whether it is the direction that reads from the end."""
    view: Callable[[Any], Any] | None = None
    """From the model's output to the states, where there is no module."""
    field: str = ""
    """Name of the entry of the model's output that holds the states of all layers."""
    place: str = ""
    """Which of them, ``*`` for all."""


def select(model: nn.Module, layer: Any) -> tuple[list[Target], bool]:
    """The layers that ``layer`` means, and whether it means a single one by its nature."""
    if layer is None:
        path, module = only_recurrent(model)
        targets = _whole(path, module)
        return targets, len(targets) == 1
    if isinstance(layer, str):
        targets = named(model, layer)
        return targets, len(targets) == 1 and not _is_pattern(model, layer)
    if callable(layer) and not isinstance(layer, nn.Module):
        return [Target(name="output", view=layer)], True
    if isinstance(layer, nn.Module) or not isinstance(layer, Iterable):
        raise KannError(f"layer is {type(layer).__name__}; pass a name, a list of names, or a function of the output")
    targets = [target for name in layer for target in named(model, str(name))]
    if not targets:
        raise KannError("layer=[] names no layer; pass at least one name, or None")
    return list({target.name: target for target in targets}.values()), False


def only_recurrent(model: nn.Module) -> tuple[str, nn.Module]:
    """The only recurrent module of a model."""
    found = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(repr(path) for path, _ in found)
        raise KannError(f"the model has {len(found)} recurrent modules: {names}; pass layer= one or a list of them")
    names = [path for path, _ in model.named_modules() if path]
    some = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
    raise KannError(f"the model has no recurrent module of torch's; pass layer=, such as one of {some or 'its output'}")


def named(model: nn.Module, name: str) -> list[Target]:
    """The layers of one name or pattern."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        return _whole(name, modules[name])
    parts = {part.name: part for path, module in modules.items() for part in _parts(path, module)}
    if name in parts:
        return [parts[name]]
    if match := HIDDEN.fullmatch(name):
        return [Target(name=name, field=match["field"], place=match["place"])]
    if _has_wildcard(name):
        return _matching(modules, name)
    close = difflib.get_close_matches(name, [*modules, *parts], n=5, cutoff=0.5) or [*filter(None, modules)][:8]
    raise KannError(f"the model has no layer {name!r}; close to it are {', '.join(map(repr, close))}; pass one of them")


def _matching(modules: dict[str, nn.Module], pattern: str) -> list[Target]:
    targets: list[Target] = []
    for path, module in modules.items():
        inner = [part for part in _parts(path, module) if _matches(part.name, pattern)]
        if not inner and path and _matches(path, pattern):
            inner = _whole(path, module)
        targets += inner
    if not targets:
        raise KannError(
            f"no layer matches {pattern!r}; the names are those of model.named_modules(), and * stands for one part "
            "between dots"
        )
    return targets


def _matches(name: str, pattern: str) -> bool:
    """Like a file name, part by part: ``*`` does not reach across a dot, so that ``blocks.*`` are the blocks alone."""
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _has_wildcard(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _is_pattern(model: nn.Module, name: str) -> bool:
    return _has_wildcard(name) and name not in dict(model.named_modules(remove_duplicate=False))


def _parts(path: str, module: nn.Module) -> list[Target]:
    """Every layer and direction of a fused recurrent module."""
    if not isinstance(module, nn.RNNBase):
        return []
    return [
        Target(
            name=f"{path}.l{level}{suffix}".removeprefix("."),
            path=path,
            module=module,
            level=level,
            reverse=bool(suffix),
        )
        for level in range(module.num_layers)
        for suffix in ("", "_reverse")[: 2 if module.bidirectional else 1]
    ]


def _whole(path: str, module: nn.Module) -> list[Target]:
    """What a module's own name means: of a fused recurrent one the last layer, in all its directions."""
    if not isinstance(module, nn.RNNBase):
        return [Target(name=path, path=path, module=module)]
    last = [part for part in _parts(path, module) if part.level == module.num_layers - 1]
    return [replace(last[0], name=path)] if len(last) == 1 else last


def by_module(targets: Sequence[Target]) -> list[list[Target]]:
    """Group the targets by the module that they are in."""
    groups: dict[int, list[Target]] = {}
    for target in targets:
        groups.setdefault(id(target.module), []).append(target)
    return list(groups.values())
