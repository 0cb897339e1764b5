"""Record the hidden states of a PyTorch model while it runs."""

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor, nn

from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_flag, shown
from kann.data.moments import Moments
from kann.data.states import States
from kann.errors import KannError
from kann.progress import progress as progress_bar
from kann.recording.cells import CallTracer
from kann.recording.depth import DepthTracer, HiddenDepthTracer
from kann.recording.fused import FusedTracer
from kann.recording.layer_selection import Target, by_module, require_module, select
from kann.recording.ragged import SequenceRows
from kann.recording.runner import batch_runner, device_of, evaluation_mode, returned_hidden_states
from kann.recording.sequence_data import Batch, BatchOptions, batches
from kann.recording.sinks import Deal, GroupedMomentsSink, Labels, Sink, parse_groups, sink_maker
from kann.recording.tracer import HiddenStatesTracer, NamedRows, OutputTracer, StateOptions, Tracer
from kann.typing import AnyArray


def make_tracers(
    model: nn.Module, layer: Any, options: StateOptions, *, axis: str, embedding: str | bool | None
) -> tuple[list[Tracer], bool]:
    """The tracers of the layers that ``layer`` names, and whether they give a single result."""
    require_choice(options.state, "state", ("h", "c", "hc"))
    require_choice(axis, "axis", ("time", "depth"))
    if axis == "depth":
        return [_depth_tracer(model, layer, options, embedding)], True
    if embedding is not None:
        raise KannError("embedding= is the first state along depth; pass axis='depth' with it")
    targets, single = select(model, layer)
    return [tracer for group in by_module(targets) for tracer in _time_tracers(group, options)], single


def _time_tracers(targets: Sequence[Target], options: StateOptions) -> list[Tracer]:
    """Tracers for targets of the same module."""
    module = targets[0].module
    if isinstance(module, nn.RNNBase):
        return [FusedTracer(module, targets, options)]
    if module is not None:
        return [CallTracer(target, options) for target in targets]
    _require_defaults(options, "states taken from the model's output")
    return [_output_tracer(target) for target in targets]


def _output_tracer(target: Target) -> Tracer:
    """What reads the model's output: by the user's function, or by the name of its hidden states."""
    if target.view is None:
        return HiddenStatesTracer(target)
    return OutputTracer(target)


def _depth_tracer(model: nn.Module, layer: Any, options: StateOptions, embedding: str | bool | None) -> Tracer:
    """What records the blocks that ``layer`` names, or the hidden states that the model returns, along depth."""
    _require_defaults(options, "states along depth")
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
    """Refuse options that only recurrent layers have."""
    if options != StateOptions():
        raise KannError(f"{what} have no inputs, initial or cell states; pass state='h' and leave the others out")


NUMBERS = {"float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32}
"""What ONNX calls types of numbers, and what numpy does; any other input is passed as it is."""


def _is_session(model: Any) -> bool:
    """Whether this is a session of ONNX Runtime, told by its methods, so that the package need not be there."""
    return all(callable(getattr(model, name, None)) for name in ("run", "get_inputs", "get_outputs"))


def as_module(model: Any, layer: Any) -> tuple[Any, Any]:
    """A module that runs the session, and a function from what that gives to the output to record.

    Any other model, and the layer that the user names, are given back as they are.
    """
    if not _is_session(model):
        return model, layer
    module: nn.Module = SessionModule(model)
    if callable(layer):
        return module, layer
    return module, _output_named(model, layer)


def _output_named(session: Any, layer: Any) -> Callable[[Any], Any]:
    """From what a session gives to one of its outputs: the one named, or the only one with three axes."""
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
            feed = {self._inputs[name].name: _as_fed(value, self._inputs[name].type) for name, value in given.items()}
            return dict(zip(self._outputs, map(torch.from_numpy, session.run(None, feed)), strict=True))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in self._inputs])
        forward.__signature__ = signature  # type: ignore[attr-defined]  # tells the recorder what a batch must hold
        self.forward = forward


def _as_fed(value: Any, kind: str) -> Any:
    """An array in the type that the session wants, such as ``tensor(float)``."""
    wanted = NUMBERS.get(kind.removeprefix("tensor(").removesuffix(")"))
    return as_numpy(value).astype(wanted)


class _OtherOptions(TypedDict, total=False):
    """The options of `record` that do not decide what comes back, for its overloads."""

    state: str
    lengths: Any
    inputs: bool | str
    initial: bool
    embedding: str | bool | None
    forward: Callable[[nn.Module, Any], Any] | None
    collate: Callable[[list[Any]], Any] | None
    batch_size: int
    max_sequences: int | None
    device: torch.device | str | None
    progress: bool


