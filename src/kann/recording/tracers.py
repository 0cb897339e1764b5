"""Choose what watches the layers that are to be recorded."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from kann.checks import require_choice
from kann.errors import KannError
from kann.recording.calls import CallTracer
from kann.recording.depth import DepthTracer, HiddenDepthTracer
from kann.recording.selection import Target, by_module, select
from kann.recording.tracing import HiddenStatesTracer, OutputTracer, StateOptions, Tracer
from kann.recording.unrolling import FusedTracer


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
