"""Record the hidden states of a PyTorch model while it runs."""

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_flag, require_instance, short_repr
from kann.data.moments import Moments
from kann.data.states import States
from kann.errors import KannError
from kann.recording.cells import CallTracer, find_cells
from kann.recording.depth import DepthTracer, HiddenDepthTracer
from kann.recording.fused import FusedTracer
from kann.recording.layer_selection import Target, by_module, has_recurrent, require_module, select
from kann.recording.probe import RowCheck
from kann.recording.runner import evaluation_mode, returned_hidden_states
from kann.recording.sequence_data import Batch, RunOptions, SequenceData, require_order
from kann.recording.sinks import (
    GroupedMomentsSink,
    MemorySink,
    MomentsSink,
    Sink,
    SinkMaker,
    StoreSink,
    parse_groups,
    store_path,
)
from kann.recording.tracer import (
    HiddenStatesTracer,
    NamedRows,
    OutputTracer,
    SequenceRows,
    StateOptions,
    Tracer,
    chosen_sequences,
    open_recording,
)
from kann.typing import AnyArray


class LayerOptions(RunOptions, total=False):
    """Options of recording layers, as in `kann.record`, with `RunOptions`."""

    layer: str | Iterable[str] | Callable[[Any], Any] | None
    """A name, a list of names, a pattern, or a function of the model's output. The default is the only layer."""
    state: str | None
    """``"h"``, ``"c"`` or ``"hc"``. Default: all that the layer carries from one step to the next."""
    inputs: bool | str
    """Whether to record what the layer read, or ``"gates"`` for what its weights make of that. Default: False."""
    initial: bool
    """Whether to include the state before the first step. Default: False."""


class AxisOptions(LayerOptions, total=False):
    """Along which axis to record, as in `kann.record`, with `LayerOptions`."""

    axis: str
    """``"time"`` or ``"depth"``. Default: ``"time"``."""
    embedding: str | bool | None
    """For depth: the name of the module whose output is h_0, or True for the input of the first block."""


def record(
    model: nn.Module,
    data: Any,
    *,
    layer: str | Iterable[str] | Callable[[Any], Any] | None = None,
    state: str | None = "h",
    axis: str = "time",
    inputs: bool | str = False,
    into: str | os.PathLike[str] | None = None,
    initial: bool = False,
    embedding: str | bool | None = None,
    **run: Unpack[RunOptions],
) -> States:
    """Run a model over data and record the hidden states of a layer.

    >>> model = nn.Sequential(nn.Embedding(10, 3), nn.GRU(3, 4, batch_first=True))
    >>> words = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    >>> record(model, words, batch_size=2)
    States(2 sequences of 2 to 3 steps, 4 units, float32)

    The model runs in evaluation mode without gradients. Afterwards it is as it was, also after an error.

    `kann.recording.record_layers` records several layers in one pass, `kann.recording.record_moments` keeps second
    moments instead of states.

    Parameters
    ----------
    model
        Any torch module, or a session of ONNX Runtime, of which outputs are recorded.
    data
        A tensor or array of sequences (S, ...), a list of sequences of different lengths, a PackedSequence, a mapping
        of tensors, a DataLoader, or any iterable of batches. A batch that is a mapping is passed by its keys, of a
        tuple the entries that ``forward`` requires.
    layer
        None for the only recurrent module, a name as in ``model.named_modules()``, or a function from the model's
        output to (B, T, d). The layers inside ``rnn``, a fused recurrent module, are ``"rnn.l0"``, ``"rnn.l1"``, …, and
        ``"rnn.l0_reverse"``, … read from the end; ``"rnn"`` is the last one. ``"hidden_states.3"`` is what a
        HuggingFace model returns under that name, ``"output"`` what any model returns, and of a session of ONNX Runtime
        the name of one of its outputs. Along depth: a pattern such as ``"blocks.*"``, or a list of names.
    state
        None for all that the layer carries from one step to the next: h and c of an LSTM, of your own cell all values
        that one call returns and the next one reads, of any shape. ``"h"`` is its first part, or what a layer gives
        that carries no state; ``"c"`` the second part, ``"hc"`` all of them. `States.parts` names the parts.
    axis
        ``"time"``, or ``"depth"`` to take the blocks that ``layer`` names as steps of time: each position of each
        sequence then gives h_1, …, h_L. Without ``layer`` these are the hidden states that the model returns.
    inputs
        Whether to record with each state what the layer read to reach it. ``"gates"`` records instead what a recurrent
        layer's weights make of that input alone: its gates at a state of zeros, less those of an input of zeros.
    into
        A path such as ``"states.zarr"`` to write a store instead of keeping the states in memory. A store at the path
        is replaced when the new one is complete; after an error the old one stays, and a note on the error says where
        the sequences are that were finished.
    initial
        Whether to include the state before the first step.
    embedding
        For depth: the name of the module whose output is h_0, or True for the input of the first block.
    run
        How to read the data and to call the model: ``lengths``, ``forward``, ``collate``, ``batch_size``,
        ``max_sequences``, ``device`` and ``progress``, as `kann.recording.RunOptions` describes them.
    """
    if "groups" in run:
        raise KannError("groups are for moments; pass them to kann.recording.record_grouped_moments")
    if isinstance(into, Moments):
        raise KannError("into= is the path of a store; to add to moments call kann.recording.record_moments")
    make_sink = MemorySink if into is None else partial(StoreSink, path=store_path(into))
    what: Any = {"state": state, "axis": axis, "inputs": inputs, "initial": initial, "embedding": embedding}
    return _one(_run(model, data, make_sink, layer=layer, **what, **run))


