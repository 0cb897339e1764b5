"""Watch a model while it runs, and turn what a layer did with a batch into the rows of its sequences."""

import contextlib
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from kann.backends.arrays import indices_for, run_indices
from kann.checks import require_dense, require_float
from kann.data.states import StatePart
from kann.errors import KannError, KannWarning, PaddingWarning
from kann.recording.layer_selection import Target
from kann.recording.sequence_data import Batch, RealSteps, packed_lengths, tensors_of
from kann.typing import Array, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SequenceRows:
    """The states that a layer reached in whole sequences, one row a step; padding is dropped when they are read."""

    padded: tuple[Float[Tensor, "m _"], ...]
    """The states of all steps, padding included, and where that is recorded what the layer read to reach them."""
    lengths: Int[Array, " s"]
    """How many real steps each sequence has."""
    firsts: Int[Array, " s"] | None = None
    """The row at which each sequence begins; None if they follow each other without padding."""
    batch_sequences: int
    """How many sequences the layer saw."""
    reverse: bool = False
    """Whether the sequences were read from their end: the rows of each are in the order of reading."""
    parts: tuple[StatePart, ...] = ()
    """The parts that a row of states has; empty if there is one, without a name."""
    origins: Int[Array, " s"] | None = None
    """The sequence of the data that each of these comes from: along depth a sequence gives one for each position. None
    if they are those of the batch."""

    @property
    def sequence_numbers(self) -> Int[Array, " s"]:
        """The origins; by default every sequence comes from itself."""
        return np.arange(len(self.lengths)) if self.origins is None else self.origins

    def mapped(self, function: Callable[[Tensor], Tensor], **changes: Any) -> "SequenceRows":
        """Return the same rows with ``function`` of the states and of the inputs, and other changes."""
        return replace(self, padded=tuple(map(function, self.padded)), **changes)

    def without_padding(self) -> "SequenceRows":
        """Return the same rows, copied out of the padding."""
        return self if self.firsts is None else self.mapped(self._real_rows, firsts=None)

    @property
    def values(self) -> Float[Tensor, "n d"]:
        """The states, one sequence after the other."""
        return self._real_rows(self.padded[0])

    @property
    def inputs(self) -> Float[Tensor, "n p"] | None:
        """The input with which the layer reached each of them, or None."""
        return self._real_rows(self.padded[1]) if len(self.padded) > 1 else None

    def _real_rows(self, rows: Float[Tensor, "m _"]) -> Float[Tensor, "n _"]:
        return rows if self.firsts is None else rows[run_indices(self.firsts, self.lengths, rows)]


def joined(parts: Sequence[SequenceRows]) -> SequenceRows:
    """Join the rows of several batches: dropping their padding at once is cheaper than batch by batch."""
    if len(parts) == 1:
        return parts[0]
    origins = [part.origins for part in parts if part.origins is not None]
    firsts = None
    if any(part.firsts is not None for part in parts):  # once the rows of all parts, padding included, are in a row
        offsets = starts_of(np.array([len(part.padded[0]) for part in parts]))
        own = [starts_of(part.lengths) if part.firsts is None else part.firsts for part in parts]
        firsts = np.concatenate([first + offset for first, offset in zip(own, offsets, strict=True)])
    return SequenceRows(
        padded=tuple(map(torch.cat, zip(*(part.padded for part in parts), strict=True))),
        lengths=np.concatenate([part.lengths for part in parts]),
        firsts=firsts,
        batch_sequences=sum(part.batch_sequences for part in parts),
        reverse=parts[0].reverse,
        parts=parts[0].parts,
        origins=np.concatenate(origins) if origins else None,
    )


def starts_of(lengths: Int[Array, " s"]) -> Int[Array, " s"]:
    """Return the first rows of sequences of these lengths that follow each other without padding."""
    return np.cumsum(lengths) - lengths


