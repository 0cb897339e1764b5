"""Run a model with a span of its layers replaced by a linear operator."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kann.checks import short_repr
from kann.depth.maps import AffineMap, StepMaps
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live._intervene import only_in_this_thread, replacement, turned_back_if, turned_if, with_tensors
from kann.recording.fused import states_replaced
from kann.recording.layer_selection import require_module, select
from kann.recording.runner import every_module_called, exclusive
from kann.recording.sequence_data import tensors_of
from kann.recording.tracer import has_channels_first, hook_last
from kann.typing import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive layers of a model, both ends included."""

    names: tuple[str, ...]
    """As in ``model.named_modules()``."""
    modules: tuple[nn.Module, ...]
    first: int
    """The index of the first layer among all layers of its list."""
    siblings: int
    """The number of layers in the list."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def label(self) -> str:
        """Such as ``"layers.10 – layers.15"``."""
        return self.names[0] if len(self) == 1 else f"{self.names[0]} – {self.names[-1]}"


def span_of(model: nn.Module, first: Any, last: Any) -> Span:
    """The layers from ``first`` to ``last``; raise if the model does not have them in one list and in this order."""
    require_module(model)
    known = dict(model.named_modules(remove_duplicate=False))
    for name in (first, last):
        if not isinstance(name, str):
            raise KannError(
                f"{short_repr(name)} is no name of a layer; pass one of model.named_modules(), such as 'layers.3'"
            )
        targets, _ = select(model, name)  # raises with similar names if there is no such layer
        if not name or name not in known:  # patterns such as 'layers.*' select several
            close = ", ".join(repr(target.path) for target in targets[:8] if target.path)
            raise KannError(f"{name!r} is no single layer inside the model; pass one such as {close or 'layers.3'}")
    parent, other = (name.rpartition(".")[0] for name in (first, last))
    if parent != other:
        raise KannError(
            f"{first!r} and {last!r} are not layers of one list, such as 'layers.3' and 'layers.5'; bypass each list "
            "by itself, one kann.depth.bypass inside the other"
        )
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


Operator = Koopman | AffineMap | StepMaps | Sequence[AffineMap | Koopman | None] | None
"""What can replace a span of layers."""


@contextlib.contextmanager
def bypass(model: nn.Module, first: str, last: str, operator: Operator = None) -> Iterator[None]:
    """Run a model with a span of its layers replaced by an operator.

    >>> import kann
    >>> model = nn.Sequential(nn.Linear(3, 4), *(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 2))
    >>> x = torch.randn(50, 3)
    >>> states = kann.record(model, x, layer=["1", "2", "3"], axis="depth", embedding=True)
    >>> with kann.depth.bypass(model, "2", "3", kann.depth.fit_span(states, 1, 2)), torch.no_grad():
    ...     replaced = model(x)
    >>> bool((replaced - model(x)).abs().max() < 1e-4)  # these layers are affine, and one map is as good as both
    True

    Inside the block the model is called as always, in its current mode, in the thread that entered the block. Each
    layer of the span still runs and its output is replaced, so that caches of attention stay whole; an operator saves
    no time. A layer that is called several times, such as one that is shared along depth, is replaced at every call.
    `kann.record` inside the block records the replaced states. Afterwards the model is as it was, also after an error.

    Parameters
    ----------
    model
        Any torch module: a transformer with its layers, a residual network with its blocks. Of images, the channels
        are mapped at every pixel.
    first, last
        The names of the first and the last layer of the span, both included, as in ``model.named_modules()``. They
        must be layers of one list, and give states of the shape that they read.
    operator
        What replaces the span. None: the identity, the span is skipped. A `Koopman`: the same operator for each layer.
        `StepMaps`, fitted to states that were recorded from all layers of the list with ``embedding=True``: the map of
        each layer. An `AffineMap` from `kann.depth.fit_span`: one map for the whole span. Or a list with an operator
        for each layer.
    """
    span = span_of(model, first, last)
    maps = maps_of(operator, span)
    with contextlib.ExitStack() as stack:
        for name, module in zip(span.names, span.modules, strict=True):
            in_use = (
                f"the states of {name!r} are being replaced already, in this thread or another; leave the other "
                "kann.depth.bypass or kann.intervene first, and replace a layer in one of them"
            )
            stack.enter_context(exclusive(states_replaced(module), partial(KannError, in_use)))
        stack.enter_context(every_module_called())
        for name, module, own in zip(span.names, span.modules, maps, strict=True):
            hook_last(module, _replaces_output(name, own), stack)
        yield


@dataclass(frozen=True, slots=True)
class WholeMap:
    """A map of whole states, h ↦ h A + b, of arrays or tensors; it replaces states as a fill does."""

    matrix: Any
    offset: Any

    def on(self, convert: Callable[[Array], Tensor]) -> "WholeMap":
        """The map of converted arrays."""
        return WholeMap(convert(self.matrix), convert(self.offset))

    def kept(self, h: Tensor) -> Tensor:
        """The states as the map gives them."""
        return h @ self.matrix + self.offset


def maps_of(operator: Any, span: Span) -> list[WholeMap | None]:
    """The map that replaces each layer; None for the identity."""
    if operator is None:
        return [None] * len(span)
    if isinstance(operator, Koopman):
        return [_affine(operator)] * len(span)
    if isinstance(operator, AffineMap):
        steps = operator.last - operator.first + 1
        if steps != len(span):
            raise KannError(
                f"the map stands for {steps} steps, and {span.label!r} has {len(span)} layers; pass "
                f"kann.depth.fit_span of {len(span)} layers"
            )
        return [_affine(operator), *[None] * (len(span) - 1)]
    if isinstance(operator, StepMaps):
        if len(operator) != span.siblings:
            raise KannError(
                f"there are {len(operator)} maps, and {span.label!r} is of {span.siblings} layers, so that it is not "
                f"known whose each one is; pass a list of {len(span)} maps, such as maps.each[3:6]"
            )
        return [_affine(own) for own in operator.each[span.first : span.first + len(span)]]
    if isinstance(operator, list | tuple):
        if len(operator) != len(span):
            raise KannError(f"there are {len(operator)} operators for {len(span)} layers; pass one for each layer")
        return [None if each is None else _affine(each) for each in operator]
    raise KannError(
        f"operator={short_repr(operator)} cannot take the place of layers; pass None, a Koopman, kann.depth.fit_span, "
        "kann.depth.fit, or a list with an operator for each layer"
    )


def _affine(operator: Any) -> WholeMap:
    if isinstance(operator, AffineMap):
        return WholeMap(operator.matrix, operator.offset)
    if not isinstance(operator, Koopman):
        raise KannError(f"{short_repr(operator)} is no operator of states; pass a Koopman or an AffineMap")
    if operator.drive is not None:
        raise KannError("the operator is driven by inputs, which layers do not read; pass one fitted without driven=")
    matrix, offset = operator.basis @ operator.matrix @ operator.state_vectors, operator.mean.copy()
    if operator.offset is not None:
        offset = offset + operator.offset @ operator.state_vectors
    return WholeMap(matrix, offset - operator.mean @ matrix)


def _replaces_output(name: str, own: WholeMap | None) -> Callable[..., Any]:
    """A forward hook that puts the map of what a layer reads in place of what it gives: its first real numbers."""
    require_own_thread = only_in_this_thread(name, "kann.depth.bypass")
    mapped = replacement(own, keep=True) if own else None

    def replace(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        require_own_thread()
        given = next((part for part in tensors_of(output) if part.is_floating_point()), None)
        if given is None:
            raise KannError(
                f"layer {name!r} gives {type(output).__name__} without real numbers; pass layers that give states"
            )
        parts = [part for part in tensors_of((args, kwargs)) if part.is_floating_point()]
        read = next((part for part in parts if part.shape == given.shape), None)
        if read is None:
            raise KannError(
                f"layer {name!r} reads {[tuple(part.shape) for part in parts]} and gives {tuple(given.shape)}; only "
                "layers that keep the shape of the states can be bypassed"
            )
        if own and mapped:
            width = len(own.offset)
            is_image = read.ndim == 4 and read.shape[-1] != width == read.shape[1]
            turned = has_channels_first(module, read) or is_image
            rows = turned_if(turned, read)
            if rows.shape[-1] != width:
                raise KannError(
                    f"the operator is for {width} units; layer {name!r} reads {tuple(read.shape)}; pass an operator "
                    "that was fitted to states of these layers"
                )
            precise = rows.to(torch.promote_types(rows.dtype, given.dtype))
            read = turned_back_if(turned, mapped(precise))
        return with_tensors(output, {id(given): read.to(given.dtype)})

    return replace