_OneLayer = str | Callable[[Any], Any] | None
_IntoStates = str | os.PathLike[str]
_IntoMoments = Literal["moments"] | Moments
_Groups = int | Sequence[Any] | AnyArray

# What comes back depends on four options. With groups a list of moments takes the place of moments. A list of layers
# gives a dict, but not along depth, where its blocks are one result. The overloads for literals overlap those for any
# string on purpose: "moments" is the one string for `into` that gives no States, and "depth" the one for `axis` under
# which a list gives a single result.


@overload
def record(  # pyright: ignore[reportOverlappingOverload]
    model: nn.Module,
    data: Any,
    *,
    layer: _OneLayer = None,
    axis: str = "time",
    into: Literal["moments"],
    groups: _Groups,
    **others: Unpack[_OtherOptions],
) -> list[Moments]: ...
@overload
def record(  # pyright: ignore[reportOverlappingOverload]
    model: nn.Module,
    data: Any,
    *,
    layer: Iterable[str],
    axis: Literal["depth"],
    into: Literal["moments"],
    groups: _Groups,
    **others: Unpack[_OtherOptions],
) -> list[Moments]: ...
@overload
def record(
    model: nn.Module,
    data: Any,
    *,
    layer: Iterable[str],
    axis: str = "time",
    into: Literal["moments"],
    groups: _Groups,
    **others: Unpack[_OtherOptions],
) -> dict[str, list[Moments]]: ...
@overload
def record(  # pyright: ignore[reportOverlappingOverload]
    model: nn.Module,
    data: Any,
    *,
    layer: _OneLayer = None,
    axis: str = "time",
    into: _IntoMoments,
    **others: Unpack[_OtherOptions],
) -> Moments: ...
@overload
def record(
    model: nn.Module,
    data: Any,
    *,
    layer: _OneLayer = None,
    axis: str = "time",
    into: _IntoStates = "states",
    **others: Unpack[_OtherOptions],
) -> States: ...
@overload
def record(  # pyright: ignore[reportOverlappingOverload]
    model: nn.Module,
    data: Any,
    *,
    layer: Iterable[str],
    axis: Literal["depth"],
    into: _IntoMoments,
    **others: Unpack[_OtherOptions],
) -> Moments: ...
@overload
def record(  # pyright: ignore[reportOverlappingOverload]
    model: nn.Module,
    data: Any,
    *,
    layer: Iterable[str],
    axis: Literal["depth"],
    into: _IntoStates = "states",
    **others: Unpack[_OtherOptions],
) -> States: ...
@overload
def record(  # pyright: ignore[reportOverlappingOverload]
    model: nn.Module,
    data: Any,
    *,
    layer: Iterable[str],
    axis: str = "time",
    into: Literal["moments"],
    **others: Unpack[_OtherOptions],
) -> dict[str, Moments]: ...
@overload
def record(
    model: nn.Module,
    data: Any,
    *,
    layer: Iterable[str],
    axis: str = "time",
    into: _IntoStates = "states",
    **others: Unpack[_OtherOptions],
) -> dict[str, States]: ...
def record(
    model: nn.Module,
    data: Any,
    *,
    layer: Any = None,
    state: str = "h",
    axis: str = "time",
    lengths: Any = None,
    inputs: bool | str = False,
    into: str | os.PathLike[str] | Moments = "states",
    groups: Any = None,
    initial: bool = False,
    embedding: str | bool | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 32,
    max_sequences: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> States | Moments | list[Moments] | dict[str, States] | dict[str, Moments] | dict[str, list[Moments]]:
    """Run a model over data and record the hidden states of a layer, as `States` or streamed into `Moments`.

    >>> model = nn.Sequential(nn.Embedding(10, 3), nn.GRU(3, 4, batch_first=True))
    >>> words = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    >>> record(model, words)
    States(2 sequences of 2 to 3 steps, 4 units, float32)
    >>> record(model, words, into="moments")
    Moments(5 states of 2 sequences, 4 units)

    The model runs in evaluation mode without gradients. Afterwards it is as it was, also after an error.

    Parameters
    ----------
    model
        Any torch module, or a session of ONNX Runtime, of which outputs are recorded.
    data
        A tensor or array of sequences (S, ...), a list of sequences of different lengths, a PackedSequence, a mapping
        of tensors, a DataLoader, or any iterable of batches. A batch that is a mapping is passed by its keys, of a
        tuple as many entries as ``forward`` cannot do without.
    layer
        Which layer: None for the only recurrent module, a name as in ``model.named_modules()``, a pattern such as
        ``"blocks.*"`` or a list of names, which give a dict, or a function from the model's output to (B, T, d). (A
        type checker takes every string for a single layer; a pattern in a list it knows to give a dict.) The
        layers inside ``rnn``, a fused recurrent module, are ``"rnn.l0"``, ``"rnn.l1"``, …, and ``"rnn.l0_reverse"``,
        … read from the end; ``"rnn"`` is the last one, ``"rnn.*"`` is all of them. ``"hidden_states.3"`` is what a
        HuggingFace model returns under that name, ``"output"`` what any model returns, and of a session of ONNX Runtime
        the name of one of its outputs.
    state
        Of LSTMs the output ``"h"``, the cell state ``"c"``, or both side by side, ``"hc"``.
    axis
        ``"time"``, or ``"depth"`` to take the blocks that ``layer`` names as steps of time: each position of each
        sequence then gives h_1, …, h_L. Without ``layer`` these are the hidden states that the model returns.
    lengths
        How many steps of each sequence are real: an array, a key of the batch, or a function of it. A matrix is taken
        as a mask. A list of sequences, a PackedSequence, and a batch with an ``attention_mask`` know theirs.
    inputs
        Whether to record with each state what the layer read to reach it. ``"gates"`` records instead what a recurrent
        layer's weights make of that input alone: its gates at a state of zeros, less those of an input of zeros.
    into
        ``"states"``, ``"moments"``, a `Moments` to add to, or a path such as ``"states.zarr"`` for a store. The last
        two hold what was finished if the work is interrupted. A store of states at the path is replaced when the
        new one is complete; after an error the old one stays, and a note on the error says where the new one is. Where
        torch.distributed has several ranks, a rank without data gets empty moments, for `Moments.all_reduce` to fill;
        in all other cases data without a batch are an error.
    groups
        With ``into="moments"``: a list of moments instead of one, for `kann.trust`, which holds out one after another.
        A number of groups, such as 20, among which whole sequences are dealt out evenly as they come; or a label
        for each sequence, such as its speaker, which gives the moments of each label, in the order in which labels
        first appear. Their ``sum`` is what would be recorded without groups.
    initial
        Whether to include the state before the first step.
    embedding
        For depth: the name of the module whose output is h_0, or True for what the first block reads.
    forward
        ``forward(model, batch)``, for models that are called in another way.
    collate
        From a list of samples to a batch; ``data`` is then an iterable of samples.
    batch_size
        How many sequences to run at once, where data are not batches already.
    max_sequences
        Stop after this many sequences of the data.
    device
        Where to put batches. They go where the model is, so this matters only for a model without parameters.
    progress
        Whether to show a progress bar if it takes long.
    """
    model, layer = as_module(model, layer)
    require_module(model)
    if isinstance(inputs, str):
        require_choice(inputs, "inputs", ("gates",))
    else:
        require_flag(inputs, "inputs")
        inputs = bool(inputs)
    require_flag(initial, "initial")
    require_flag(progress, "progress")
    if embedding is not None and not isinstance(embedding, str):
        require_flag(embedding, "embedding")
    _require_arguments(into, forward=forward, collate=collate)
    make_groups = _group_maker(groups, into, max_sequences=max_sequences)
    tracers, single = make_tracers(
        model,
        layer,
        StateOptions(state=state, inputs=inputs, initial=bool(initial)),
        axis=axis,
        embedding=embedding,
    )
    options = BatchOptions(
        lengths=lengths,
        collate=collate,
        batch_size=batch_size,
        max_sequences=max_sequences,
        model_is_recurrent=isinstance(model, nn.RNNBase),
        time_first=isinstance(model, nn.RNNBase) and not model.batch_first,
        dtype=_floating_type(model),
    )
    hidden_states = any(isinstance(tracer, HiddenStatesTracer) for tracer in tracers)
    run = batch_runner(
        model,
        forward=forward,
        lengths=lengths,
        device=device_of(model, device),
        hidden_states=hidden_states,
    )
    sinks: dict[str, Sink] = {}
    with evaluation_mode(model), contextlib.ExitStack() as stack:
        if hidden_states and forward is None:
            stack.enter_context(returned_hidden_states(model))
        make_sink = sink_maker(into, stack, single=single)
        if make_groups is not None:
            make_sink = partial(_grouped_sink, make_groups)
        for tracer in tracers:
            tracer.attach(stack)
        for name, rows in _rows_of_batches(run, tracers, data, options, show_progress=progress):
            if name not in sinks:  # not before: a store at the path stays until there is something to write
                sinks[name] = make_sink(name)
            sinks[name].add(rows)
    if not sinks:
        return _result_without_data(tracers, into, make_groups, single=single)
    results: Any = {name: sink.result() for name, sink in sinks.items()}
    if single:
        return next(iter(results.values()))
    return results


def _require_arguments(into: Any, **functions: Any) -> None:
    """Refuse a target that is none, and functions that cannot be called."""
    if not isinstance(into, str | os.PathLike | Moments):
        raise KannError(
            f"into={shown(into)} is no target; pass 'states', 'moments', a Moments, or a path such as x.zarr"
        )
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise KannError(f"{name}={shown(function)} is not a function; pass one, or leave it out")


def _group_maker(groups: Any, into: Any, *, max_sequences: int | None) -> Callable[[], Deal | Labels] | None:
    """How to make the groups of a layer, each of which counts its own sequences; None without groups."""
    if groups is None:
        return None
    if isinstance(into, Moments) or into != "moments":
        raise KannError("groups are for moments, which are recorded apart for each; pass into='moments'")
    parse_groups(groups, max_sequences=max_sequences)  # refused before the model runs
    return partial(parse_groups, groups, max_sequences=max_sequences)


def _grouped_sink(make_groups: Callable[[], Deal | Labels], name: str) -> Sink:
    return GroupedMomentsSink(name, make_groups())


def _result_without_data(
    tracers: Sequence[Tracer],
    into: str | os.PathLike[str] | Moments,
    make_groups: Callable[[], Deal | Labels] | None,
    *,
    single: bool,
) -> Any:
    """Empty moments for one of several ranks, which may have no data: if it failed, the others would wait for it."""
    if not (_has_other_ranks() and (isinstance(into, Moments) or into == "moments")):
        raise KannError("the data hold no batches, so nothing was recorded; pass at least one sequence")
    if isinstance(into, Moments):
        return into
    empty: Callable[[], Any] = Moments
    if make_groups is not None:
        count = len(make_groups())
        empty = lambda: [Moments() for _ in range(count)]  # noqa: E731
    if single:
        return empty()
    return {name: empty() for tracer in tracers for name in tracer.names()}


def _has_other_ranks() -> bool:
    """Whether this process is one of several that torch.distributed runs."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _floating_type(model: nn.Module) -> torch.dtype:
    """The type of the model's real parameters; torch's default for a model without any."""
    types = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(types, torch.get_default_dtype())


def _rows_of_batches(
    run: Callable[[Batch], Any], tracers: Sequence[Tracer], data: Any, options: BatchOptions, *, show_progress: bool
) -> NamedRows:
    """Run batch after batch until there are enough sequences, and give the rows of each layer as they come."""
    items, total = batches(data, options)
    if show_progress:
        items = progress_bar(items, what="recording", total=total, unit="batch")
    limit, done = options.max_sequences, 0
    for batch in items:
        if limit is not None:
            batch = replace(batch, limit=limit - done)
        for tracer in tracers:
            tracer.begin(batch)
        output = run(batch)
        for tracer in tracers:
            tracer.end()
        sequences = 0
        for name, rows in _traced(tracers, output):
            _require_count(rows, batch, name)
            sequences = rows.batch_sequences
            if sequences:
                yield name, rows
        done += sequences
        if limit is not None and done >= limit:
            return


def _traced(tracers: Sequence[Tracer], output: Any) -> NamedRows:
    """What all tracers saw of one batch."""
    for tracer in tracers:
        yield from tracer.take(output)


def _require_count(rows: SequenceRows, batch: Batch, layer: str) -> None:
    """Refuse a layer that saw other sequences than the batch holds, which happens where axes are confused."""
    count, seen = batch.count, rows.batch_sequences
    if count is None or seen == count:
        return
    # A multiple is right where the layer runs several times over the batch; not if its sequences are as long as the
    # batch is large, which means that the model took the axis of sequences for time.
    if seen % count or (rows.lengths == count).all():
        raise KannError(
            f"the batch holds {count} sequences and layer {layer!r} saw {seen}; a tensor is cut along its first "
            "axis: pass data[None] for one sequence, and for a model that takes (steps, sequences, ...) an iterator of "
            "such batches or collate=lambda samples: torch.stack(samples, dim=1)"
        )