def record_layers(
    model: nn.Module,
    data: Any,
    *,
    into: str | os.PathLike[str] | None = None,
    **options: Unpack[LayerOptions],
) -> dict[str, States]:
    """Record the states of several layers in one pass over the data, by the names of the layers.

    >>> model = nn.GRU(3, 4, num_layers=2)
    >>> record_layers(model, torch.zeros(5, 2, 3), layer=["l0", "l1"])["l0"]
    States(2 sequences of 5 steps, 4 units, float32)

    Parameters
    ----------
    model, data
        As in `kann.record`.
    into
        A folder in which each layer gets a store that is named after it.
    options
        ``state``, ``inputs``, ``initial`` and the options of a run as in `kann.record`; ``layer`` is a list of names,
        or a pattern such as ``"blocks.*"`` or ``"rnn.*"``, in which ``*`` stops at dots, or None for the last layer
        of the only recurrent module, in all its directions.
    """
    make_sink: SinkMaker = MemorySink
    if into is not None:
        make_sink = partial(StoreSink, path=store_path(into, is_folder=True), is_folder=True)
    return _run(model, data, make_sink, several=True, **options)


def record_moments(
    model: nn.Module, data: Any, *, into: Moments | None = None, **options: Unpack[AxisOptions]
) -> Moments:
    """Stream the states of a layer into second moments, on the device of the model; the states are never kept.

    >>> model = nn.Sequential(nn.Embedding(10, 3), nn.GRU(3, 4, batch_first=True))
    >>> words = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    >>> record_moments(model, words)
    Moments(5 states of 2 sequences, 4 units)

    Where torch.distributed has several ranks, a rank without data gets empty moments, for `Moments.all_reduce` to fill.
    In all other cases data without a batch are an error.

    Parameters
    ----------
    model, data
        As in `kann.record`.
    into
        Moments to add to, which hold what was finished if the work is interrupted. They are returned.
    options
        ``layer``, ``state``, ``axis``, ``inputs``, ``initial``, ``embedding`` and the options of a run, as in
        `kann.record`.
    """
    if into is not None:
        require_instance(into, Moments, "into")
    return _one(_run(model, data, partial(MomentsSink, into=into), adds_up=True, **options))


