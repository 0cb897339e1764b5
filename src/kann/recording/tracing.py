"""Watch a model while it runs, and turn what a layer did with a batch into the rows of its sequences."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kann.errors import KannError
from kann.recording.batching import Batch
from kann.recording.layouts import batch_major
from kann.recording.ragged import Padded, Ragged
from kann.recording.selection import Target

Results = Iterator[tuple[str, Ragged]]
"""What a batch gave: the rows of its sequences, and the name of their layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to record of a layer."""

    state: str = "h"
    """``h``, ``c`` or ``hc``."""
    inputs: bool = False
    """Whether to record what it read."""
    initial: bool = False
    """Whether to include the state before the first step."""


class Tracer(ABC):
    """Watches one module, or the model's output."""

    batch: Batch
    """The batch that the model is running on."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of its layers in the order in which `take` gives them, as far as the model tells before it runs."""

    @abstractmethod
    def attach(self, stack: contextlib.ExitStack) -> None:
        """Place hooks, and leave their removal with ``stack``."""

    def begin(self, batch: Batch) -> None:
        """Forget the last batch."""
        self.batch = batch

    @abstractmethod
    def take(self, output: Any) -> Results:
        """The rows of the batch, after the model has returned ``output``."""

    def rows(self, padded: Padded, layer: str) -> Ragged:
        """The real steps of what the layer gave for the batch."""
        return padded.rows(self.batch.span, keep=self.batch.keep, layer=layer)


def require_called(calls: Sequence[Any], name: str) -> None:
    """Refuse a layer that nothing was seen of."""
    if not calls:
        raise KannError(
            f"layer {name!r} was never called while the model ran; pass the name of a module that its forward uses"
        )


def join(steps: Sequence[Padded]) -> Padded:
    """Calls that follow each other as one stretch of time."""
    if len(steps) == 1:
        return steps[0]
    inputs = None if steps[0].inputs is None else torch.cat([part.inputs for part in steps], dim=1)  # type: ignore[arg-type]
    return Padded(values=torch.cat([part.values for part in steps], dim=1), inputs=inputs, initial=steps[0].initial)


def handed_on(end: Tensor, start: Tensor | None, *, exactly: bool) -> bool:
    """Whether a call that starts from ``start`` continues one that ended in ``end``.

    Between single steps a model may change the state, by a mask for instance; there only a start from zero begins a new
    sequence.
    """
    if start is None or start.shape != end.shape:
        return False
    return torch.equal(start, end) if exactly else bool(start.any()) or not bool(end.any())


class _OnOutput(Tracer):
    """Watches what the model returns."""

    def __init__(self, target: Target):
        self._target = target

    def names(self) -> Sequence[str]:
        """The name of the target."""
        return [self._target.name]

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Place no hooks."""


class OutputTracer(_OnOutput):
    """Records what a function makes of the model's output."""

    def take(self, output: Any) -> Results:
        """The states that the function gives."""
        assert self._target.view is not None  # noqa: S101  # what makes it an OutputTracer's
        values = self._target.view(output)
        if not isinstance(values, Tensor) or values.ndim != 3:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise KannError(f"layer(output) gave {got}, without a time axis; return (sequences, steps, units)")
        padded = Padded(values=values.detach())
        yield self._target.name, self.rows(padded, "layer(output)")


class HiddenTracer(_OnOutput):
    """Records hidden states that a model returns by itself, as those of HuggingFace do."""

    def names(self) -> Sequence[str]:
        """The name of the one; of all of them only the model's output tells how many there are."""
        if self._target.place == "*":
            raise KannError(
                f"there are no data, so that it is not known which layers {self._target.name!r} stands for; pass a "
                f"list of names, such as {self._target.field}.0"
            )
        return super().names()

    def take(self, output: Any) -> Results:
        """One of them, or all."""
        states = returned_states(output, self._target.field)
        places = range(len(states)) if self._target.place == "*" else [int(self._target.place)]
        for place in places:
            if not -len(states) <= place < len(states):
                raise KannError(f"{self._target.name} does not exist; the model returns {len(states)} hidden states")
            name = f"{self._target.field}.{place}"
            values = batch_major(states[place], None, self.batch, name)
            yield name, self.rows(Padded(values=values), name)


def returned_states(output: Any, field: str) -> Sequence[Tensor]:
    """The hidden states of all layers that a model's output holds."""
    states = output.get(field) if isinstance(output, Mapping) else getattr(output, field, None)
    if not isinstance(states, list | tuple) or not states:
        raise KannError(
            f"the model's output ({type(output).__name__}) holds no {field}; pass forward=lambda model, batch: "
            f"model(**batch, output_hidden_states=True), or name a module as layer="
        )
    return states