def chosen_sequences(rows: SequenceRows, chosen: Array) -> SequenceRows:
    """Return the rows of some of the sequences, in this order, copied out of the padding."""
    rows = rows.without_padding()
    lengths = rows.lengths[chosen]
    places = np.repeat(starts_of(rows.lengths)[chosen] - starts_of(lengths), lengths) + np.arange(lengths.sum())
    (places,) = indices_for(rows.padded[0], places)
    return rows.mapped(
        lambda part: part[places],
        lengths=lengths,
        origins=rows.sequence_numbers[chosen],
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Padded:
    """The states and inputs of a layer in a batch in which every sequence takes the same number of steps."""

    values: Float[Tensor, "b t d"]
    """The states."""
    inputs: Float[Tensor, "b t p"] | None = None
    """The inputs with which the layer reached them, or None."""
    initial: Float[Tensor, "b d"] | None = None
    """The state before the first step, where it is to be recorded too."""

    def rows(self, real: RealSteps | None, *, layer: str) -> SequenceRows:
        """Return the rows of the real steps; all steps are real if ``real`` is None."""
        _require_states(self.values, layer)
        batch_sequences, steps = self.values.shape[:2]
        parts = [part for part in (self.values, self.inputs) if part is not None]
        if self.initial is not None:
            parts[0] = torch.cat([self.initial[:, None], parts[0]], dim=1)
            parts[1:] = [pad(part, (0, 0, 1, 0)) for part in parts[1:]]  # nothing was read to reach the initial state
        sequences, rows_each = parts[0].shape[:2]
        firsts, lengths = None, np.full(sequences, rows_each)
        if real is not None:
            _require_fits(real, sequences=batch_sequences, steps=steps, layer=layer)
            firsts = np.arange(sequences) * rows_each + real.starts
            lengths = real.lengths + (rows_each - steps)  # one more if the initial state is included
        return SequenceRows(
            padded=tuple(part.reshape(-1, part.shape[2]) for part in parts),
            lengths=lengths,
            firsts=firsts,
            batch_sequences=batch_sequences,
        )


def packed_rows(
    values: Float[Tensor, "n d"],
    sizes: Int[Array, " t"],
    *,
    inputs: Float[Tensor, "n p"] | None = None,
    initial: Float[Tensor, "b d"] | None = None,
    order: Int[Array, " b"] | None = None,
    reverse: bool = False,
) -> SequenceRows:
    """Return the rows of the sequences of a batch that is sorted by step, each in the order it was read in.

    Step t holds the first ``sizes[t]``, longest sequences. ``order`` is the place of each sequence of the batch among
    the sorted ones, None if they were sorted from the start; ``initial`` the states before the first step, where these
    are to be recorded too.
    """
    order = np.arange(sizes[0]) if order is None else order
    lengths = packed_lengths(sizes)[order]
    steps = np.arange(lengths.sum()) - np.repeat(starts_of(lengths), lengths)  # 0, 1, … in each sequence
    if reverse:
        steps = np.repeat(lengths, lengths) - 1 - steps
    places = starts_of(sizes)[steps] + np.repeat(order, lengths)
    if initial is not None:
        # The initial states come first, one for each sorted sequence, so that all other places move on by sizes[0].
        values = torch.cat([initial, values])
        places = np.insert(places + sizes[0], starts_of(lengths), order)
        lengths = lengths + 1
        if inputs is not None:
            inputs = pad(inputs, (0, 0, int(sizes[0]), 0))
    (places,) = indices_for(values, places)
    return SequenceRows(
        padded=tuple(part[places] for part in (values, inputs) if part is not None),
        lengths=lengths,
        batch_sequences=len(order),
        reverse=reverse,
    )


def previous_places(sizes: Int[Array, " t"], *, reverse: bool) -> Int[Array, " n"]:
    """Return for every packed step the row of the state before it in [initial states; packed states]."""
    batch, steps = int(sizes[0]), np.repeat(np.arange(len(sizes)), sizes)
    offsets = starts_of(sizes)
    sequence = np.arange(len(steps)) - offsets[steps]
    before = steps + 1 if reverse else steps - 1
    inside = (before >= 0) & (before < len(sizes))
    before = before.clip(0, len(sizes) - 1)
    inside &= sequence < sizes[before]  # read from the end, a shorter sequence starts later
    return np.where(inside, batch + offsets[before] + sequence, sequence)


def _require_states(values: Tensor, layer: str) -> None:
    """Raise unless a layer gave an array of real numbers with at least one unit."""
    require_dense(values)
    require_float(values, what=f"states of layer {layer!r}")
    if 0 in values.shape[1:]:
        raise KannError(
            f"layer {layer!r} gave {tuple(values.shape)}, which holds no numbers; pass one that gives (sequences, "
            "steps, units)"
        )


def _require_fits(real: RealSteps, *, sequences: int, steps: int, layer: str) -> None:
    """Raise if lengths are of other sequences than a layer saw, or exceed its steps."""
    if len(real) != sequences:
        remedy = "pass one length per sequence, or lengths= as a function of the batch"
        if sequences < len(real):
            remedy += "; a model that cuts its batch into pieces needs batch_size=1"
        raise KannError(
            f"layer {layer!r} gave {sequences} sequences; there are {len(real)} lengths for this batch; {remedy}"
        )
    ends = real.ends
    if ends.max() > steps:
        raise KannError(
            f"lengths reach {ends.max()} (sequence {int(ends.argmax())} of the batch); layer {layer!r} gave {steps} "
            f"steps; pass lengths of at most {steps}, counted in the layer's own steps"
        )


def require_right_padding(real: RealSteps, *, layer: str) -> None:
    """Raise for padding on the left: a layer that reads step after step reads it before the sequence."""
    if real.starts.any():
        raise KannError(
            f"the padding of the batch is on the left, where {layer!r} reads it before the sequence; pad on the right"
        )


# Axes of a module's output


def as_real(tensor: Tensor) -> Tensor:
    """Concatenate Re and Im of complex numbers along the last axis; return other tensors unchanged."""
    return torch.cat([tensor.real, tensor.imag], dim=-1) if tensor.is_complex() else tensor


def as_complex(real: Tensor, like: Tensor) -> Tensor:
    """Undo `as_real`: complex numbers if ``like`` is complex, else the tensor as it is."""
    if not like.is_complex():
        return real
    first, second = real.chunk(2, dim=-1)
    return torch.complex(first.contiguous(), second.contiguous())


ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder)
"""Modules of torch whose output has the order of axes that their attention is set to."""
CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d)
"""Convolutions over time."""
CHANNELS_FIRST = (*CONVOLUTIONS, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm)
"""Modules with parameters that work on (B, C, T)."""