def record_layer_moments(model: nn.Module, data: Any, **options: Unpack[LayerOptions]) -> dict[str, Moments]:
    """Stream the states of several layers into second moments in one pass, by the names of the layers.

    >>> model = nn.GRU(3, 4, num_layers=2)
    >>> record_layer_moments(model, torch.zeros(5, 2, 3), layer="*")
    {'l0': Moments(10 states of 2 sequences, 4 units), 'l1': Moments(10 states of 2 sequences, 4 units)}

    Parameters are those of `record_layers`.
    """
    return _run(model, data, MomentsSink, several=True, adds_up=True, **options)


def record_grouped_moments(
    model: nn.Module, data: Any, *, groups: int | Sequence[Any] | AnyArray, **options: Unpack[AxisOptions]
) -> list[Moments]:
    """Stream the states of a layer into the moments of groups of sequences, which `kann.trust` holds out in turn.

    >>> model = nn.GRU(3, 4, batch_first=True)
    >>> groups = record_grouped_moments(model, torch.zeros(3, 5, 3), groups=["ann", "bob", "ann"])
    >>> [moments.states for moments in groups]
    [10, 5]

    The ``sum`` of the moments is what `record_moments` gives.

    Parameters
    ----------
    groups
        The number of groups, such as 20, among which whole sequences are dealt out evenly as they come; or a label
        for each sequence, such as its speaker, which gives the moments of each label, in the order in which labels
        first appear.
    model, data, options
        As in `kann.recording.record_moments`.
    """
    dealt = parse_groups(groups, max_sequences=options.get("max_sequences"))
    if dealt.labelled:
        require_order(data, groups=groups)
    return _one(_run(model, data, partial(GroupedMomentsSink, groups=dealt), adds_up=True, **options))


def _one(results: dict[str, Any]) -> Any:
    (result,) = results.values()
    return result


def _run(
    model: Any,
    data: Any,
    make_sink: SinkMaker,
    *,
    layer: Any = None,
    state: str | None = "h",
    inputs: bool | str = False,
    initial: bool = False,
    axis: str = "time",
    embedding: str | bool | None = None,
    several: bool = False,
    adds_up: bool = False,
    **run: Unpack[RunOptions],
) -> dict[str, Any]:
    """Run the model over the data once, and return the results of the sinks of all layers by their names.

    If results add up over several ranks, one that has no data gives empty ones: if it failed, the others would wait.
    """
    options = _state_options(state, inputs, initial)
    if not isinstance(model, nn.Module):
        model, layer = as_module(model, layer)
    sequences = SequenceData(model, data, **run)
    sinks: dict[str, Sink] = {}
    with open_recording(), evaluation_mode(model), contextlib.ExitStack() as stack:
        batches = sequences.batches(bar="recording")  # a loader draws random numbers here
        if layer is None and axis == "time" and not has_recurrent(model):
            layer, batches = _only_cell(sequences, batches)
        tracers = make_tracers(model, layer, options, axis=axis, embedding=embedding, several=several)
        if any(isinstance(tracer, HiddenStatesTracer) for tracer in tracers):
            sequences.request_hidden_states()
            if run.get("forward") is None:
                stack.enter_context(returned_hidden_states(model))
        for tracer in tracers:
            tracer.attach(stack)
        for name, rows in _rows_of_batches(sequences, batches, tracers):
            if name not in sinks:  # not before: a store at the path stays until there is something to write
                sinks[name] = make_sink(name, stack)
            sinks[name].add(rows)
        if not sinks and adds_up and _has_other_ranks():
            sinks = {name: make_sink(name, stack) for tracer in tracers for name in tracer.names()}
    if not sinks:
        raise KannError("the data hold no batches, so nothing was recorded; pass at least one sequence")
    return {name: sink.result() for name, sink in sinks.items()}


def _state_options(state: str | None, inputs: bool | str, initial: bool) -> StateOptions:
    """Check what to record of a layer."""
    if state is not None:
        require_choice(state, "state", ("h", "c", "hc"))
    if isinstance(inputs, str):
        require_choice(inputs, "inputs", ("gates",))
    else:
        require_flag(inputs, "inputs")
    require_flag(initial, "initial")
    return StateOptions(state=state, inputs=inputs if isinstance(inputs, str) else bool(inputs), initial=initial)


