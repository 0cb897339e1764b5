"""Find the modules that the user's ``layer`` names.

Names are those of ``model.named_modules()``. The layers inside one of torch's fused recurrent modules are no modules
themselves; they are named after torch's own parameters: the layer whose weights are ``rnn.weight_hh_l0`` is
``rnn.l0``, and ``rnn.l0_reverse`` is the one that reads from the end.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from kann.checks import require_dense, short_repr
from kann.errors import KannError
from kann.recording.sequence_data import is_state, tensors_of

HIDDEN_STATES = re.compile(r"(?P<field>\w*hidden_states)\.(?P<place>-?\d+|\*)")
"""Hidden states that a model returns by itself, such as ``hidden_states.3``; ``*`` for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One layer to record."""

    name: str
    """The name of the result."""
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
    """Which of these layers, ``*`` for all."""


def require_module(model: Any) -> None:
    """Raise for anything but a torch module, such as an ONNX session, an exported program or a function."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        raise KannError(f"model is the class {model.__name__}; pass an object of it that holds the trained weights")
    raise KannError(
        f"model is {type(model).__name__}, and not a torch module whose layers can be watched; pass the "
        "torch.nn.Module that it was made from, or run it yourself and pass the states that it gives to kann.fit, as "
        "an array (sequences, steps, units)"
    )


def _is_compiled(what: str) -> KannError:
    return KannError(
        f"{what} was compiled by torch.jit (script or trace), and what happens inside cannot be watched; pass the "
        "model that it was made from, or layer='output' for what it returns, or layer= a function from that to "
        "(sequences, steps, units), or run it yourself and pass the states that it gives to kann.fit"
    )


def select(model: nn.Module, layer: Any) -> tuple[list[Target], bool]:
    """Return the layers that ``layer`` names, and whether it names a single one: a list or a pattern never does."""
    require_module(model)
    is_several = False
    if layer is None:
        targets = _own_targets(*only_recurrent(model))
    elif isinstance(layer, str):
        targets = named(model, layer)
        is_several = _has_wildcard(layer) and layer not in dict(model.named_modules(remove_duplicate=False))
    elif callable(layer) and not isinstance(layer, nn.Module):
        targets = [Target(name="output", view=layer)]
    else:
        targets, is_several = _all_named(model, layer), True
    for target in targets:
        if isinstance(target.module, torch.jit.ScriptModule):  # compiled code calls no hooks of Python
            raise _is_compiled(f"layer {target.path!r}")
    return targets, len(targets) == 1 and not is_several


def _all_named(model: nn.Module, names: Any) -> list[Target]:
    """Return the layers in a list of names, each once."""
    if isinstance(names, nn.Module) or not isinstance(names, Iterable) or not getattr(names, "ndim", 1):
        raise KannError(f"layer is {type(names).__name__}; pass a name, a list of names, or a function of the output")
    require_dense(names)
    targets = {target.name: target for name in names for target in named(model, name)}
    if not targets:
        raise KannError("layer=[] names no layer; pass at least one name, or None")
    return list(targets.values())


def recurrent_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the recurrent modules and cells in a model, with their names."""
    require_module(model)
    return [(path, m) for path, m in model.named_modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)]


def has_recurrent(model: nn.Module) -> bool:
    """Return True if a recurrent module can be named without running the model, or none can be watched."""
    is_compiled = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    return is_compiled or bool(recurrent_modules(model))


def only_recurrent(model: nn.Module) -> tuple[str, nn.Module]:
    """Return the only recurrent module of a model."""
    found = recurrent_modules(model)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(repr(path) for path, _ in found)
        raise KannError(f"the model has {len(found)} recurrent modules: {names}; pass layer= one or a list of them")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise _is_compiled("the model, or a part of it,")
    names = [path for path, _ in model.named_modules() if path]
    some = [repr(path) for path in names[:8]]
    if len(names) > len(some):
        some.append("…")
    raise KannError(
        "the model has no recurrent module of torch's, and calls no module in a loop that hands a state from step to "
        f"step; pass layer=, such as one of {', '.join(some) or 'its output'}"
    )


def named(model: nn.Module, name: str) -> list[Target]:
    """Return the layers that one name, or one pattern, stands for."""
    if not isinstance(name, str):
        raise KannError(f"{short_repr(name)} is no name of a layer; pass one of model.named_modules(), such as 'rnn'")
    modules = dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        return _own_targets(name, modules[name])
    parts = {part.name: part for path, module in modules.items() for part in fused_layers(path, module)}
    if name in parts:
        return [parts[name]]
    if name == "output":
        # The first part of the output that holds real or complex numbers; the output itself if nothing does.
        return [Target(name=name, view=lambda output: next(filter(is_state, tensors_of(output)), output))]
    if match := HIDDEN_STATES.fullmatch(name):
        return [Target(name=name, field=match["field"], place=match["place"])]
    if _has_wildcard(name):
        return _matching(modules, name)
    close = difflib.get_close_matches(name, [*modules, *parts], n=5, cutoff=0.5) or [*filter(None, modules)][:8]
    if not close:
        raise KannError(
            f"the model has no layer {name!r}, nor any other; pass layer= a function from its output to (sequences, "
            "steps, units)"
        )
    raise KannError(f"the model has no layer {name!r}; close to it are {', '.join(map(repr, close))}; pass one of them")


def _matching(modules: dict[str, nn.Module], pattern: str) -> list[Target]:
    """Return the layers whose names match; a fused module's name counts only if none of its layers matches."""
    targets: list[Target] = []
    for path, module in modules.items():
        inner = [part for part in fused_layers(path, module) if _matches(part.name, pattern)]
        if not inner and path and _matches(path, pattern):
            inner = _own_targets(path, module)
        targets += inner
    if not targets:
        raise KannError(
            f"no layer matches {pattern!r}; the names are those of model.named_modules(), and * stands for one part "
            "between dots"
        )
    return targets


def _matches(name: str, pattern: str) -> bool:
    """Match as file names do, part by part: ``*`` stops at a dot, so that ``blocks.*`` are the blocks alone."""
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _has_wildcard(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def fused_layers(path: str, module: nn.Module) -> list[Target]:
    """Return every layer and direction of a fused recurrent module; none of any other module."""
    if not isinstance(module, nn.RNNBase):
        return []
    suffixes = ["", "_reverse"][: 1 + module.bidirectional]
    return [
        Target(
            name=f"{path}.l{level}{suffix}".removeprefix("."),
            path=path,
            module=module,
            level=level,
            reverse=bool(suffix),
        )
        for level in range(module.num_layers)
        for suffix in suffixes
    ]


def _own_targets(path: str, module: nn.Module) -> list[Target]:
    """Return the layers that a module's name stands for: of a fused one the last, in all its directions."""
    if not isinstance(module, nn.RNNBase):
        return [Target(name=path, path=path, module=module)]
    last = [part for part in fused_layers(path, module) if part.level == module.num_layers - 1]
    return [replace(last[0], name=path)] if len(last) == 1 else last


def by_module(targets: Sequence[Target]) -> list[list[Target]]:
    """Group the targets by the module that they are in."""
    groups: dict[int, list[Target]] = {}
    for target in targets:
        groups.setdefault(id(target.module), []).append(target)
    return list(groups.values())


def state_widths(module: Any) -> dict[str, int]:
    """Return the widths of the parts of the state of torch's recurrent modules: h, and c of an LSTM; else empty."""
    if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return {}
    widths = {"h": getattr(module, "proj_size", 0) or module.hidden_size}
    return widths | ({"c": module.hidden_size} if isinstance(module, nn.LSTM | nn.LSTMCell) else {})
