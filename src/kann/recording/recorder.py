"""Record the hidden states of a PyTorch model while it runs."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kann.data.moments import Moments
from kann.errors import KannError
from kann.progress import progress as bar
from kann.recording.batching import Batch, Plan, batches
from kann.recording.calls import CallTracer
from kann.recording.depth import DepthTracer, HiddenDepthTracer
from kann.recording.ragged import Ragged
from kann.recording.running import caller, device_of, moved, untouched
from kann.recording.selection import Target, by_module, named, select
from kann.recording.sinks import Sink, sink_maker
from kann.recording.tracing import HiddenTracer, OutputTracer, Tracer, Wanted
from kann.recording.unrolling import FusedTracer


def record(
    model: nn.Module,
    data: Any,
    *,
    layer: Any = None,
    state: str = "h",
    axis: str = "time",
    lengths: Any = None,
    inputs: bool = False,
    into: str | os.PathLike[str] | Moments = "states",
    initial: bool = False,
    embedding: str | bool | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 32,
    max_sequences: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Any:
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
        Any torch module.
    data
        A tensor or array of sequences (S, ...), a list of sequences of different lengths, a PackedSequence, a mapping
        of tensors, a DataLoader, or any iterable of batches. A batch that is a mapping is passed by its keys, of a
        tuple as many entries as ``forward`` cannot do without.
    layer
        Which layer: None for the only recurrent module, a name as in ``model.named_modules()``, a pattern such as
        ``"blocks.*"`` or a list of names, which give a dict, or a function from the model's output to (B, T, d). The
        layers inside ``rnn``, a fused recurrent module, are ``"rnn.l0"``, ``"rnn.l1"``, …, and ``"rnn.l0_reverse"``,
        … read from the end; ``"rnn"`` is the last one, ``"rnn.*"`` is all of them. ``"hidden_states.3"`` is what a
        HuggingFace model returns under that name.
    state
        Of LSTMs the output ``"h"``, the cell state ``"c"``, or both side by side, ``"hc"``.
    axis
        ``"time"``, or ``"depth"`` to take the blocks that ``layer`` names as steps of time: each position of each
        sequence then gives h_1, …, h_L. Without ``layer`` these are the hidden states that the model returns.
    lengths
        How many steps of each sequence are real: an array, a key of the batch, or a function of it. A matrix is taken
        as a mask. A list of sequences, a PackedSequence, and a batch with an ``attention_mask`` know theirs.
    inputs
        Whether to record beside each state what the layer read to reach it.
    into
        ``"states"``, ``"moments"``, a `Moments` to add to, or a path such as ``"states.zarr"`` for a store. The last
        two hold what was finished if the work is interrupted. A store of states that stands there is replaced when
        the first batch is done. Where torch.distributed has several ranks, moments of no data at all are empty, for
        `Moments.all_reduce` to fill; else no data are an error.
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
    wanted = Wanted(state=state, inputs=inputs, initial=initial)
    tracers, single = _tracers(model, layer, wanted, axis=axis, embedding=embedding)
    plan = Plan(
        lengths=lengths,
        collate=collate,
        batch_size=batch_size,
        max_sequences=max_sequences,
        bare=isinstance(model, nn.RNNBase),
        time_first=isinstance(model, nn.RNNBase) and not model.batch_first,
        dtype=_dtype(model),
    )
    hidden = any(isinstance(tracer, HiddenTracer) for tracer in tracers)
    run = _runner(model, forward=forward, lengths=lengths, device=device_of(model, device), hidden_states=hidden)
    sinks: dict[str, Sink] = {}
    with untouched(model), contextlib.ExitStack() as stack:
        make_sink = sink_maker(into, stack, single=single)
        for tracer in tracers:
            tracer.attach(stack)
        for name, rows in _stream(run, tracers, data, plan, show=progress):
            if name not in sinks:  # not before: until there is something to write, what stands at the path stays
                sinks[name] = make_sink(name)
            sinks[name].add(rows)
    if not sinks:
        return _without_data(tracers, into, single=single)
    results = {name: sink.result() for name, sink in sinks.items()}
    return next(iter(results.values())) if single else results


def _without_data(tracers: Sequence[Tracer], into: str | os.PathLike[str] | Moments, *, single: bool) -> Any:
    """Empty moments for one of several ranks, whose share may be empty: if it failed, the others would wait for it."""
    if not (_has_other_ranks() and (isinstance(into, Moments) or into == "moments")):
        raise KannError("the data hold no batches, so nothing was recorded; pass at least one sequence")
    if isinstance(into, Moments):
        return into
    return Moments() if single else {name: Moments() for tracer in tracers for name in tracer.names()}


def _has_other_ranks() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _dtype(model: nn.Module) -> torch.dtype:
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())


def _tracers(
    model: nn.Module, layer: Any, wanted: Wanted, *, axis: str, embedding: str | bool | None
) -> tuple[list[Tracer], bool]:
    """What watches the model, and whether it gives a single result."""
    if wanted.state not in ("h", "c", "hc"):
        raise KannError(f"state={wanted.state!r} is unknown; pass 'h', 'c' or 'hc'")
    if axis == "depth":
        return [_along_depth(model, layer, wanted, embedding)], True
    if axis != "time":
        raise KannError(f"axis={axis!r} is unknown; pass 'time' or 'depth'")
    if embedding is not None:
        raise KannError("embedding= is the first state along depth; pass axis='depth' with it")
    targets, single = select(model, layer)
    return [tracer for group in by_module(targets) for tracer in _along_time(group, wanted)], single


def _along_time(group: Sequence[Target], wanted: Wanted) -> list[Tracer]:
    """Tracers for targets of the same module."""
    module = group[0].module
    if isinstance(module, nn.RNNBase):
        return [FusedTracer(module, group, wanted)]
    if module is not None:
        return [CallTracer(target, wanted) for target in group]
    _require_plain(wanted, "states taken from the model's output")
    return [OutputTracer(target) if target.view is not None else HiddenTracer(target) for target in group]


def _along_depth(model: nn.Module, layer: Any, wanted: Wanted, embedding: str | bool | None) -> Tracer:
    _require_plain(wanted, "states along depth")
    if layer is None or (isinstance(layer, str) and layer.endswith("hidden_states")):
        if embedding is not None:
            raise KannError("the hidden states that a model returns hold its embedding already; leave embedding= out")
        return HiddenDepthTracer(Target(name="depth", field=layer or "hidden_states"))
    targets, _ = select(model, layer)
    if any(target.module is None or isinstance(target.module, nn.RNNBase) for target in targets):
        raise KannError("blocks along depth are modules of their own; pass a pattern or a list of their names")
    if not isinstance(embedding, str):
        return DepthTracer(targets, None, own_input=bool(embedding))
    (first,) = named(model, embedding)[:1]
    return DepthTracer(targets, first, own_input=False)


def _require_plain(wanted: Wanted, what: str) -> None:
    if wanted != Wanted():
        raise KannError(f"{what} have no inputs, initial or cell states; pass state='h' and leave the others out")


def _runner(
    model: nn.Module,
    *,
    forward: Callable[..., Any] | None,
    lengths: Any,
    device: torch.device | None,
    hidden_states: bool,
) -> Callable[[Batch], Any]:
    """How to run the model on a batch."""
    call = caller(model, forward=forward, hidden_states=hidden_states)

    def run(batch: Batch) -> Any:
        content = batch.content
        if device is not None:
            # Lengths stay where they are: torch packs sequences by lengths on the host alone.
            kept = content[lengths] if isinstance(lengths, str | int) else None
            content = moved(content, device, but=kept if getattr(kept, "ndim", 0) == 1 else None)
        try:
            return call(content)
        except RuntimeError as error:
            if not re.search("same device|expected device", str(error)):
                raise
            raise KannError(
                f"the model, on {device}, and something that it reads are on different devices ({error}); move all of "
                "the model with model.to(...), and what forward= makes as well"
            ) from error

    return run


def _stream(
    run: Callable[[Batch], Any], tracers: Sequence[Tracer], data: Any, plan: Plan, *, show: bool
) -> Iterator[tuple[str, Ragged]]:
    """Run batch after batch, and give the rows of each layer as they come."""
    items, total = batches(data, plan)
    done = 0
    for item in bar(items, what="recording", total=total, unit="batch") if show else items:
        batch = item if plan.max_sequences is None else replace(item, keep=plan.max_sequences - done)
        for tracer in tracers:
            tracer.begin(batch)
        output = run(batch)
        samples = 0
        for tracer in tracers:
            for name, rows in tracer.take(output):
                _require_count(rows, batch, name)
                samples = rows.samples
                if samples:
                    yield name, rows
        done += samples
        if plan.max_sequences is not None and done >= plan.max_sequences:
            return


def _require_count(rows: Ragged, batch: Batch, layer: str) -> None:
    """Refuse a layer that saw other sequences than the batch holds, which happens where axes are confused."""
    count, samples = batch.count, rows.samples
    if count is None or samples == count:
        return
    if samples % count or (rows.lengths == count).all():
        raise KannError(
            f"the batch holds {count} sequences and layer {layer!r} saw {samples}; a tensor is cut along its first "
            "axis: pass data[None] for one sequence, and for a model that takes (steps, sequences, ...) an iterator of "
            "such batches or collate=lambda samples: torch.stack(samples, dim=1)"
        )