def batch_major(values: Tensor, module: nn.Module | None, batch: Batch, layer: str) -> Float[Tensor, "b t d"]:
    """Arrange values as (B, T, d), whatever order of axes the module uses."""
    if values.ndim != 3:
        raise KannError(
            f"layer {layer!r} gave {tuple(values.shape)}, without a time axis; pass one that gives "
            "(sequences, steps, units)"
        )
    if has_channels_first(module, values):
        return values.transpose(1, 2)
    if has_time_first(values, module, batch):
        return values.transpose(0, 1)
    return values


def has_channels_first(module: nn.Module | None, values: Tensor) -> bool:
    """Return True if a module works on (B, C, T): one that has no parameters but those of convolutions over time."""
    if module is None or values.ndim != 3:
        return False
    # A parametrized convolution, by weight_norm for instance, keeps its parameters in a submodule "parametrizations".
    owners = [
        part
        for name, part in module.named_modules()
        if "parametrizations" not in name and (part._parameters or hasattr(part, "parametrizations"))
    ]
    convolutions = [part for part in owners if isinstance(part, CONVOLUTIONS)]
    if not convolutions or not all(isinstance(part, CHANNELS_FIRST) for part in owners):
        return False
    # Without this, a module that transposes inside, from (B, T, C) and back, would be turned around.
    return values.shape[1] in (convolutions[0].in_channels, convolutions[-1].out_channels)


