"""A span of layers of a model: consecutive modules of one list, named by the first and the last of them."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from kann.checks import shown
from kann.errors import KannError
from kann.recording.selection import require_module, select


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive layers of a model, both ends included."""

    names: tuple[str, ...]
    """As in ``model.named_modules()``."""
    modules: tuple[nn.Module, ...]
    first: int
    """The place of the first layer among all layers of its list, from 0."""
    siblings: int
    """How many layers the list has."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def label(self) -> str:
        """Such as ``"layers.10 – layers.15"``."""
        if len(self) == 1:
            return self.names[0]
        return f"{self.names[0]} – {self.names[-1]}"


def span_of(model: nn.Module, first: Any, last: Any) -> Span:
    """The layers from ``first`` to ``last``; refuses names that the model does not have, or that make no span."""
    require_module(model)
    for name in (first, last):
        _require_module_name(model, name)
    parents = [name.rpartition(".")[0] for name in (first, last)]
    if parents[0] != parents[1]:
        raise KannError(
            f"{first!r} and {last!r} are not layers of one list, such as 'layers.3' and 'layers.5'; bypass each list "
            "by itself, one kann.bypass inside the other"
        )
    parent = parents[0]
    siblings = list(model.get_submodule(parent).named_children())
    paths = [f"{parent}.{child}".removeprefix(".") for child, _ in siblings]
    start, stop = paths.index(first), paths.index(last) + 1
    if stop <= start:
        raise KannError(f"{first!r} comes after {last!r}; pass the first layer of the span first")
    return Span(
        names=tuple(paths[start:stop]),
        modules=tuple(module for _, module in siblings[start:stop]),
        first=start,
        siblings=len(siblings),
    )


def _require_module_name(model: nn.Module, name: Any) -> None:
    """Refuse what is not the name of a module inside the model that can be watched, and say which names are close."""
    if not isinstance(name, str):
        raise KannError(f"{shown(name)} is no name of a layer; pass one of model.named_modules(), such as 'layers.3'")
    targets, _ = select(model, name)  # which knows names that are close to a wrong one
    if name not in dict(model.named_modules(remove_duplicate=False)) or not name:
        close = ", ".join(repr(target.path) for target in targets[:8] if target.path)
        raise KannError(f"{name!r} is no single layer inside the model; pass one such as {close or 'layers.3'}")
