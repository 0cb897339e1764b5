"""Watch a model while it runs, and turn what a layer did with a batch into the rows of its sequences."""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kann.errors import KannError
from kann.recording.layer_selection import Target
from kann.recording.layouts import as_real, batch_major
from kann.recording.ragged import Padded, SequenceRows
from kann.recording.sequence_data import Batch

NamedRows = Iterator[tuple[str, SequenceRows]]
"""What a batch gave: the name of each layer, and the rows of the batch's sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """What to record of a layer."""

    state: str = "h"
    """``h``, ``c`` or ``hc``."""
    inputs: bool | str = False
    """Whether to record what the layer read to reach each state; ``"gates"`` for what its weights make of it."""
    initial: bool = False
    """Whether to include the state before the first step."""


class Tracer(ABC):
    """Watches one module, or the model's output."""

    batch: Batch
    """The batch that the model is running on."""
    _thread: int | None = None
    """The thread in which the model is running on it; None between batches."""

    @property
    def is_watching(self) -> bool:
        """Whether a call that is made now, in this thread, is part of the model's run on the batch.

        Other threads may use the model meanwhile, and what makes the batches may use it in between.
        """
        return self._thread == threading.get_ident()

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of its layers in the order in which `take` gives them, as far as the model tells before it runs."""

    @abstractmethod
    def attach(self, stack: contextlib.ExitStack) -> None:
        """Place hooks, and leave their removal to ``stack``."""

    def begin(self, batch: Batch) -> None:
        """Forget the last batch, and watch what this thread does with the next."""
        self.batch, self._thread = batch, threading.get_ident()

    def end(self) -> None:
        """Watch no longer: the model has returned."""
        self._thread = None

    @abstractmethod
    def take(self, output: Any) -> NamedRows:
        """The rows of the batch, after the model has returned ``output``."""

    def rows(self, padded: Padded, layer: str) -> SequenceRows:
        """The real steps of what the layer gave for the batch."""
        return padded.rows(self.batch.real_of(layer), limit=self.batch.limit, layer=layer)


def hook_last(module: nn.Module, hook: Callable[..., Any], stack: contextlib.ExitStack) -> None:
    """Call ``hook(module, args, kwargs, output)`` after all other forward hooks, also those that are placed later.

    A hook of the user may replace the output, and the model goes on with what the last hook returns, unless that is
    None. Of several that are to be last, the one placed last is.
    """
    handle = module.register_forward_hook(hook, with_kwargs=True)
    stack.callback(handle.remove)

    def move_to_end(*_: Any) -> None:
        if next(reversed(module._forward_hooks)) != handle.id:
            module._forward_hooks.move_to_end(handle.id)  # type: ignore[attr-defined]  # it is an OrderedDict

    stack.callback(module.register_forward_pre_hook(move_to_end).remove)


def require_called(calls: Sequence[Any], name: str) -> None:
    """Refuse a layer that was not called."""
    if not calls:
        raise KannError(
            f"layer {name!r} was never called while the model ran (calls count in the thread that records alone); "
            "pass the name of a module that its forward uses"
        )


def join_calls(calls: Sequence[Padded]) -> Padded:
    """What several calls gave, each of which continued the one before, as if it had been one call."""
    if len(calls) == 1:
        return calls[0]
    inputs = [call.inputs for call in calls if call.inputs is not None]
    return Padded(
        values=torch.cat([call.values for call in calls], dim=1),
        inputs=torch.cat(inputs, dim=1) if inputs else None,
        initial=calls[0].initial,
    )


def continues(end: Tensor, start: Tensor, *, exactly: bool) -> bool:
    """Whether a call that starts from the state ``start`` continues one that ended in the state ``end``.

    Between single steps a model may change the state, by a mask for instance; there only a start from zero begins a new
    sequence, unless the state had come to zero by itself.
    """
    if start.shape != end.shape:
        return False
    if exactly:
        return torch.equal(start, end)
    return bool(start.any()) or not bool(end.any())


class _ModelOutputTracer(Tracer):
    """Watches what the model returns, which needs no hooks."""

    def __init__(self, target: Target):
        self._target = target

    def names(self) -> Sequence[str]:
        """The name of the target."""
        return [self._target.name]

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Place no hooks."""


class OutputTracer(_ModelOutputTracer):
    """Records what a function of the user makes of the model's output."""

    def take(self, output: Any) -> NamedRows:
        """The states that the function gives."""
        assert self._target.view is not None  # noqa: S101  # only targets with a function get this tracer
        values = self._target.view(output)
        if not isinstance(values, Tensor) or values.ndim != 3:
            got = type(values).__name__
            if isinstance(values, Tensor):
                got = tuple(values.shape)
            raise KannError(f"layer(output) gave {got}, without a time axis; return (sequences, steps, units)")
        padded = Padded(values=as_real(values.detach()))
        yield self._target.name, self.rows(padded, "layer(output)")


class HiddenStatesTracer(_ModelOutputTracer):
    """Records hidden states that a model returns by itself, as those of HuggingFace do."""

    def names(self) -> Sequence[str]:
        """The name of the target, unless it stands for all of them: only the output tells how many there are."""
        if self._target.place == "*":
            raise KannError(
                f"there are no data, so that it is not known which layers {self._target.name!r} stands for; pass a "
                f"list of names, such as {self._target.field}.0"
            )
        return super().names()

    def take(self, output: Any) -> NamedRows:
        """One of them, or all."""
        states = returned_states(output, self._target.field)
        for place in self._places(len(states)):
            name = f"{self._target.field}.{place}"
            values = batch_major(states[place], None, self.batch, name)
            yield name, self.rows(Padded(values=values), name)

    def _places(self, count: int) -> Sequence[int]:
        """Which of the model's ``count`` hidden states to record."""
        if self._target.place == "*":
            return range(count)
        place = int(self._target.place)
        if not -count <= place < count:
            raise KannError(f"{self._target.name} does not exist; the model returns {count} hidden states")
        return [place]


def returned_states(output: Any, field: str) -> Sequence[Tensor]:
    """The hidden states of all layers that a model's output holds."""
    states = getattr(output, field, None)
    if isinstance(output, Mapping):
        states = output.get(field)
    if isinstance(states, list | tuple) and states:
        return states
    others = [name for name in _entries(output) if name.endswith("hidden_states")]
    if others:
        names = " or ".join(f"layer={name!r}" for name in others)
        raise KannError(f"the model's output ({type(output).__name__}) holds no {field}; pass {names}")
    raise KannError(
        f"the model's output ({type(output).__name__}) holds no {field}; pass forward=lambda model, batch: "
        f"model(**batch, output_hidden_states=True), or name a module as layer="
    )


def _entries(output: Any) -> list[str]:
    """The names of what a model's output holds."""
    if isinstance(output, Mapping):
        return [str(key) for key in output]
    return [name for name, value in getattr(output, "__dict__", {}).items() if value is not None]