def has_time_first(values: Tensor, module: nn.Module | None, batch: Batch) -> bool:
    """Return True if values are (T, B, d): as torch's attention says, or else by which axis is as long as the batch."""
    parts = () if module is None else module.modules()
    attention = next((part for part in parts if isinstance(part, nn.MultiheadAttention)), None)
    if attention is not None and isinstance(module, ATTENTION):
        return not attention.batch_first
    count = len(batch.real) if batch.real is not None else batch.count
    if count is None and attention is None:  # batches of a loader have their sequences along the first axis
        count = next((len(part) for part in tensors_of(batch.content) if part.ndim), None)
    if count is not None:
        return values.shape[0] != count and values.shape[1] == count
    return attention is not None and not attention.batch_first


# Watching


NamedRows = Iterator[tuple[str, SequenceRows]]
"""The results of a batch: the name of each layer, and the rows of the batch's sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """Options of recording a layer."""

    state: str | None = None
    """``h``, ``c`` or ``hc``; None for all that the layer carries from step to step."""
    inputs: bool | str = False
    """Whether to record what the layer read to reach each state; ``"gates"`` for what its weights make of it."""
    initial: bool = False
    """Whether to include the state before the first step."""


class NoStateError(KannError):
    """A layer hands no state from one step to the next."""

    def __init__(self, path: str, kind: str, layers: str = "none was found"):
        self.path, self.kind = path, kind
        super().__init__(
            f"layer {path!r} ({kind}) hands no state from one step to the next; layers that do: {layers}; pass one of "
            "them, or state='h' to record what this one gives"
        )


_depth: ContextVar[int] = ContextVar("_depth", default=0)
"""The number of recordings that are open in this thread: a model may record another one in its forward."""


@contextlib.contextmanager
def open_recording() -> Iterator[None]:
    """Let the recordings inside of which this one runs pause until it is finished."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


class Tracer(ABC):
    """Watches one module, or the model's output."""

    batch: Batch
    """The batch that the model is running on."""
    _thread: int | None = None
    """The thread in which the model is running on it; None between batches."""
    _depth = 0
    """The number of recordings inside of which this one runs the model."""

    @property
    def is_watching(self) -> bool:
        """Whether a call that is made now, in this thread, is part of the model's run on the batch.

        Other threads may use the model meanwhile, what makes the batches may use it in between, and its forward may
        record it.
        """
        return self._thread == threading.get_ident() and self._depth == _depth.get()

    def __init__(self, names: Sequence[str]):
        self._names, self.has_warned = names, False

    def names(self) -> Sequence[str]:
        """Return the names of its layers in the order of `take`, as far as they are known before the model runs."""
        return self._names

    def attach(self, stack: contextlib.ExitStack) -> None:  # noqa: B027  # the output needs no hooks
        """Place hooks, if there is something to watch but the output, and leave their removal to ``stack``."""

    def begin(self, batch: Batch) -> None:
        """Forget the last batch, and watch what this thread does with the next."""
        self.batch, self._thread, self._depth = batch, threading.get_ident(), _depth.get()

    def end(self) -> None:
        """Watch no longer: the model has returned."""
        self._thread = None

    @abstractmethod
    def take(self, output: Any) -> NamedRows:
        """Return the rows of the batch, after the model has returned ``output``."""

    follows_time = True
    """Whether the rows of a sequence are steps of time."""
    order: Int[Array, " b"] | None = None
    """The place of each sequence of the batch among those that the layer sees, where the model arranges them anew."""
    reads_data = False
    """Whether the layer surely reads the batch as it is."""

    @property
    def title(self) -> str:
        """The name of its layer, or of the first of them."""
        return self._names[0]

    def noted(self) -> Any:  # noqa: B027  # the output is all that counts
        """Return the notes of the run on the batch; None if only the output counts."""

    def put_back(self, noted: Any, changed: Sequence[Any] = ()) -> None:  # noqa: B027  # the output needs nothing
        """Put back what was noted of a run, with what was noted of those in which inputs were changed."""

    alters = False
    """Whether the model was seen to alter a state between calls."""

    def is_guessing(self) -> bool:
        """Return True if the runs so far do not show which rows belong to one sequence."""
        return False

    def must_run_again(self) -> bool:
        """Return True if this run has shown that the model must run on the batch again, watched more closely."""
        return False

    def real_of(self, layer: str) -> RealSteps | None:
        """Return the real steps of what a layer gives, in the order in which it sees the sequences."""
        real = self.batch.real_of(layer)
        return real if real is None or self.order is None else real[np.argsort(self.order)]

    def warn_once(self, message: str, kind: type[KannWarning] = PaddingWarning) -> None:
        """Warn, in the first batch alone."""
        if not self.has_warned:
            self.has_warned = True
            warnings.warn(message, kind, stacklevel=3)

    def rows(self, padded: Padded, layer: str) -> SequenceRows:
        """Return the real steps of what the layer gave for the batch."""
        return padded.rows(self.real_of(layer), layer=layer)


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
    """Raise if a layer was not called."""
    if not calls:
        raise KannError(
            f"layer {name!r} was never called while the model ran (calls count in the thread that records alone); "
            "pass the name of a module that its forward uses"
        )