def _only_cell(sequences: SequenceData, batches: Iterator[Batch]) -> tuple[str | None, Iterator[Batch]]:
    """Find the only module that the model calls in a loop and that carries a state; return its name and all batches.

    Modules inside of such a module are parts of it. The name is None if there is no such module, or no batch.
    """
    first = next(batches, None)
    if first is None:
        return None, batches
    names = [target.path for target in find_cells(sequences, first)]
    outer = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    if len(outer) > 1:
        listed = ", ".join(map(repr, outer))
        raise KannError(f"the model calls {len(outer)} cells in loops: {listed}; pass layer= one or a list of them")
    return next(iter(outer), None), chain([first], batches)


def _has_other_ranks() -> bool:
    """Return True if this process is one of several that torch.distributed runs."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def make_tracers(
    model: nn.Module, layer: Any, options: StateOptions, *, axis: str, embedding: str | bool | None, several: bool
) -> list[Tracer]:
    """Make tracers of the layers that ``layer`` names; raise if these are several but must be one."""
    require_choice(axis, "axis", ("time", "depth"))
    if axis == "depth":
        return [_depth_tracer(model, layer, options, embedding)]
    if embedding is not None:
        raise KannError("embedding= is the first state along depth; pass axis='depth' with it")
    targets, single = select(model, layer)
    if not single and not several:
        names = ", ".join(target.name for target in targets)
        raise KannError(
            f"layer={short_repr(layer)} means several layers or directions ({names}); pass layer= one of them, or "
            "record all with kann.recording.record_layers or kann.recording.record_layer_moments"
        )
    return [tracer for group in by_module(targets) for tracer in _time_tracers(group, options)]


def _time_tracers(targets: Sequence[Target], options: StateOptions) -> list[Tracer]:
    """Make tracers for targets of the same module."""
    module = targets[0].module
    if isinstance(module, nn.RNNBase):
        return [FusedTracer(module, targets, options)]
    if module is not None:
        return [CallTracer(target, options) for target in targets]
    _require_defaults(options, "states taken from the model's output")
    return [HiddenStatesTracer(target) if target.view is None else OutputTracer(target) for target in targets]


def _depth_tracer(model: nn.Module, layer: Any, options: StateOptions, embedding: str | bool | None) -> Tracer:
    """Make the tracer of the blocks in ``layer``, or of the hidden states that the model returns, along depth."""
    _require_defaults(options, "states along depth")
    if embedding is not None and not isinstance(embedding, str):
        require_flag(embedding, "embedding")
    if layer is None or (isinstance(layer, str) and layer.endswith("hidden_states")):
        if embedding is not None:
            raise KannError("the hidden states that a model returns hold its embedding already; leave embedding= out")
        return HiddenDepthTracer(Target(name="depth", field=layer or "hidden_states"))
    targets, _ = select(model, layer)
    if any(target.module is None or isinstance(target.module, nn.RNNBase) for target in targets):
        raise KannError("blocks along depth are modules of their own; pass a pattern or a list of their names")
    if not isinstance(embedding, str):
        return DepthTracer(targets, None, starts_with_input=bool(embedding))
    first, _ = select(model, embedding)
    return DepthTracer(targets, first[0], starts_with_input=False)


def _require_defaults(options: StateOptions, what: str) -> None:
    """Raise if options are set that only recurrent layers have."""
    if options not in (StateOptions(), StateOptions(state="h")):
        raise KannError(f"{what} have no inputs, initial or cell states; pass state='h' and leave the others out")


def _rows_of_batches(data: SequenceData, batches: Iterable[Batch], tracers: Sequence[Tracer]) -> NamedRows:
    """Run batch after batch until there are enough sequences, and give the rows of each layer as they come."""
    limit, done, check = data.max_sequences, 0, RowCheck(data, tracers)
    for batch in batches:
        output, sequences = check.run(batch), 0
        for tracer in tracers:
            for number, (name, seen) in enumerate(tracer.take(output)):
                _require_count(seen, batch, name)
                rows = check.arranged(tracer, number, seen)
                sequences = rows.batch_sequences
                if limit is not None and sequences > limit - done:
                    rows = chosen_sequences(rows, np.flatnonzero(rows.sequence_numbers < limit - done))
                if sequences:
                    yield name, rows
        done += sequences
        if limit is not None and done >= limit:
            return


def _require_count(rows: SequenceRows, batch: Batch, layer: str) -> None:
    """Raise if a layer saw other sequences than the batch holds, which happens where axes are confused."""
    count, seen = batch.count, rows.batch_sequences
    if count is None or seen == count:
        return
    # A multiple is right where the layer runs several times over the batch; not if its sequences are as long as the
    # batch is large, which means that the model took the axis of sequences for time.
    if seen < count and not (rows.lengths == count).all():
        raise KannError(
            f"the batch holds {count} sequences and layer {layer!r} saw {seen} at once; a model that cuts its batch "
            "into pieces needs batches that it does not cut: pass batch_size=1"
        )
    if seen % count or (rows.lengths == count).all():
        remedy = (
            "if the model reads (steps, sequences, ...), pass data (sequences, steps, ...) and forward=lambda model, "
            "batch: model(batch.swapaxes(0, 1)), with outputs of all steps turned back in the same way"
        )
        if seen == 1:
            remedy = "pass (sequences, steps, channels), and data[None] for one sequence"
        raise KannError(f"the batch holds {count} sequences and layer {layer!r} saw {seen}; {remedy}")


# Sessions of ONNX Runtime


NUMBERS = {"float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32}
"""The types of numbers by their names in ONNX; any other input is passed as it is."""


def as_module(model: Any, layer: Any) -> tuple[nn.Module, Any]:
    """Return a module that runs a session, and the function from outputs to states; raise for other models."""
    # Methods decide, so that the package need not be installed.
    if not all(callable(getattr(model, name, None)) for name in ("run", "get_inputs", "get_outputs")):
        require_module(model)
        return model, layer
    return SessionModule(model), layer if callable(layer) else _output_named(model, layer)


def _output_named(session: Any, layer: Any) -> Callable[[Any], Any]:
    """Make a function that picks an output of a session: the named one, or the only one with three axes."""
    shapes = {output.name: output.shape for output in session.get_outputs()}
    whole = [name for name, shape in shapes.items() if shape is not None and len(shape) == 3]
    if layer is None and len(whole) == 1:
        layer = whole[0]
    if not isinstance(layer, str) or layer not in shapes:
        raise KannError(
            f"layer={layer!r} is no output of the session, which gives {shapes}; pass the name of the one that holds "
            "states of all steps, (sequences, steps, units). If it makes one step a call, run it in a loop and pass "
            "the states that it gives to kann.fit, as an array"
        )
    return lambda outputs: outputs[layer]


class SessionModule(nn.Module):
    """Runs a session on tensors; its arguments have the names of the session's inputs."""

    def __init__(self, session: Any):
        super().__init__()
        self._inputs = {re.sub(r"\W", "_", each.name): each for each in session.get_inputs()}
        self._outputs = [output.name for output in session.get_outputs()]

        def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            given = signature.bind(*args, **kwargs).arguments
            feed = {}
            for name, value in given.items():
                wanted = self._inputs[name]  # its type is such as "tensor(float)"
                kind = NUMBERS.get(wanted.type.removeprefix("tensor(").removesuffix(")"))
                feed[wanted.name] = as_numpy(value).astype(kind)
            return dict(zip(self._outputs, map(torch.from_numpy, session.run(None, feed)), strict=True))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in self._inputs])
        forward.__signature__ = signature  # type: ignore[attr-defined]  # tells the recorder what a batch must hold
        self.forward = forward