def join_calls(calls: Sequence[Padded]) -> Padded:
    """Join calls, each of which continued the one before, as if it had been one call."""
    if len(calls) == 1:
        return calls[0]
    inputs = [call.inputs for call in calls if call.inputs is not None]
    return Padded(
        values=torch.cat([call.values for call in calls], dim=1),
        inputs=torch.cat(inputs, dim=1) if inputs else None,
        initial=calls[0].initial,
    )


class OutputTracer(Tracer):
    """Records what a function of the user makes of the model's output."""

    def __init__(self, target: Target):
        super().__init__([target.name])
        self._target = target

    def take(self, output: Any) -> NamedRows:
        """Return the states that the function gives."""
        assert self._target.view is not None  # noqa: S101  # only targets with a function get this tracer
        values = self._target.view(output)
        if not isinstance(values, Tensor) or values.ndim != 3:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise KannError(f"layer(output) gave {got}, without a time axis; return (sequences, steps, units)")
        padded = Padded(values=as_real(values.detach()))
        yield self._target.name, self.rows(padded, "layer(output)")


class HiddenStatesTracer(OutputTracer):
    """Records hidden states that a model returns by itself, as those of HuggingFace do."""

    def names(self) -> Sequence[str]:
        """Return the name of the target, unless it stands for all of them: only the output tells how many there are."""
        if self._target.place == "*":
            raise KannError(
                f"there are no data, so that it is not known which layers {self._target.name!r} stands for; pass a "
                f"list of names, such as {self._target.field}.0"
            )
        return super().names()

    def take(self, output: Any) -> NamedRows:
        """Return one of them, or all."""
        states = returned_states(output, self._target.field)
        place, count = self._target.place, len(states)
        if place != "*" and not -count <= int(place) < count:
            raise KannError(f"{self._target.name} does not exist; the model returns {count} hidden states")
        for number in range(count) if place == "*" else [int(place)]:
            name = f"{self._target.field}.{number}"
            values = batch_major(states[number], None, self.batch, name)
            yield name, self.rows(Padded(values=values), name)


def returned_states(output: Any, field: str) -> Sequence[Tensor]:
    """Return the hidden states of all layers that a model's output holds."""
    states = output.get(field) if isinstance(output, Mapping) else getattr(output, field, None)
    if isinstance(states, list | tuple) and states:
        return states
    entries = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    others = [str(name) for name, value in entries.items() if str(name).endswith("hidden_states") and value is not None]
    if others:
        names = " or ".join(f"layer={name!r}" for name in others)
        raise KannError(f"the model's output ({type(output).__name__}) holds no {field}; pass {names}")
    raise KannError(
        f"the model's output ({type(output).__name__}) holds no {field}; pass forward=lambda model, batch: "
        f"model(**batch, output_hidden_states=True), or name a module as layer="
    )
